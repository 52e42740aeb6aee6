"""The ladder of spikes: what is one, and which rung is climbed."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy.spikes import SpikeLimits, SpikeRules, decide_spike, spike_limits, spike_reason
from trimtab.spec import SpikeAnswer

CALM = [2.0 + 0.05 * math.sin(step) for step in range(64)]


def rules(answer: str = "mark", **changes: float) -> SpikeRules:
    return SpikeRules(answer=SpikeAnswer(answer), **changes)  # type: ignore[arg-type]


def test_blooms_spike_is_one_and_its_neighbours_are_not() -> None:
    """A gradient norm that went from 0.24 to 960 in five steps, among steps that fluctuate by a third."""
    chance = random.Random(3)
    norms = [0.24 * chance.uniform(0.7, 1.4) for _ in range(64)]
    limits = spike_limits(CALM, norms, rules())
    assert spike_reason(2.0, 960.0, limits).startswith("the gradient norm is 960, above")
    assert spike_reason(2.0, max(norms), limits) == ""


def test_loss_and_norm_are_both_named() -> None:
    """A loss spike alone may be a batch; both together rarely are."""
    limits = SpikeLimits(loss=3.0, grad_norm=1.0)
    assert spike_reason(9.0, 5.0, limits) == "the loss is 9, above 3 and the gradient norm is 5, above 1"


def test_a_run_that_begins_has_no_spikes() -> None:
    """Its loss falls by itself, and nothing is known yet."""
    assert spike_limits(CALM[:15], CALM[:15], rules()) == SpikeLimits()


def test_noise_after_a_calm_stretch_is_none() -> None:
    """Where all deviations are nearly 0, a plain z-score calls everything a spike."""
    flat = [2.0] * 64
    assert spike_reason(2.1, 2.1, spike_limits(flat, flat, rules())) == ""


@given(st.integers(0, 2**32))
def test_ordinary_noise_is_almost_never_one(seed: int) -> None:
    """Normal losses: one in tens of thousands lies above four deviations."""
    chance = random.Random(seed)
    losses = [chance.gauss(3.0, 0.1) for _ in range(64)]
    limits = spike_limits(losses, losses, rules())
    assert limits.loss > 3.0 + 2 * 0.1
    assert limits.grad_norm > limits.loss


def test_what_is_off_is_off() -> None:
    """A user who wants none of it must get none of it."""
    assert spike_limits(CALM, CALM, rules("off")) == SpikeLimits()


@pytest.mark.parametrize(
    ("answer", "is_skipped", "goes_back"),
    [("mark", False, False), ("skip", True, False), ("rollback", True, True)],
)
def test_each_rung(answer: str, is_skipped: bool, goes_back: bool) -> None:
    """S-CKP-15: the last clean one stays in every case, or it is rotated out before anybody looks."""
    found = decide_spike(21, "the loss is 9, above 3", [5, 10, 15, 20], rules(answer, suspect=8))
    assert (found.suspect, found.pinned) == ((15, 20), 10)
    assert (found.is_skipped, found.goes_back) == (is_skipped, goes_back)
    assert found.reason.startswith(
        "step 21 is a spike: the loss is 9, above 3; checkpoints 15, 20 are suspect;"
    )


def test_without_a_clean_checkpoint_the_way_back_is_the_beginning() -> None:
    """Going back to a suspect one would bring the spike along."""
    found = decide_spike(9, "x", [8], rules("rollback"))
    assert (found.suspect, found.pinned) == ((8,), None)
    assert "all go back to the beginning" in found.reason


def test_going_back_again_and_again_ends() -> None:
    """A run whose data are bad for a while would go back for ever, and pay each time."""
    before = [20, 30, 40]
    found = decide_spike(45, "x", [8], rules("rollback"), gone_back_from=before)
    assert (found.goes_back, found.is_skipped) == (False, True)
    assert "nobody goes back, for 3 spikes near it were gone back from" in found.reason
    assert decide_spike(145, "x", [8], rules("rollback"), gone_back_from=before).goes_back
