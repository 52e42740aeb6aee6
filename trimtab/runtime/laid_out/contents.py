"""Which pieces of weights and optimizer states does a plan give to each of its positions?"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.plan.physical import Plan
from trimtab.plan.placements import PlacementKind, Placements
from trimtab.plan.program import OperatorKind, Parameter
from trimtab.plan.tables import Table
from trimtab.runtime.lowering import Extent, Layouts, Stages

PARAMETERS = "parameters"
ROUNDED = "rounded"
"""Parameters in the narrower type that they are computed with, where a master copy is the parameter itself."""
ANCHOR, MOMENTUM = "outer_anchor_", "outer_momentum_"
"""Of what replicas that train apart put together when they meet, before the axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One logical tensor of the state.

    Args:
        part: ``parameters`` or a state of the optimizer.
        parameter: Whose it is.
        placements: How it lies on the ranks.
        where: Places on axes over which replicas train apart, each with a tensor of its own.
    """

    part: str
    parameter: Parameter
    placements: Placements
    where: tuple[tuple[str, int], ...] = ()

    @property
    def full_part(self) -> str:
        """``parameters``; of the second of two sites ``parameters@site1``."""
        return self.part + "".join(f"@{axis}{place}" for axis, place in self.where if place)

    @property
    def key(self) -> tuple[str, str]:
        """The same tensor in every layout."""
        return self.full_part, self.parameter.name


class Contents:
    """What every position of a plan holds between steps.

    Args:
        plan: Whose state it is.
        states: Of the optimizer, by name.

    Attributes:
        held: Logical tensors of the state, as it is saved.
        kept: The same, and what can be made from them but is kept too.
    """

    def __init__(self, plan: Plan, states: Sequence[str]) -> None:
        self.plan = plan
        self._layouts, self._stages = Layouts(plan.mesh), Stages(plan)
        self.held = tuple(self._all(states))
        self.kept = (*self.held, *self._rounded())
        self._by_key = {held.key: held for held in self.kept}

    @property
    def num_positions(self) -> int:
        """Of the plan."""
        return self.plan.mesh.num_devices

    def of(self, key: tuple[str, str]) -> Held:
        """A logical tensor."""
        return self._by_key[key]

    def extent(self, held: Held, position: int) -> Extent:
        """The elements of a tensor that a position has, if it has any."""
        return self.extent_of(held.parameter, held.placements, position)

    def extent_of(self, parameter: Parameter, placements: Placements, position: int) -> Extent:
        """The elements of a tensor that lies otherwise."""
        return self._layouts.extent(parameter.dims, parameter.shape, placements, position)

    def has(self, held: Held, position: int) -> bool:
        """Whether a position has a piece of a tensor."""
        places = self._layouts.places[position]
        is_there = all(places[axis] == place for axis, place in held.where)
        return is_there and self._stages.holds(position, held.parameter.stages)

    def is_first(self, held: Held, position: int) -> bool:
        """Whether a position is the first of those that hold the same elements."""
        # What replicas that train apart have in common is varying to the plan, too, and has no place of its own.
        cut = {axis for axis, placement in held.placements if placement.kind is not PlacementKind.VARYING}
        differing = cut | {axis for axis, _ in held.where} | {self.plan.pipeline.axis}
        places = self._layouts.places[position]
        is_first = all(place == 0 for axis, place in places.items() if axis not in differing)
        holds_first = self._stages.holds(position, held.parameter.stages[:1])
        return is_first and holds_first and self.has(held, position)

    def _all(self, states: Sequence[str]) -> Iterator[Held]:
        updated = {
            operator.parameters[0]: self.plan.update.values[operator.outputs[0]].placements
            for operator in self.plan.update.operators
            if operator.kind is OperatorKind.UPDATE
        }
        for part in (PARAMETERS, *states):
            for name, parameter in self.plan.parameters.items():
                is_stored = part == PARAMETERS and not parameter.has_master
                placements = parameter.stored[Table.PARAMS.value] if is_stored else updated[name]
                for where in self._sites(name):
                    yield Held(part=part, parameter=parameter, placements=placements, where=where)
        for name, parameter in self.plan.parameters.items():
            for axis, averaging in self.plan.bound.averages.get(name, {}).items():
                if averaging.outer != "nesterov":
                    continue
                for part in (f"{ANCHOR}{axis}", f"{MOMENTUM}{axis}"):
                    placements = parameter.stored[Table.PARAMS.value]
                    yield Held(part=part, parameter=parameter, placements=placements)

    def _rounded(self) -> Iterator[Held]:
        for name, parameter in self.plan.parameters.items():
            if parameter.has_master:
                placements = parameter.stored[Table.PARAMS.value]
                for where in self._sites(name):
                    yield Held(part=ROUNDED, parameter=parameter, placements=placements, where=where)

    def _sites(self, name: str) -> Iterator[tuple[tuple[str, int], ...]]:
        """Places on the axes over which replicas of a parameter train apart."""
        axes = [*self.plan.bound.averages.get(name, {})]
        sizes = self._layouts.sizes
        for places in itertools.product(*(range(sizes[axis]) for axis in axes)):
            yield tuple(zip(axes, places, strict=True))
