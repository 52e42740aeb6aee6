"""A rank that is slow for a while gives shares to others, gets them back, and no bit knows of it."""

import statistics
from collections import Counter

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = [pytest.mark.process, pytest.mark.slow]

TWELVE = (
    *("--set", "train.batch=12", "--set", "fault_tolerance.shares=12"),
    *("--set", "train.steps=40", "--set", "fault_tolerance.balance=4"),
)
SLOW_FROM, SLOW_STEPS = 4, 20


def seconds(ran: Ran, first: int, end: int) -> float:
    """Of a step from ``first`` to before ``end``, in the middle."""
    laps = [e for e in ran.events("step", "rank-0-*") if first <= e["step"] < end]
    return statistics.median((e["end_ns"] - e["start_ns"]) / 1e9 for e in laps)


def test_shares_leave_a_slow_rank_and_come_back(trimtab: Trimtab) -> None:
    """Everybody would wait for it in every step, for as long as it is slow."""
    alone = trimtab("run", "tiny.yaml", "--json", *TWELVE, "--set", "orchestration.devices=1")
    ran = trimtab(
        "run", "tiny.yaml", "--json", *TWELVE, "--set", "orchestration.devices=3", "--inject",
        f"slow:rank=1,step={SLOW_FROM},factor=16,steps={SLOW_STEPS}",
    )  # fmt: skip
    assert ran.document["weights_sha256"] == alone.document["weights_sha256"]
    moves = {e["step"]: Counter(e["owners"]) for e in ran.events("balanced", "agent-*")}
    away = [owned[1] for step, owned in moves.items() if SLOW_FROM < step <= SLOW_FROM + SLOW_STEPS]
    assert min(away) == 1
    assert list(moves.values())[-1][1] >= 3, "it is as fast as the others, and has about as much"
    slow = ran.events("slow", "agent-*")[0]
    assert slow["rank"] == 1
    assert slow["ratio"] > 4
    assert "rank 1 takes" in ran.events("balanced", "agent-*")[0]["reason"]
    first = min(moves)
    assert seconds(ran, first + 2, SLOW_FROM + SLOW_STEPS) < 0.5 * seconds(ran, SLOW_FROM, first)
    computed = Counter((e["step"], e["share"]) for e in ran.events("share"))
    assert computed == {(step, share): 1 for step in range(40) for share in range(12)}
