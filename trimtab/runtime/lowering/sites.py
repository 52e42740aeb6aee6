"""Every block of a network where it runs: the embedding, each layer, the head, with their stages."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.meshes import coordinates
from trimtab.plan.physical import Plan
from trimtab.plan.program import Block, OperatorKind, Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A block at work.

    Args:
        index: In order of computation.
        block: Its program.
        layer: None for embedding and head.
        stage: That holds it.
    """

    index: int
    block: Block
    layer: int | None
    stage: int

    def full_name(self, parameter: str) -> str:
        """Of a parameter, from its name in the block."""
        return parameter if self.layer is None else f"layers.{self.layer}.{parameter}"

    def added_up(self, accumulated: str, update: Mapping[str, Value]) -> str:
        """What a gradient that the block adds up is called in the update: a tied one by its block too."""
        name = f"acc:{self.full_name(accumulated.removeprefix('acc:'))}"
        return name if name in update else f"{name}#{self.block.name}"

    def __str__(self) -> str:
        """``layer 3``, ``head``, as messages say it."""
        return self.block.name if self.layer is None else f"layer {self.layer}"


def sites_of(plan: Plan) -> tuple[Site, ...]:
    """All of them, in order of computation."""
    embedding, *_, head = plan.blocks
    by_layer = {layer: block for block in plan.blocks[1:-1] for layer in block.layers}
    layers = [(by_layer[layer], layer, stage) for layer, stage in enumerate(plan.pipeline.stage_of_layer)]
    found = [(embedding, None, 0), *layers, (head, None, plan.pipeline.num_stages - 1)]
    return tuple(
        Site(index=index, block=block, layer=layer, stage=stage)
        for index, (block, layer, stage) in enumerate(found)
    )


class Stages:
    """Which ranks hold which stages of a plan."""

    def __init__(self, plan: Plan) -> None:
        axis = plan.pipeline.axis
        self.num_stages = plan.pipeline.num_stages
        self._rank_of_stage = plan.pipeline.rank_of_stage
        self._place = [
            coordinates(plan.mesh, rank)[axis] if axis else 0 for rank in range(plan.mesh.num_devices)
        ]

    def holds(self, rank: int, stages: Sequence[int]) -> bool:
        """Whether a rank holds one of some stages."""
        return any(self._rank_of_stage[stage] == self._place[rank] for stage in stages)

    def of(self, rank: int) -> tuple[int, ...]:
        """The stages of a rank."""
        return tuple(stage for stage in range(self.num_stages) if self.holds(rank, [stage]))

    def place(self, rank: int) -> int:
        """Where a rank stands on the pipeline's axis."""
        return self._place[rank]


def update_holders(plan: Plan) -> Mapping[str, frozenset[int]]:
    """For each value of the update the ranks that have it."""
    stages, everyone = Stages(plan), frozenset(range(plan.mesh.num_devices))
    last = plan.pipeline.num_stages - 1

    @functools.cache
    def at(held: tuple[int, ...]) -> frozenset[int]:
        return frozenset(rank for rank in everyone if stages.holds(rank, held))

    found: dict[str, frozenset[int]] = {"num_tokens": everyone, "loss": at((last,))}
    found |= {f"param:{name}": at(parameter.stages) for name, parameter in plan.parameters.items()}
    for name in plan.update.values:
        if name.startswith("acc:") and "~" not in name and "@" not in name and "/" not in name:
            parameter, _, block = name.removeprefix("acc:").partition("#")
            uses = plan.parameters[parameter].stages
            if block:
                uses = (0,) if block == plan.blocks[0].name else (last,)
            found[name] = at(uses)
    for operator in plan.update.operators:
        if operator.kind is OperatorKind.NORM_SQUARE:
            held = everyone
        else:
            each = [found[name] for name in operator.inputs]
            held = each[0].union(*each) if operator.kind is OperatorKind.SUM else each[0].intersection(*each)
        found |= dict.fromkeys(operator.outputs, held)
    return found
