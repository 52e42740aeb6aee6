"""What a rank holds and sends of a stored class, and which forward passes are refused."""

import pytest
import torch

from tests.runtime.stored.crews import Rank, job_of, on_ranks, storage
from trimtab.plan.module_storage import StepShape, transfers_of
from trimtab.plan.tables import Table
from trimtab.spec import FaultKind, Injection
from trimtab.terms import InputError

EVERYTHING = "MESH dp 3; STORE params, grads, states OVER dp"


def live_bytes(tensors) -> int:
    """Memory behind tensors, each storage once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def parameter_bytes(rank: Rank) -> int:
    """Memory behind the parameters that the user's class sees."""
    return live_bytes(rank.module.parameters.values())


def test_a_rank_keeps_its_pieces_only(tmp_path) -> None:
    """Before the first step, between steps and after a score: what explain says, and nothing whole besides."""
    job = job_of("Plain", devices=3, strategy=EVERYTHING)
    pieces = storage(job)

    def act(rank: Rank) -> object:
        seen = [(parameter_bytes(rank), *map(live_bytes, rank.state.held().values()))]
        rank.steps(2)
        with torch.no_grad():
            rank.model.loss_sum(torch.zeros(1, 6, dtype=torch.int64), torch.zeros(1, 6, dtype=torch.int64))
        seen.append((parameter_bytes(rank), *map(live_bytes, rank.state.held().values())))
        return seen, list(rank.state.held())

    for seen, names in on_ranks(job, tmp_path, act):
        assert names == ["params", "gathered", "grads", "states"]
        for of_user, params, gathered, grads, states in seen:
            assert (of_user, gathered, grads) == (0, 0, 0)
            assert params == 4 * pieces.held_elements(Table.PARAMS)
            assert states == 8 * pieces.held_elements(Table.STATES)


def test_layers_are_whole_one_at_a_time(tmp_path) -> None:
    """While a layer computes, forward or backward, the other layers lie in pieces."""
    job = job_of("Plain", devices=3, strategy=EVERYTHING)
    most = 4 * storage(job).gathered_elements()

    def act(rank: Rank) -> object:
        seen = []

        def look(*_: object) -> None:
            seen.append(parameter_bytes(rank))

        for layer in rank.model.module.layers:
            layer.up.register_forward_hook(look)
            layer.up.register_full_backward_hook(look)
        rank.step(0)
        return seen

    for seen in on_ranks(job, tmp_path, act):
        assert len(seen) == 2 * 3 * 4, "three layers, forward and backward, in four microbatches"
        assert {*seen} == {most}


@pytest.mark.parametrize(
    "stored", ["states", "grads", "grads, states", "params, grads, states WHERE layer > 0"]
)
def test_a_step_sends_what_the_formula_says(tmp_path, stored: str) -> None:
    """By the rank with most to do; explain tells the same numbers."""
    job = job_of("Plain", devices=3, strategy=f"MESH dp 3; STORE {stored} OVER dp")
    shape = StepShape.of(batch=8, microbatch=1, num_parts=4, num_ranks=3)
    expected = sum(transfer.sent_bytes for transfer in transfers_of(storage(job), shape))

    def act(rank: Rank) -> object:
        rank.step(0)
        rank.step(1)
        return rank.runner.work.sent_bytes

    assert max(on_ranks(job, tmp_path, act)) == expected


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Peeking", "used while it lay in pieces"),
        ("Counting", "forward writes the buffers shift"),
        ("Routed", "which layers are used depends on the samples"),
        ("Giving", "layers.0 returns its own parameter"),
    ],
)
def test_what_cannot_keep_the_promise_is_refused(tmp_path, name: str, reason: str) -> None:
    """A wrong number, or a rank that waits for ever, would be the alternative."""
    job = job_of(name, devices=2, strategy="MESH dp 2; STORE params OVER dp")

    def act(rank: Rank) -> object:
        with pytest.raises(InputError, match=reason):
            rank.steps(3)
        return True

    assert on_ranks(job, tmp_path, act) == [True, True]


def test_hooks_that_would_be_lost_are_refused(tmp_path) -> None:
    """A gradient that is not halved any more would train another model."""
    job = job_of("Listening", devices=1, strategy="MESH dp 1; STORE params OVER dp")
    with pytest.raises(InputError, match=r"layers\.1\.up\.weight has hooks"):
        on_ranks(job, tmp_path, lambda rank: None)


def test_overwriting_what_the_backward_pass_needs_is_still_told(tmp_path) -> None:
    """Torch tells it for tensors that it keeps itself; here they are handed through."""
    job = job_of("Overwriting", devices=1, strategy="MESH dp 1; STORE params OVER dp")

    def act(rank: Rank) -> object:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            rank.step(0)
        return True

    assert on_ranks(job, tmp_path, act) == [True]


def test_a_step_that_is_poisoned_changes_nothing(tmp_path) -> None:
    """One rank's nan reaches the norm of all, and no weight."""
    job = job_of("Plain", devices=2, strategy="MESH dp 2; STORE params OVER dp")

    def act(rank: Rank) -> object:
        before = rank.state.digest(rank.group)
        result = rank.step(0)
        return result.is_applied, rank.state.digest(rank.group) == before, rank.step(1).is_applied

    fault = Injection(kind=FaultKind.NAN, rank=1, step=0)
    assert on_ranks(job, tmp_path, act, (fault,)) == [(False, True, True)] * 2
