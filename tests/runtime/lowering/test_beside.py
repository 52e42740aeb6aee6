"""Do sums beside the backward pass give the same bits, leave at the same places, and end with the rank?"""

import gc
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.plan.test_early_sums import early_at
from tests.runtime.lowering.small_plans import ROTARY, small_plan
from trimtab.plan.lifetimes import sums_in_place
from trimtab.plan.physical import Plan
from trimtab.plan.program import Phase
from trimtab.runtime.errors import CollectiveError
from trimtab.runtime.lowering import Crew, Rank, Rules, Wires
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.lowering.lanes import Lane
from trimtab.runtime.lowering.measurement import StepTimes
from trimtab.runtime.lowering.measurement.times import Stopwatch, TimedWires
from trimtab.runtime.lowering.tracing.silent_transport import SilentTransport
from trimtab.runtime.lowering.verification import ragged_batch
from trimtab.runtime.lowering.wires import Count, Sent
from trimtab.runtime.optimizers import AdamW

STEPS = 3

STORED = "STORE params, grads, states OVER dp"
PLANS = {
    "native buckets": (2, "MESH dp 2\nREDUCE grads OVER dp BUCKET 16KB", {}),
    "routes": (
        4,
        "MESH dp 4\nREDUCE grads OVER dp USING tree BUCKET 16KB\nREDUCE grads WHERE layer < 2 OVER dp USING ring BUCKET 8KB",
        {},
    ),
    "compressed": (
        2,
        "MESH dp 2\nREDUCE grads OVER dp COMPRESS int8\n"
        "REDUCE grads WHERE dims LIKE '%,%' OVER dp COMPRESS powersgd(2)",
        {},
    ),
    "pieces over two axes": (
        4,
        "MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\nSTORE states OVER dp\nREDUCE grads OVER replica, dp BUCKET 16KB",
        {},
    ),
    "stages": (
        4,
        "MESH pp 2, dp 2\nSPLIT layers OVER pp USING zbv MICROBATCHES 4\nREDUCE grads OVER dp BUCKET 8KB",
        {},
    ),
    "everything in pieces": (2, f"MESH dp 2\n{STORED}\nRECOMPUTE activations", {}),
    "pieces of pieces": (
        4,
        "MESH a 2, b 2\nSPLIT batch OVER a, b\nSTORE params, grads, states OVER a, b\n"
        "STORE params, grads, states WHERE layer < 2 OVER b",
        {},
    ),
    "stages in pieces": (
        4,
        f"MESH pp 2, dp 2\nSPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 4\n{STORED}",
        {},
    ),
    "shares": (3, "MESH dp 3\nREDUCE grads OVER dp BUCKET 16KB", {"shares": 4}),
}


@dataclass(frozen=True)
class Ran:
    """What a rank has after some steps, one way or the other."""

    weights: Mapping[str, Tensor]
    outcomes: list[Any]
    counts: Mapping[Sent, Count]
    threads: list[str]
    left_over: Mapping[Any, Tensor]


def _run(wires: Wires, plan: Plan, *, sends_beside: bool) -> Ran:
    wires.counts.clear()
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=0.5)
    adds_by_share = plan.work.has_fixed_order
    rank = Rank(
        plan, wires.rank, wires, rules, seed=7, adds_by_share=adds_by_share, sends_beside=sends_beside
    )
    outcomes = [
        rank.step(microbatches_of(plan.work, *ragged_batch(plan, 3, step)), step) for step in range(STEPS)
    ]
    return Ran(
        weights={name: tensor.clone() for name, tensor in rank.stored.items()},
        outcomes=outcomes,
        counts={
            what: Count(runs=each.runs, sent_bytes=each.sent_bytes) for what, each in wires.counts.items()
        },
        threads=_threads(),
        left_over=dict(rank.compressor.residuals),
    )


def both_ways(wires: Wires, plan: Plan) -> tuple[Ran, Ran, list[str]]:
    """Sums in their places, then early; and the threads that are there when the ranks are gone."""
    placed, early = (_run(wires, plan, sends_beside=way) for way in (False, True))
    gc.collect()
    deadline = time.monotonic() + 10
    while _threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return placed, early, _threads()


def _threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("beside-"))


