"""What auto means."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.spec import JobFileError, LoadedJob
from trimtab.spec.constants import auto_microbatch, auto_shares, divisors, rule_of
from trimtab.terms import OnLoss

Load = Callable[..., LoadedJob]


@pytest.mark.parametrize(
    ("batch", "devices", "shares"),
    [
        (32, 1, 4),
        (32, 4, 4),
        (32, 5, 8),
        (96, 3, 4),
        (96, 33, 48),
        (30, 4, 5),
        (6, 2, 6),
        (3, 2, 3),
        (1, 1, 1),
    ],
)
def test_auto_shares(batch: int, devices: int, shares: int) -> None:
    """Otherwise the same job gets other bits in another release."""
    assert auto_shares(batch=batch, devices=devices) == shares


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5000), st.integers(1, 64))
def test_auto_fits_whenever_anything_does(batch: int, devices: int) -> None:
    """Otherwise auto gives what the rules then refuse."""
    shares = auto_shares(batch=batch, devices=devices)
    assert batch % shares == 0
    assert shares >= min(devices, batch)
    microbatch = auto_microbatch(batch // shares)
    assert (batch // shares) % microbatch == 0
    assert 1 <= microbatch <= 8


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3000))
def test_divisors(number: int) -> None:
    """Otherwise the nearest valid value is not valid."""
    assert divisors(number) == [size for size in range(1, number + 1) if number % size == 0]


@pytest.mark.parametrize(
    ("cards", "on_loss"),
    [
        ("", OnLoss.EXACT),
        ("fault_tolerance: {shares: off}", OnLoss.SAME_BATCH),
        ("orchestration: {engine: torchrun}", OnLoss.ROLLBACK),
        ("orchestration: {engine: torchrun}\nfault_tolerance: {shares: off}", OnLoss.ROLLBACK),
        ("fault_tolerance: {on_loss: rescale}", OnLoss.RESCALE),
    ],
)
def test_on_loss_auto_is_the_strongest_possible(
    load: Load, minimal: str, cards: str, on_loss: OnLoss
) -> None:
    """Otherwise a run promises less than it could, or more than it can."""
    job = load(f"{minimal}{cards}\n").job
    assert rule_of(job, is_replicated=True) is on_loss


def test_where_ranks_hold_pieces_auto_goes_back(load: Load, minimal: str) -> None:
    """What a lost rank held exists in checkpoints only; a stronger wish is not weakened in silence."""
    assert rule_of(load(minimal).job, is_replicated=False) is OnLoss.ROLLBACK
    asked = load(f"{minimal}fault_tolerance: {{on_loss: redo}}\n").job
    assert rule_of(asked, is_replicated=False) is OnLoss.REDO


def test_constants_do_not_follow_the_devices_on_resume(load: Load, minimal: str) -> None:
    """Otherwise a resumed run on more devices adds in another order and loses its bits."""
    first = load(minimal + "orchestration: {devices: 2}\n")
    again = load(first.resolved_yaml(), overrides=["orchestration.devices=4"])
    assert again.job.fault_tolerance.shares == first.job.fault_tolerance.shares == 4
    assert again.job.train.microbatch == first.job.train.microbatch == 8
    assert first.origins["fault_tolerance.shares"] == "auto (default)"
    assert (
        load(minimal + "fault_tolerance: {shares: auto}\n").origins["fault_tolerance.shares"]
        == "auto (run.yaml:5)"
    )


def test_ranks_that_share_samples_need_no_share_of_their_own(load: Load, minimal: str) -> None:
    """Eight devices of which four compute one sample together are two replicas: a batch of 4 is enough."""
    text = minimal + (
        "parallelism: |\n  MESH dp 2, tp 4\n  SPLIT batch OVER dp\n  SPLIT heads, mlp OVER tp\n"
    )
    loaded = load(text, overrides=["orchestration.devices=8", "train.batch=4"])
    assert loaded.job.fault_tolerance.shares == 4
    with pytest.raises(JobFileError, match="1 samples for 2 replicas"):
        load(text, overrides=["orchestration.devices=8", "train.batch=1"])
