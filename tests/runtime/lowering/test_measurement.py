"""Are bytes, memory and times of real steps those that are predicted, whatever the layout?"""

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch

from tests.runtime.lowering.small_plans import LEARNED, ROTARY, question, small_plan
from tests.runtime.lowering.test_layouts import FAST, SLOW, Layout
from trimtab.cost.counts import counts_of
from trimtab.cost.step_memory import StepMemory, constant_bytes
from trimtab.plan.program import Phase
from trimtab.runtime.lowering import Crew
from trimtab.runtime.lowering.accounting import unplanned
from trimtab.runtime.lowering.measurement import StepTimes, measure, waits_of
from trimtab.runtime.lowering.measurement.storages import StorageTracker
from trimtab.runtime.lowering.measurement.times import Run
from trimtab.runtime.lowering.wires import Sent

PEAK = 0.06
"""Part of a predicted peak that a measured one may differ by. The bar is a tenth; indices and gradients of experts, and
paddings of stored pieces, are what is not exact."""

MORE: dict[str, Layout] = {
    "recomputed, rotary": (1, "RECOMPUTE activations", ROTARY, {}),
    "accumulated over four microbatches, stored in one of two groups": (
        4,
        "MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\nSTORE params, grads, states OVER dp",
        ROTARY,
        {"batch": 16},
    ),
    "bf16": (2, "MESH dp 2\nCOMPUTE layers IN bf16\nKEEP params IN bf16", ROTARY, {}),
    "states and activations on the host": (
        2,
        "MESH dp 2\nSTORE states OVER dp\nKEEP params IN bf16\nOFFLOAD states TO host\n"
        "OFFLOAD activations WHERE kind IN ('linear', 'norm') TO host",
        ROTARY,
        {},
    ),
    "much vocabulary, in chunks": (
        1,
        "RECOMPUTE activations WHERE name = 'logits'",
        {**ROTARY, "vocab": 8195},
        {"microbatch": 4},
    ),
    "much vocabulary in tensors and chunks": (
        2,
        "MESH tp 2\nSPLIT heads, mlp, vocab OVER tp\nRECOMPUTE activations WHERE name = 'logits'",
        {**LEARNED, "vocab": 8195},
        {"microbatch": 4},
    ),
    "much vocabulary in chunks, bf16": (
        2,
        "MESH dp 2\nCOMPUTE layers IN bf16\nKEEP params IN bf16\nRECOMPUTE activations WHERE name = 'logits'",
        {**ROTARY, "vocab": 8195},
        {"microbatch": 4},
    ),
    "much vocabulary": (
        2,
        "MESH tp 2\nSPLIT heads, mlp, vocab OVER tp",
        {**LEARNED, "vocab": 8195},
        {"microbatch": 4},
    ),
}


def _check(layout: Layout, crew_of: Callable[[int], Crew]) -> None:
    devices, text, fields, more = layout
    plan = small_plan(text, devices, **more, **fields)
    trial = measure(question(plan, steps=1), crew_of(devices))
    assert list(unplanned(plan, [rank.counts for rank in trial.ranks], trial.num_steps)) == []
    counts = counts_of(plan)
    memory = StepMemory(plan, counts)
    for number, group in enumerate(counts.groups):
        held = {table.table.value: table.device_bytes for table in counts.holdings.of(group.stages)}
        expected = {
            "parameters": held["params"],
            "gradients": held["grads"],
            "states": held["states"],
            "constants": constant_bytes(plan, counts, group.stages),
        }
        predicted = max(classes.total for classes in memory.of(number).values())
        ranks = [trial.ranks[rank] for rank in group.ranks]
        for found in ranks:
            assert found.memory.held == {name: size for name, size in expected.items() if size}
            _check_times(found.steps)
        # What is told is the largest of the group: at the ends of a tree nothing arrives that would be added.
        assert max(found.memory.peak_bytes for found in ranks) == pytest.approx(predicted, rel=PEAK)
        if "tree" not in text:
            assert min(found.memory.peak_bytes for found in ranks) == pytest.approx(predicted, rel=PEAK)


def _check_times(steps: Any) -> None:
    """All classes are times, and no class claims what another has."""
    for step in steps:
        assert step.computing_ns[Phase.FORWARD] > 0
        assert step.computing_ns[Phase.UPDATE] > 0
        assert step.unattributed_ns > 0


LONG = ("stages, data and tensors", "context by ring, a window")
"""Of the fast ones, those whose many ranks take longest to measure; that they compute what one device does is shown fast."""


