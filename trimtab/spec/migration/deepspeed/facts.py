"""What several writers of a DeepSpeed file must know of a job before they write."""

import dataclasses
from dataclasses import dataclass

from trimtab.spec.job_files import LoadedJob
from trimtab.spec.language import AverageStatement, KeepStatement, ReduceStatement, SplitStatement
from trimtab.spec.migration.deepspeed.written_tensors import is_by_name
from trimtab.spec.migration.deepspeed.written_zero import Zero, zero_of
from trimtab.spec.migration.roles import Roles, find_roles, has_levels
from trimtab.terms import ComputeType


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What several writers of a DeepSpeed file must know of a job.

    Args:
        roles: What each axis is for.
        zero: What the STORE statements amount to.
        replicas: Parts of the batch: data-parallel devices.
        microbatch: Samples computed at once, of which each replica's part of the batch holds a whole number.
        accumulation: Microbatches of one replica in a step.
        is_bf16: Whether products run in bf16.
        kept_in_bf16: Tables that are kept in bf16 whole.
        is_wire_said: Whether a formula says the type in which gradients travel.
        averaged: Axes whose replicas are averaged at times, not summed in every step.
        splits_by_kind: Whether matrices are split by their dims, not only by name.
        has_levels: Whether the mesh demands that an axis stays inside a level of the cluster.
    """

    roles: Roles
    zero: Zero
    replicas: int
    microbatch: int
    accumulation: int
    is_bf16: bool
    kept_in_bf16: frozenset[str]
    is_wire_said: bool
    averaged: frozenset[str]
    splits_by_kind: bool
    has_levels: bool

    @property
    def batch(self) -> int:
        """Samples of a step: the job's batch, or the next larger one that the replicas divide evenly."""
        return self.microbatch * self.accumulation * self.replicas


def facts_of(loaded: LoadedJob) -> Facts:
    """What several writers must know of a job."""
    roles, train = _roles_of(loaded), loaded.job.train
    replicas = roles.size(roles.batch)
    samples = -(-train.batch // replicas)
    assert isinstance(train.microbatch, int), "auto is resolved in a loaded job"
    microbatch = max(size for size in range(1, min(train.microbatch, samples) + 1) if samples % size == 0)
    statements = loaded.program.statements
    reductions = [found for found in statements if isinstance(found, ReduceStatement)]
    return Facts(
        roles=roles,
        zero=zero_of(loaded.program, roles),
        replicas=replicas,
        microbatch=microbatch,
        accumulation=samples // microbatch,
        is_bf16=train.compute is ComputeType.BF16,
        kept_in_bf16=frozenset(
            table.text
            for statement in statements
            if isinstance(statement, KeepStatement)
            and statement.where is None
            and statement.dtype.text == "bf16"
            for table in statement.tables
        ),
        is_wire_said=any(found.wire is not None for found in reductions),
        averaged=frozenset(
            axis.text
            for statement in statements
            if isinstance(statement, AverageStatement)
            for axis in statement.axes
        ),
        splits_by_kind=bool(find_roles(loaded).tensor),
        has_levels=has_levels(loaded),
    )


def _roles_of(loaded: LoadedJob) -> Roles:
    """What each axis is for; one that parameters are split over by name is for tensors."""
    roles = find_roles(loaded)
    by_name = {
        axis.text
        for statement in loaded.program.statements
        if isinstance(statement, SplitStatement) and is_by_name(statement)
        for axis in statement.axes
    }
    tensor = tuple(axis for axis in roles.sizes if axis in by_name or axis in roles.tensor)
    return dataclasses.replace(roles, tensor=tensor)
