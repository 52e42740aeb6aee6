"""Do tokens reach their experts and come back, each expert within its slots?"""

import pytest
import torch

from trimtab.runtime.lowering.experts import EVERYTHING, Region, capacity, combine, dispatch, route
from trimtab.runtime.lowering.extents import Run

EXPERTS, TOP_K = 4, 2
ALL = Run(0, EXPERTS, EXPERTS)


def _logits() -> torch.Tensor:
    return torch.randn((2, 8, EXPERTS), generator=torch.Generator().manual_seed(0))


def test_gates_are_the_softmax_over_the_chosen() -> None:
    """A gate over all experts would scale every token down."""
    logits = torch.tensor([[[2.0, 1.0, 0.0, -1.0]]])
    expected = torch.softmax(torch.tensor([2.0, 1.0]), 0)
    found = route(logits, EVERYTHING, TOP_K)[0, 0]
    torch.testing.assert_close(found, torch.tensor([*expected, 0.0, 0.0]))


def test_no_expert_takes_more_than_its_slots() -> None:
    """Tokens without a slot would overwrite others."""
    crowded = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(1, 8, 4).contiguous()
    gates = route(crowded, EVERYTHING, TOP_K)
    assert capacity(8, TOP_K, EXPERTS) == 4
    assert (gates > 0).sum((0, 1)).tolist() == [4, 4, 0, 0]
    assert (gates[0, :4] > 0).all(0).tolist() == [True, True, False, False]  # Earlier tokens first.


@pytest.mark.parametrize(
    "regions", [EVERYTHING, (Region(slice(0, 2), slice(0, 4)), Region(slice(0, 2), slice(4, 8)))]
)
def test_experts_that_do_nothing_give_tokens_back(regions: tuple[Region, ...]) -> None:
    """A token that comes back in another's place trains on the wrong loss."""
    gates = route(_logits(), regions, TOP_K)
    x = torch.randn((2, 8, 6), generator=torch.Generator().manual_seed(1))
    given = dispatch(x, gates, regions, ALL, TOP_K)
    found = combine(given, gates, regions, ALL)
    torch.testing.assert_close(found, x * gates.sum(-1, keepdim=True))


def test_each_rank_adds_its_own_experts() -> None:
    """The parts of ranks that hold other experts must add up to what one device gives."""
    gates = route(_logits(), EVERYTHING, TOP_K)
    x = torch.randn((2, 8, 6), generator=torch.Generator().manual_seed(1))
    whole = dispatch(x, gates, EVERYTHING, ALL, TOP_K)
    total = torch.zeros_like(x)
    for own in (Run(0, 2, 2), Run(2, 2, 2)):
        given = dispatch(x, gates, EVERYTHING, own, TOP_K)
        assert torch.equal(given, whole[own.start : own.start + 2])
        total += combine(given * 3, gates, EVERYTHING, own)
    torch.testing.assert_close(total, combine(whole * 3, gates, EVERYTHING, ALL))


def test_a_region_routes_by_itself() -> None:
    """Ranks cannot know how full an expert is with tokens of others."""
    logits = _logits()
    regions = (Region(slice(0, 1), slice(0, 8)), Region(slice(1, 2), slice(0, 8)))
    together = route(logits, regions, TOP_K)
    for at in range(2):
        assert torch.equal(together[at : at + 1], route(logits[at : at + 1], EVERYTHING, TOP_K))


def test_gradients_reach_the_router() -> None:
    """A router without gradient never learns where to send tokens."""
    logits = _logits().requires_grad_()
    outputs = torch.randn((EXPERTS, 8, 6), generator=torch.Generator().manual_seed(2))
    combine(outputs, route(logits, EVERYTHING, TOP_K), EVERYTHING, ALL).square().sum().backward()
    assert logits.grad is not None
    assert (logits.grad.abs().sum((0, 1)) > 0).all()


def test_no_shape_depends_on_the_gates() -> None:
    """What waits for how many tokens an expert has cannot be planned, and waits on every step."""
    with torch.device("meta"):
        gates = route(torch.zeros(2, 8, EXPERTS), EVERYTHING, TOP_K)
        given = dispatch(torch.zeros(2, 8, 6), gates, EVERYTHING, ALL, TOP_K)
        found = combine(given, gates, EVERYTHING, ALL)
    assert (tuple(given.shape), tuple(found.shape)) == ((EXPERTS, 8, 6), (2, 8, 6))
