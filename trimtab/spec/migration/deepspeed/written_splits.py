"""Formulas that group devices and divide work, as settings of DeepSpeed."""

from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.spec.language import SplitStatement
from trimtab.spec.migration.deepspeed.devices import EXPERTS, SEQUENCE, STAGES, TENSOR
from trimtab.spec.migration.deepspeed.facts import Facts
from trimtab.spec.migration.deepspeed.layers import BALANCE, PARTITION
from trimtab.spec.migration.roles import role_of

AUTOTP = TENSOR[0]
EXPERTS_ON = "expert_parallel.enabled"
EXPERTS_OUTSIDE = "use_data_before_expert_parallelism"

_NO_WHERE = "no setting divides such tensors along this dim"
_DIMS_OF_AUTOTP = {"heads", "mlp"}


def degrees(facts: Facts) -> Mapping[str, Any]:
    """The degrees of parallelism but that of data, which DeepSpeed counts; those of one are left to their default."""
    roles = facts.roles
    sizes = {
        AUTOTP: roles.size(roles.tensor),
        SEQUENCE: roles.size(roles.context),
        STAGES: roles.size(roles.stages),
        EXPERTS: roles.size(roles.experts),
    }
    return {flag: size for flag, size in sizes.items() if size > 1}


def lost_of_mesh(facts: Facts) -> Iterator[str]:
    """How ranks are numbered otherwise there."""
    if not facts.roles.has_order():
        yield (
            "ranks are numbered with tensor fastest, then sequence, data and stages: neighbours are other devices"
        )
    if facts.has_levels:
        yield "nothing there demands that an axis stays inside a level"


def split_settings(statement: SplitStatement, facts: Facts) -> tuple[Mapping[str, Any], list[str]]:
    """The settings of a SPLIT statement but one by name, and what is lost or done otherwise.

    A split of the batch has none: DeepSpeed divides it over the devices that are left.
    """
    found = degrees(facts)
    match role_of(statement):
        case "tensor":
            return _picked(found, AUTOTP), list(_lost_of_tensor(statement))
        case "context":
            return _picked(found, SEQUENCE), list(_lost_of_sequence(statement))
        case "experts":
            return _experts(found, facts), []
        case "stages":
            method = next(key for key, value in BALANCE.items() if value == _balance(statement))
            return {**_picked(found, STAGES), PARTITION: method}, list(_lost_of_stages(statement, facts))
        case "sequence":
            return {}, ["what stands between split matrices is whole on every device there"]
    return {}, [_NO_WHERE]


def _picked(found: Mapping[str, Any], flag: str) -> Mapping[str, Any]:
    return {flag: found.get(flag, 1)}


def _experts(found: Mapping[str, Any], facts: Facts) -> Mapping[str, Any]:
    settings = {EXPERTS_ON: True, **_picked(found, EXPERTS)}
    batch, experts = facts.roles.batch, facts.roles.experts
    return settings if batch[-len(experts) :] == experts else {**settings, EXPERTS_OUTSIDE: True}


def _lost_of_tensor(statement: SplitStatement) -> Iterator[str]:
    dims = {dim.text for dim in statement.dims}
    if "vocab" in dims:
        yield "embedding and head stay whole there"
    if not dims >= _DIMS_OF_AUTOTP:
        yield "heads and mlp are divided together there"


def _lost_of_sequence(statement: SplitStatement) -> Iterator[str]:
    if statement.using is None or statement.using.name.text != "ulysses":
        yield "heads and positions change places there (Ulysses), whatever USING says"


def _balance(statement: SplitStatement) -> str:
    return statement.balance.text if statement.balance else "layers"


def _lost_of_stages(statement: SplitStatement, facts: Facts) -> Iterator[str]:
    yield "PipelineModule of your script takes them: num_stages, partition_method"
    if statement.using is not None and statement.using.name.text != "1f1b":
        yield f"the schedule there is 1f1b, not {statement.using.name.text}"
    if statement.microbatches not in (None, facts.accumulation):
        yield f"{facts.accumulation} microbatches a step follow from the batch"
