"""The plans that a run may have as devices come and go: the same strategy on fewer of them, with the same bits."""

from collections.abc import Iterator, Mapping

from trimtab.catalog import Cluster
from trimtab.plan.compiling import compile_program
from trimtab.plan.explanation import obstacle_to_same_bits
from trimtab.plan.physical import Plan
from trimtab.plan.resizing import elastic_axes, smaller_meshes
from trimtab.plan.training import Training
from trimtab.spec import Mesh, Program, StrategyError

_MOST = 16
"""Layouts that are looked at: compiling one of thousands of devices takes a second."""


class Formations(Mapping[int, Plan]):
    """The plans of a strategy by their number of devices: on all of them, and on fewer; made when they are asked for.

    Where bits depend on the number of ranks, for shares are not added in their fixed tree, there is none on fewer: who is
    lost is waited for.

    Args:
        program: The strategy.
        training: What is trained.
        plan: On all devices.
        cluster: Where the ranks stand.
    """

    def __init__(self, program: Program, training: Training, *, plan: Plan, cluster: Cluster) -> None:
        self._program, self._training, self._plan, self._cluster = program, training, plan, cluster
        axes = elastic_axes(plan) if _is_exact(plan) else ()
        meshes = smaller_meshes(plan.mesh, axes)[:_MOST]
        self._meshes = {mesh.num_devices: mesh for mesh in meshes}
        self._plans: dict[int, Plan | None] = {plan.mesh.num_devices: plan}

    def __getitem__(self, devices: int) -> Plan:
        """Raises: KeyError if the strategy cannot hold there."""
        found = self._found(devices)
        if found is None:
            raise KeyError(devices)
        return found

    def __iter__(self) -> Iterator[int]:
        """Numbers of devices, largest first."""
        return (devices for devices in self._meshes if self._found(devices) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _found(self, devices: int) -> Plan | None:
        if devices not in self._plans:
            self._plans[devices] = self._compiled(self._meshes[devices]) if devices in self._meshes else None
        return self._plans[devices]

    def _compiled(self, mesh: Mesh) -> Plan | None:
        try:
            found = compile_program(self._program, self._training, mesh=mesh, cluster=self._cluster)
        except StrategyError:
            return None
        return found if _is_exact(found) else None


def _is_exact(plan: Plan) -> bool:
    return plan.work.has_fixed_order and obstacle_to_same_bits(plan) is None