@pytest.mark.process
@pytest.mark.parametrize("name", PLANS)
def test_bits_and_bytes_are_those_of_sums_in_their_places(name: str, crew_of: Callable[[int], Crew]) -> None:
    """What is summed early is the same: a gradient that was not complete, or was summed twice, would be seen here."""
    devices, text, more = PLANS[name]
    plan = small_plan(text, devices, batch=12 if more else 8, **more, **ROTARY)
    for placed, early, left in crew_of(devices).run(both_ways, plan):
        assert early.outcomes == placed.outcomes
        assert all(torch.equal(early.weights[each], tensor) for each, tensor in placed.weights.items())
        assert all(torch.equal(early.left_over[each], tensor) for each, tensor in placed.left_over.items())
        assert early.counts == placed.counts
        assert placed.threads == []
        assert early.threads
        assert left == []


def times(wires: Wires, plan: Plan) -> tuple[list[StepTimes], list[tuple[str, ...]]]:
    """Timed steps in which rank 1 comes late to its first sum; and what was summed beside the backward pass, in order."""
    timed = TimedWires(wires)
    watch = Stopwatch(timed)
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=0.5)
    rank = Rank(plan, wires.rank, timed, rules, seed=7, observe=watch)
    found = []
    for step in range(STEPS):
        timed.meet()
        watch.start()
        rank.step(microbatches_of(plan.work, *ragged_batch(plan, 3, step)), step)
        found.append(watch.stop())
    early = {one.operator.inputs for one in early_at(plan)}
    runs = sorted(found[-1].runs, key=lambda run: run.start_ns)
    return found, [run.what.tensors for run in runs if run.what.tensors in early]


@pytest.mark.process
def test_time_beside_the_computation_is_told_apart(crew_of: Callable[[int], Crew]) -> None:
    """A user who tunes buckets must see what they still wait for, and every rank sums in one order."""
    plan = small_plan("MESH dp 2\nREDUCE grads OVER dp BUCKET 64KB", 2, batch=16, sequence=64, **{**ROTARY, "embed": 128, "mlp": 512, "context": 64})  # fmt: skip
    ran = crew_of(2).run(times, plan)
    orders = [order for _, order in ran]
    assert orders[0] == orders[1]
    assert len(orders[0]) > 3
    for steps, _ in ran:
        for step in steps:
            computing = sum(step.computing_ns.values())
            assert step.beside_ns > 0
            assert computing + step.collectives_ns + step.pipeline_ns + step.unattributed_ns == step.wall_ns
            assert step.unattributed_ns > 0
            assert step.computing_ns[Phase.BACKWARD] > 0


def test_gradients_lie_elsewhere_once_ranks_are_connected_anew() -> None:
    """A sum that was left behind at a fence is one in place: it may still write to where its summands were."""
    plan = small_plan("MESH dp 2\nREDUCE grads OVER dp BUCKET 16KB", 2, **ROTARY)
    wires = Wires(0, 2, is_connected=False)
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=None)
    rank = Rank(plan, 0, wires, rules, seed=7)
    batch = microbatches_of(plan.work, *ragged_batch(plan, 3, 0))
    rank.connect(SilentTransport())
    first, again = (rank.compute(batch, 0).gradients for _ in range(2))
    rank.connect(SilentTransport())
    anew = rank.compute(batch, 0).gradients
    for name in sums_in_place(plan.update):
        assert first[name].data_ptr() == again[name].data_ptr()
        assert first[name].data_ptr() != anew[name].data_ptr()


def test_a_lane_does_one_thing_after_another_and_ends() -> None:
    """A thread for each group that outlives its run would be another one after every loss."""
    lane, seen = Lane("sums-test"), []
    first = threading.Event()

    def act(number: int) -> int:
        first.wait(10)
        seen.append(number)
        if number == 1:
            raise CollectiveError("broken")
        return number

    works = [lane.start(lambda number=number: act(number)) for number in range(3)]
    assert seen == []
    first.set()
    assert works[0].result(10) == 0
    with pytest.raises(CollectiveError, match="broken"):
        works[1].result(10)
    assert works[2].result(10) == 2
    assert seen == [0, 1, 2]
    (thread,) = [found for found in threading.enumerate() if found.name == "sums-test"]
    del lane
    thread.join(10)
    assert not thread.is_alive()
