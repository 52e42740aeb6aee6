import pytest

from tests.plan.conftest import PlanOf
from trimtab.catalog import Level, cluster
from trimtab.cost.communication import LAUNCH_S, LINK_SHARE, CollectiveTime, collective_time, hops
from trimtab.plan.explanation import collective_uses, rank_groups
from trimtab.plan.program import OperatorKind, Transfer

H100 = cluster("512xH100")
NODE, SITE = H100.link(Level.NODE), H100.link(Level.SITE)


def time_of_sum(plan_of: PlanOf, text: str, devices: int) -> tuple[int, CollectiveTime]:
    """Payload and time of the sum of gradients of a plan on H100s."""
    plan = plan_of(text, devices=devices, batch=max(32, devices))
    (uses, *_) = collective_uses(plan, rank_groups(plan))
    use = next(use for use in uses if use.traffic.operator.because.reason == "sum of gradients")
    return use.traffic.payload_bytes, collective_time(use, H100)


def test_a_ring_inside_a_node_by_hand(plan_of: PlanOf) -> None:
    """14 hops over NVLink, and 2 x 7/8 of the bytes over a link that reaches 82 %."""
    size, found = time_of_sum(plan_of, "REDUCE grads OVER dp USING ring", 8)
    expected = LAUNCH_S + 14 * NODE.latency_s + 2 * 7 * -(-size // 8) / (NODE.bytes_per_s * LINK_SHARE)
    assert found.level is Level.NODE
    assert found.seconds == pytest.approx(expected, rel=1e-6)


def test_a_ring_over_nodes_is_as_slow_as_its_border(plan_of: PlanOf) -> None:
    """One rank of each node carries everything over its one link."""
    size, found = time_of_sum(plan_of, "REDUCE grads OVER dp USING ring", 16)
    expected = LAUNCH_S + 30 * SITE.latency_s + 2 * 15 * -(-size // 16) / (SITE.bytes_per_s * LINK_SHARE)
    assert found.level is Level.SITE
    assert found.seconds == pytest.approx(expected, rel=1e-6)


def test_the_backend_spreads_what_crosses_the_border(plan_of: PlanOf) -> None:
    """Eight ranks of a node have eight links to other nodes: a native sum uses them all."""
    size, found = time_of_sum(plan_of, "REDUCE grads OVER dp USING native", 16)
    across = 2 * 15 * -(-size // 16) / 8
    expected = LAUNCH_S + 8 * SITE.latency_s + across / (SITE.bytes_per_s * LINK_SHARE)
    assert found.seconds == pytest.approx(expected, rel=1e-3)
    _, ring = time_of_sum(plan_of, "REDUCE grads OVER dp USING ring", 16)
    assert found.seconds < ring.seconds


def test_hierarchical_spares_the_slow_link(plan_of: PlanOf) -> None:
    """Each rank sends an eighth over the border, after a scatter inside its node."""
    _, hierarchical = time_of_sum(plan_of, "REDUCE grads OVER dp USING hierarchical(node)", 16)
    _, ring = time_of_sum(plan_of, "REDUCE grads OVER dp USING ring", 16)
    assert hierarchical.seconds < ring.seconds


def test_half_the_bytes_take_less(plan_of: PlanOf) -> None:
    """A wire type that does not change the time would be a knob without a wire."""
    _, full = time_of_sum(plan_of, "REDUCE grads OVER dp USING ring", 16)
    _, half = time_of_sum(plan_of, "REDUCE grads OVER dp USING ring IN bf16", 16)
    assert half.seconds < full.seconds


@pytest.mark.parametrize(
    ("kind", "route", "ranks", "expected"),
    [
        (OperatorKind.ALL_REDUCE, "ring", 8, 14),
        (OperatorKind.ALL_GATHER, "ring", 8, 7),
        (OperatorKind.ALL_REDUCE, "tree", 8, 6),
        (OperatorKind.ALL_REDUCE, "recursive_doubling", 8, 3),
        (OperatorKind.REDUCE_SCATTER, "reduce_scatter", 8, 1),
        (OperatorKind.ALL_REDUCE, "reduce_scatter", 8, 2),
        (OperatorKind.ALL_REDUCE, "native", 2, 2),
        (OperatorKind.ALL_REDUCE, "native", 512, 18),
        (OperatorKind.ALL_TO_ALL, "native", 8, 1),
        (OperatorKind.SEND, "native", 2, 1),
    ],
)
def test_messages_one_after_the_other(kind: OperatorKind, route: str, ranks: int, expected: int) -> None:
    """Latency is what small tensors pay."""
    assert hops(kind, Transfer(axes=("dp",), route=route), ranks) == expected