@pytest.mark.process
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in FAST]
)
def test_bytes_and_memory_are_as_predicted(name: str, crew_of: Callable[[int], Crew]) -> None:
    """A plan that was said to fit would die on its device, or leave half of it idle."""
    _check(FAST[name], crew_of)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", [*SLOW, *MORE])
def test_bytes_and_memory_are_as_predicted_in_every_layout(name: str, crew_of: Callable[[int], Crew]) -> None:
    """As above, for layouts that users combine less often."""
    _check({**SLOW, **MORE}[name], crew_of)


def test_a_storage_counts_once_and_until_it_is_freed() -> None:
    """Views counted again, or what is gone counted still, would make every figure too high."""
    tracker = StorageTracker()
    with tracker:
        first = torch.zeros(1000)
        views = [first.view(10, 100), first[:5]]
        assert tracker.bytes_by_label == {"working": 4000}
        tracker.label = "buffers"
        second = first + 1
        assert tracker.bytes_by_label == {"working": 4000, "buffers": 4000}
        tracker.relabel([views[0]], "parameters")
        del second
        assert tracker.bytes_by_label == {"parameters": 4000}
        del first
        assert tracker.bytes_by_label == {"parameters": 4000}
        views.clear()
        assert tracker.bytes_by_label == {}
    assert tracker.peak.total_bytes == 8000
    assert tracker.peak.by_label == {"working": 4000, "buffers": 4000}


def test_what_others_have_made_is_left_out() -> None:
    """A batch that the caller holds is not the rank's memory."""
    tracker, batch = StorageTracker(), torch.zeros(1000)
    tracker.leave_out([batch])
    with tracker:
        part = batch[:10]
        assert tracker.bytes_by_label == {}
    assert part.sum() == 0


def test_who_comes_first_waits_for_who_comes_last() -> None:
    """Transfer and skew ask for different remedies: another route, or another balance."""
    what = Sent("update", "update", "all_reduce", ("x",), ("dp",), "native")
    early, late = _step([_run(what, 100, 400)]), _step([_run(what, 350, 400)])
    found = waits_of([early, late])
    assert [(one.busy_ns[what], one.late_ns[what], one.runs[what]) for one in found] == [
        (300, 250, 1),
        (50, 0, 1),
    ]


def test_runs_of_one_collective_are_told_apart() -> None:
    """The second run of one rank is the second of the other, not the first."""
    what = Sent("head", "forward", "all_gather", ("x",), ("tp",), "native")

    def runs(*starts: int) -> StepTimes:
        return _step([_run(what, at, at + 10) for at in starts])

    found = waits_of([runs(100, 200), runs(104, 197)])
    assert [one.late_ns[what] for one in found] == [4, 3]


def test_classes_of_time_add_up_to_the_step() -> None:
    """A class that nobody sees hides time; what is left over is told."""
    what = Sent("head", "forward", "all_gather", ("x",), ("tp",), "native")
    step = _step([_run(what, 5, 25)])
    assert (step.collectives_ns, step.beside_ns) == (20, 0)
    assert step.unattributed_ns == 1000 - 20 - 30 - 400


def test_what_runs_beside_the_computation_is_waited_for_in_part() -> None:
    """A sum that was hidden for 250 of 300 ns costs 50; and while its last rank came, nobody waited for it."""
    what = Sent("update", "update", "all_reduce", ("x",), ("dp",), "native")
    hidden = replace(_run(what, 100, 400), waited_ns=50, waited_from_ns=350)
    late = replace(_run(what, 370, 400), waited_ns=0, waited_from_ns=0)
    steps = [_step([hidden]), _step([late])]
    assert [(step.collectives_ns, step.beside_ns) for step in steps] == [(50, 250), (0, 30)]
    assert [(one.waited_ns[what], one.late_ns[what]) for one in waits_of(steps)] == [(50, 20), (0, 0)]


def _run(what: Sent, start_ns: int, end_ns: int) -> Run:
    """A collective that is waited for from begin to end."""
    took_ns = end_ns - start_ns
    return Run(
        what=what,
        members=(0, 1),
        start_ns=start_ns,
        end_ns=end_ns,
        busy_ns=took_ns,
        waited_ns=took_ns,
        waited_from_ns=start_ns,
    )


def _step(runs: list[Run]) -> StepTimes:
    computing = MappingProxyType({Phase.FORWARD: 300, Phase.UPDATE: 100})
    return StepTimes(wall_ns=1000, computing_ns=computing, pipeline_ns=30, runs=runs)
