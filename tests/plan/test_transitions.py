"""From one layout to another: the steps, their order, and what cannot be reached."""

import pytest

from trimtab.plan.placements import PARTIAL, STORED, Placement, Placements, split
from trimtab.plan.program import OperatorKind
from trimtab.plan.transitions import InterleavedError, transitions


def layout(**axes: Placement) -> Placements:
    """Axes in the order in which they cut."""
    return Placements(tuple(axes.items()))


def steps(source: Placements, target: Placements) -> list[tuple[OperatorKind, tuple[str, ...]]]:
    return [(step.kind, step.axes) for step in transitions(source, target)]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (layout(tp=PARTIAL), layout(), [(OperatorKind.ALL_REDUCE, ("tp",))]),
        (layout(tp=PARTIAL), layout(tp=split("sequence")), [(OperatorKind.REDUCE_SCATTER, ("tp",))]),
        (layout(tp=split("heads")), layout(), [(OperatorKind.ALL_GATHER, ("tp",))]),
        (layout(cp=split("sequence")), layout(cp=split("heads")), [(OperatorKind.ALL_TO_ALL, ("cp",))]),
        (layout(), layout(tp=split("heads")), [(OperatorKind.SLICE, ("tp",))]),
        (layout(dp=split("batch")), layout(dp=split("batch")), []),
    ],
)
def test_one_step(
    source: Placements, target: Placements, expected: list[tuple[OperatorKind, tuple[str, ...]]]
) -> None:
    """The table of the module, row by row."""
    assert steps(source, target) == expected


def test_sums_over_several_axes_are_one() -> None:
    """One collective over all of them instead of one after the other."""
    assert steps(layout(dp=PARTIAL, cp=PARTIAL), layout()) == [(OperatorKind.ALL_REDUCE, ("dp", "cp"))]


def test_pieces_are_joined_from_the_inside_out() -> None:
    """Sequence pieces of tp lie inside those of cp."""
    nested = layout(cp=split("sequence"), tp=split("sequence"))
    assert steps(nested, layout()) == [(OperatorKind.ALL_GATHER, ("tp",)), (OperatorKind.ALL_GATHER, ("cp",))]
    assert steps(nested, layout(cp=split("sequence"))) == [(OperatorKind.ALL_GATHER, ("tp",))]


def test_the_outer_cut_cannot_be_joined_alone() -> None:
    """Every second piece would be somebody else's."""
    nested = layout(tp=split("sequence"), cp=split("sequence"))
    with pytest.raises(InterleavedError, match="tp"):
        transitions(nested, layout(cp=split("sequence")))


def test_storage_in_another_order_is_joined_first() -> None:
    """Pieces of pieces cannot be turned inside out."""
    found = steps(layout(b=STORED), layout(a=STORED, b=STORED))
    assert found == [
        (OperatorKind.ALL_GATHER, ("b",)),
        (OperatorKind.SLICE, ("a", "b")),
    ]


def test_every_result_is_the_target() -> None:
    """The last step ends where it was to end."""
    source = layout(dp=PARTIAL, tp=split("mlp"), cp=split("sequence"))
    target = layout(cp=split("sequence"), dp=STORED)
    assert transitions(source, target)[-1].result.is_same(target)
