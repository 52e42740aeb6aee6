"""Which ranks run and send alike?"""

from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.plan.physical import Plan
from trimtab.plan.placements import Placements
from trimtab.plan.tables import Table
from trimtab.runtime.lowering.accounting import sent_by_rank
from trimtab.runtime.lowering.extents import Layouts
from trimtab.runtime.lowering.sites import Stages

_Lies = tuple[tuple[str, ...], tuple[int, ...], Placements]
"""Dims, shape and placements."""


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks between which only the numbers differ, in order; the first is traced for all of them."""

    ranks: tuple[int, ...]


def rank_classes(plan: Plan) -> tuple[RankClass, ...]:
    """All ranks of a plan: together if they hold the same stages, pieces of the same real lengths, and send the same.

    So there is one for each stage of a pipeline; for each end of an axis where pieces are uneven; and for each place
    of a route on which places send differently, such as the root of a tree.
    """
    stages, layouts = Stages(plan), Layouts(plan.mesh)
    lies = [lie for lie in dict.fromkeys(_lies(plan)) if _is_uneven(layouts, lie)]
    sent = [sent_by_rank(traffic) for traffic in plan.traffic]
    # Many collectives send alike: what tells ranks apart is told once.
    rows = dict.fromkeys(
        tuple(by_rank.get(rank) for rank in range(plan.mesh.num_devices)) for by_rank in sent
    )
    found: dict[tuple[object, ...], list[int]] = {}
    for rank in range(plan.mesh.num_devices):
        key = (
            stages.place(rank),
            tuple(_real(layouts, lie, rank) for lie in lies),
            tuple(row[rank] for row in rows),
        )
        found.setdefault(key, []).append(rank)
    return tuple(RankClass(tuple(ranks)) for ranks in found.values())


def _lies(plan: Plan) -> Iterator[_Lies]:
    """How everything lies that a rank holds, computes or sends a part of."""
    for values in (*(block.values for block in plan.blocks), plan.update.values):
        for value in values.values():
            yield value.dims, value.shape, value.placements
    for parameter in plan.parameters.values():
        yield parameter.dims, parameter.shape, parameter.stored[Table.PARAMS.value]
        yield parameter.dims, parameter.shape, parameter.computed


def _is_uneven(layouts: Layouts, lies: _Lies) -> bool:
    """Whether some rank has padding: the last one does if any does."""
    extent = layouts.extent(*lies, len(layouts.places) - 1)
    runs = (*extent.dims, extent.flat)
    return not all(run.is_whole for run in runs)


def _real(layouts: Layouts, lies: _Lies, rank: int) -> tuple[int, ...]:
    extent = layouts.extent(*lies, rank)
    return (*(run.real for run in extent.dims), extent.flat.real)
