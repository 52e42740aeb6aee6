"""The step transaction on one rank: one denominator, one factor, whatever the cut into shares and microbatches."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from trimtab.catalog import network
from trimtab.policy.spikes import SpikeRules
from trimtab.runtime.decoder import Decoder
from trimtab.runtime.faults import Faults
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.models import Model, build_model
from trimtab.runtime.optimizers import Sgd, build_optimizer
from trimtab.runtime.process_groups import Group, Interrupt
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.step import Requests, StepResult, StepRules, StepRunner
from trimtab.spec import FaultKind, Injection, SpikeAnswer
from trimtab.terms import ComputeType, Phase

BATCH, SEQUENCE, VOCAB = 8, 16, 101


class Unwatched:
    """A watch that nobody reads."""

    def enter(self, phase: Phase, step: int) -> None:
        pass

    def move(self) -> None:
        pass

    def raise_if_fenced(self) -> None:
        pass

    def waiting(self, operation: str = "") -> "Unwatched":
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def ragged_batch(step: int, valid: list[int]) -> tuple[Tensor, Tensor]:
    """A batch whose samples have these numbers of valid targets."""
    rng = np.random.Generator(np.random.PCG64(step))
    tokens = torch.from_numpy(rng.integers(0, VOCAB, (BATCH, SEQUENCE)))
    targets = torch.from_numpy(rng.integers(0, VOCAB, (BATCH, SEQUENCE)))
    for row, count in enumerate(valid):
        targets[row, count:] = -100
    return tokens, targets


RAGGED = [16, 3, 11, 1, 16, 7, 2, 9]


def make_runner(
    folder: Path,
    *,
    num_shares: int,
    microbatch: int,
    clip: float | None = None,
    batches: Callable[[int], tuple[Tensor, Tensor]] = lambda step: ragged_batch(step, RAGGED),
    injections: tuple[Injection, ...] = (),
    spikes: SpikeAnswer = SpikeAnswer.OFF,
) -> tuple[StepRunner, FlatState, Model]:
    """One rank that owns everything, with plain gradient descent."""
    torch.set_num_threads(1)
    keyed = KeyedRandom()
    net = network("gpt-3m", layers=2, embed=32, heads=2, mlp=64, vocab=VOCAB, context=SEQUENCE)
    model = build_model(
        net, arguments={}, seed=3, keyed=keyed, compute=ComputeType.FP32, is_cut_into_shares=True
    )
    assert isinstance(model.module, Decoder)
    state = FlatState(model.logical_parameters())
    decayed, others = state.groups(state.parameters)
    optimizer = build_optimizer(Sgd(lr=0.1), decayed=[decayed], undecayed=[others])

    def load(step: int, first: int, count: int) -> list[tuple[Tensor, Tensor]]:
        tokens, targets = (part[first : first + count] for part in batches(step))
        return list(zip(torch.split(tokens, microbatch), torch.split(targets, microbatch), strict=True))

    runner = StepRunner(
        rules=StepRules(
            num_shares=num_shares,
            batch=BATCH,
            seed=0,
            clip=clip,
            max_devices=1,
            spikes=SpikeRules(answer=spikes),
        ),
        model=model,
        state=state,
        optimizer=optimizer,
        keyed=keyed,
        load=load,
        learning_rate=lambda step: 0.1,
        recorder=Recorder(folder, rank=0, incarnation=num_shares * 100 + microbatch),
        faults=Faults(injections, rank=0, folder=folder, announce=lambda fields: None),
        watch=Unwatched(),  # type: ignore[arg-type]  # its waiting() is its own context manager
    )
    group = Group(members=(0,), rank=0, epoch=1, store=None, kind="cpu", interrupt=Interrupt())
    runner.enter(group, step=0, owners=(0,) * num_shares)
    return runner, state, model


def run_steps(runner: StepRunner, num_steps: int) -> list[StepResult]:
    return [runner.run(step, Requests()) for step in range(num_steps)]


def assert_curves_match(found: list[StepResult], expected: list[StepResult], tolerance: float) -> None:
    """Loss and norm: loss alone hides errors in the scale of gradients."""
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.targets == theirs.targets
        assert mine.loss == pytest.approx(theirs.loss, rel=tolerance)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=tolerance)


@pytest.mark.parametrize(("num_shares", "microbatch"), [(1, 4), (1, 1), (2, 2), (4, 1), (8, 1), (4, 2)])
def test_the_cut_of_a_ragged_batch_does_not_weigh_samples(
    tmp_path: Path, num_shares: int, microbatch: int
) -> None:
    """NUM-01, NUM-02: averaging each microbatch or share by its own count would weigh short samples more."""
    whole, _, _ = make_runner(tmp_path, num_shares=1, microbatch=8)
    cut, _, _ = make_runner(tmp_path, num_shares=num_shares, microbatch=microbatch)
    assert_curves_match(run_steps(cut, 10), run_steps(whole, 10), 1e-5)


@pytest.mark.parametrize(("num_shares", "microbatch"), [(1, 8), (4, 1)])
def test_the_rate_is_asked_for_once_a_step(tmp_path: Path, num_shares: int, microbatch: int) -> None:
    """NUM-14: a schedule that advances with every microbatch would end its warm-up early."""
    runner, _, _ = make_runner(tmp_path, num_shares=num_shares, microbatch=microbatch)
    asked: list[int] = []
    runner._learning_rate = lambda step: asked.append(step) or 0.1  # type: ignore[func-returns-value]
    run_steps(runner, 4)
    assert asked == [0, 1, 2, 3]


def test_gradient_is_the_mean_over_valid_tokens(tmp_path: Path) -> None:
    """Per parameter, against plain torch on the whole batch: one factor, applied once."""
    runner, state, model = make_runner(tmp_path, num_shares=4, microbatch=1)
    before = state.parameters.clone()
    tokens, targets = ragged_batch(0, RAGGED)
    parameters = dict(model.logical_parameters())
    loss, count = model.loss_sum(tokens, targets)
    grads = torch.autograd.grad(loss / count, list(parameters.values()))
    result = runner.run(0, Requests())
    after = state.parameters
    for (name, _), grad in zip(parameters.items(), grads, strict=True):
        moved = (state.named_views(before)[name] - state.named_views(after)[name]) / 0.1
        torch.testing.assert_close(moved, grad, rtol=1e-4, atol=1e-6)
    assert result.targets == count == sum(RAGGED)


def test_clipping_scales_the_update_to_the_clipped_norm(tmp_path: Path) -> None:
    """The norm that is logged is the norm before clipping, and the step has exactly the clipped length."""
    runner, state, _ = make_runner(tmp_path, num_shares=2, microbatch=2, clip=0.25)
    before = state.parameters.clone()
    result = runner.run(0, Requests())
    assert result.grad_norm is not None
    assert result.grad_norm > 0.25
    length = float(torch.linalg.vector_norm((before - state.parameters).double())) / 0.1
    assert length == pytest.approx(0.25, rel=1e-4)


def test_a_step_without_a_valid_token_changes_nothing(tmp_path: Path) -> None:
    """Dividing by zero would poison every weight."""
    runner, state, _ = make_runner(
        tmp_path, num_shares=2, microbatch=2, batches=lambda s: ragged_batch(s, [0] * BATCH)
    )
    before = state.parameters.clone()
    result = runner.run(0, Requests())
    assert (result.is_applied, result.loss, result.targets) == (False, None, 0)
    assert torch.equal(before, state.parameters)


def test_a_share_without_tokens_adds_zero(tmp_path: Path) -> None:
    """The last batch of the last epoch has empty samples: they must weigh nothing."""
    valid = [*RAGGED[:4], 0, 0, 0, 0]
    halves, _, _ = make_runner(tmp_path, num_shares=2, microbatch=4, batches=lambda s: ragged_batch(s, valid))
    whole, _, _ = make_runner(tmp_path, num_shares=1, microbatch=4, batches=lambda s: ragged_batch(s, valid))
    assert_curves_match(run_steps(halves, 3), run_steps(whole, 3), 1e-6)


def test_nan_is_caught_before_the_update(tmp_path: Path) -> None:
    """CKP-15: a poisoned update would be saved over every good checkpoint."""
    nan = Injection(kind=FaultKind.NAN, rank=0, step=1)
    runner, state, _ = make_runner(tmp_path, num_shares=2, microbatch=4, injections=(nan,))
    run_steps(runner, 1)
    before = state.parameters.clone()
    result = runner.run(1, Requests())
    assert not result.is_applied
    assert result.grad_norm is not None
    assert math.isnan(result.grad_norm)
    assert torch.equal(before, state.parameters)
    assert runner.run(2, Requests()).is_applied


def test_requests_travel_with_the_gradients(tmp_path: Path) -> None:
    """CKP-21: a rank that stops alone leaves the others in a collective."""
    runner, _, _ = make_runner(tmp_path, num_shares=2, microbatch=4)
    assert not runner.run(0, Requests()).stop_agreed
    asked = runner.run(1, Requests(stop=True, border=True))
    assert asked.stop_agreed
    assert asked.border_agreed
    assert not runner.run(2, Requests()).stop_agreed, "a request holds for one step"


def test_gradients_are_kept_until_the_commit(tmp_path: Path) -> None:
    """They are what survivors bring into the next epoch; after the commit they are worth nothing."""
    broken = Injection(kind=FaultKind.DISCONNECT, rank=0, step=0, phase=Phase.GATHER)
    runner, state, _ = make_runner(tmp_path, num_shares=4, microbatch=2, injections=(broken,))
    before = state.parameters.clone()
    with pytest.raises(Exception, match="disconnect"):
        runner.run(0, Requests())
    assert runner.held(0) == (0, 1, 2, 3)
    assert torch.equal(before, state.parameters)
    runner.leave()
    group = Group(members=(0,), rank=0, epoch=2, store=None, kind="cpu", interrupt=Interrupt())
    runner.enter(group, step=0, owners=(0, 0, 0, 0))
    again = runner.run(0, Requests())
    assert again.is_applied
    assert runner.work.reused == [0, 1, 2, 3]
    assert runner.work.computed == []
    assert runner.held(1) == ()


def test_what_is_ordinary_is_forgotten_with_the_steps_that_were(tmp_path: Path) -> None:
    """After going back to the beginning the first losses are high again: each would be a spike, and gone back from."""
    runner, _, _ = make_runner(tmp_path, num_shares=2, microbatch=4)
    results = run_steps(runner, 4)
    assert [result.step for result in runner._applied] == [0, 1, 2, 3]
    runner.rewind(2)
    assert list(runner._applied) == results[:2]


@pytest.mark.parametrize(
    ("answer", "is_spike", "is_applied"),
    [(SpikeAnswer.OFF, False, True), (SpikeAnswer.MARK, True, True), (SpikeAnswer.SKIP, True, False)],
)
def test_a_spike_is_judged_before_the_step_is_applied(
    tmp_path: Path, answer: SpikeAnswer, is_spike: bool, is_applied: bool
) -> None:
    """S-CKP-15 for numbers that are finite: afterwards every weight has moved."""
    flip = Injection(kind=FaultKind.BIT_FLIP, rank=0, step=17, element=40)
    runner, state, _ = make_runner(
        tmp_path, num_shares=2, microbatch=4, clip=1.0, injections=(flip,), spikes=answer
    )
    assert not any(result.spike for result in run_steps(runner, 17)), "a run that learns has no spikes"
    before = state.parameters.clone()
    result = runner.run(17, Requests())
    assert result.grad_norm is not None
    assert 1e20 < result.grad_norm < math.inf
    assert (bool(result.spike), result.is_applied) == (is_spike, is_applied)
    assert torch.equal(before, state.parameters) != is_applied


def test_a_step_whose_samples_are_left_out_changes_nothing(tmp_path: Path) -> None:
    """What is asked for by one rank holds for all: it travels with the gradients."""
    runner, state, _ = make_runner(tmp_path, num_shares=2, microbatch=4)
    before = state.parameters.clone()
    result = runner.run(0, Requests(skip=True))
    assert (result.is_left_out, result.is_applied) == (True, False)
    assert torch.equal(before, state.parameters)
