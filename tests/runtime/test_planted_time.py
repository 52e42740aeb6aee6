"""Time that is planted must land in its class, on its rank, and as skew on whoever waits; nowhere else.

A sleep is planted in every second step of a run; the median step with it is compared with the median step without,
so that the machine's own noise stands on both sides. It is long against what a busy machine does to a step.
"""

from collections import defaultdict
from statistics import median

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = pytest.mark.alone

PLANTED_MS = 250.0
STEPS = 17
PLANTED = range(5, 16, 2)
TWO = ("--set", "orchestration.devices=2")
RANKS = range(
    2
)  # no more than cores: a sleeper's share of a core would help its peers, and they would wait less


def plant(rank: int, timer: str) -> list[str]:
    """A sleep in every second step."""
    return [
        a for s in PLANTED for a in ("--inject", f"sleep:rank={rank},step={s},ms={PLANTED_MS},class={timer}")
    ]


def classes_by_step(ran: Ran) -> dict[int, dict[int, dict[str, float]]]:
    """Milliseconds by rank, step and clock, with communication split: transfer is the shortest wait of all ranks."""
    waits: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    found: dict[int, dict[int, dict[str, float]]] = defaultdict(dict)
    for rank in RANKS:
        for event in ran.events("step", f"rank-{rank}-*"):
            step = event["step"]
            found[rank][step] = defaultdict(float, {clock: ns / 1e6 for clock, ns in event["clocks"].items()})
            for number, (_, ns) in enumerate(event["comm"]):
                waits[step, number][rank] = ns / 1e6
    for (step, _), by_rank in waits.items():
        for rank, ms in by_rank.items():
            found[rank][step]["skew"] += ms - min(by_rank.values())
    return found


def grown(ran: Ran, *, lag: int = 0) -> dict[int, dict[str, float]]:
    """By how many milliseconds each class of each rank is larger in planted steps; ``lag`` steps after planting."""
    planted = {step + lag for step in PLANTED}
    result: dict[int, dict[str, float]] = {}
    for rank, steps in classes_by_step(ran).items():
        clocks = {clock for classes in steps.values() for clock in classes} - {"comm"}
        result[rank] = {
            clock: median(classes[clock] for step, classes in steps.items() if step in planted)
            - median(classes[clock] for step, classes in steps.items() if step not in planted and step > 4)
            for clock in clocks
        }
    return result


def assert_lands(growth: dict[int, dict[str, float]], *, rank: int, clock: str) -> None:
    """In the class on its rank, as skew on each peer, and nowhere else."""
    for other, classes in growth.items():
        expected, least = (clock, 0.99) if other == rank else ("skew", 0.7)
        assert PLANTED_MS * least < classes[expected] < PLANTED_MS * 1.5, (other, classes)
        for name, ms in classes.items():
            assert name == expected or abs(ms) < PLANTED_MS * 0.4, (other, name, classes)


@pytest.mark.parametrize(("timer", "clock"), [("input_wait", "input_wait"), ("none", "unattributed")])
def test_in_a_loader_and_in_no_timer(trimtab: Trimtab, timer: str, clock: str) -> None:
    """A slow loader must not look like slow compute, and what no timer claims must be seen as such."""
    ran = trimtab("run", "tiny.yaml", "--json", "--set", f"train.steps={STEPS}", *TWO, *plant(1, timer))
    assert_lands(grown(ran), rank=1, clock=clock)


def test_in_a_save(trimtab: Trimtab) -> None:
    """The lead's save holds up all: its stall there, skew on the others, in the step after."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", "--set", f"train.steps={STEPS}", "--set", "fault_tolerance.checkpoint.every=1",
        *TWO, *plant(0, "checkpoint_stall"),
    )  # fmt: skip
    assert_lands(grown(ran), rank=0, clock="checkpoint_stall")


def test_in_the_background_writer(trimtab: Trimtab) -> None:
    """It runs beside training: nobody waits for it."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", "--set", f"train.steps={STEPS}", "--set", "fault_tolerance.checkpoint.every=1",
        *TWO, *plant(0, "writer"),
    )  # fmt: skip
    for classes in grown(ran).values():
        assert all(abs(ms) < PLANTED_MS * 0.4 for ms in classes.values()), classes


def test_the_sum_is_the_agent_s_time_to_the_nanosecond_through_a_kill(trimtab: Trimtab) -> None:
    """The identity: nothing is created, nothing is lost, and what nobody claims is at most 2 %."""
    ran = trimtab("run", "tiny.yaml", "--json", "--inject", "kill:rank=1,step=5,phase=gather", *TWO)
    ledger = ran.document["ledger"]
    allocated = {e["device"]: e["t_ns"] for e in ran.events("allocated")}
    released = {e["device"]: e["t_ns"] for e in ran.events("released")}
    assert sum(released[d] - allocated[d] for d in RANKS) == ledger["allocated_ns"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]
    assert ledger["unattributed_fraction"] <= 0.02
