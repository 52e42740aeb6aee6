"""Who sends how much to whom on each route: small groups, message by message."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.collectives import ROUTES, Request, RouteError, sends_of
from trimtab.plan.program import OperatorKind


def request(kind: OperatorKind, ranks: int, *, elements: int = 24, per_node: int = 2) -> Request:
    """A collective of ranks that stand ``per_node`` on each node."""
    piece = elements if kind is OperatorKind.ALL_GATHER else -(-elements // ranks)
    places = tuple((rank // per_node, None, 0) for rank in range(ranks))
    return Request(kind=kind, elements=elements, piece=piece, places=places)


@pytest.mark.parametrize("route", [*ROUTES, "hierarchical"])
def test_messages_of_a_route(route: str, check_golden: Any) -> None:
    """What a route sends is what every figure of a plan is made of."""
    lines = []
    for kind in (
        OperatorKind.ALL_REDUCE,
        OperatorKind.REDUCE_SCATTER,
        OperatorKind.ALL_GATHER,
        OperatorKind.ALL_TO_ALL,
    ):
        lines.append(f"{kind.value} of 24 elements on 4 ranks, two on each node")
        try:
            sends = sends_of(route, request(kind, 4), ("node",) if route == "hierarchical" else ())
        except RouteError as error:
            lines.append(f"  refused: {error}")
            continue
        totals: dict[tuple[int, int], int] = defaultdict(int)
        for send in sends:
            totals[send.source, send.target] += send.elements
        lines += [f"  {source} -> {target}: {size}" for (source, target), size in sorted(totals.items())]
    check_golden(f"routes/{route}.txt", "\n".join(lines) + "\n")


@given(ranks=st.integers(2, 17), elements=st.integers(1, 10_000), route=st.sampled_from(sorted(ROUTES)))
def test_a_sum_sends_at_least_what_it_must(ranks: int, elements: int, route: str) -> None:
    """Every rank's part must leave it, and the sum must reach it: nothing sends less than 2 (n - 1) pieces."""
    asked = request(OperatorKind.ALL_REDUCE, ranks, elements=elements)
    try:
        sends = sends_of(route, asked)
    except RouteError:
        assert route == "recursive_doubling"
        assert ranks & (ranks - 1)
        return
    assert sum(send.elements for send in sends) >= 2 * (ranks - 1) * elements
    assert all(send.source != send.target for send in sends)
    assert {send.target for send in sends} == set(range(ranks))


def test_a_hierarchy_spares_the_slow_link() -> None:
    """What crosses nodes is a piece, not the whole tensor."""
    asked = request(OperatorKind.ALL_REDUCE, 16, elements=1600, per_node=8)
    across = {
        route: sum(
            send.elements
            for send in sends_of(route, asked, ("node",) if route == "hierarchical" else ())
            if send.source // 8 != send.target // 8
        )
        for route in ("reduce_scatter", "hierarchical")
    }
    assert across["hierarchical"] * 8 == across["reduce_scatter"]


def test_one_rank_sends_nothing() -> None:
    """An axis of size 1 costs nothing."""
    assert sends_of("ring", request(OperatorKind.ALL_REDUCE, 1)) == ()
