"""Notices of preemption, as schedulers send them: what was finished is saved inside the grace, and the run goes on later."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.engines.driving import started, wait_for

pytestmark = [pytest.mark.process, pytest.mark.slow]

LONG_STEPS = (
    *("--set", "train.batch=65536", "--set", "fault_tolerance.shares=512"),
    *("--set", "train.microbatch=1", "--set", "orchestration.grace=12s"),
)
"""Steps of minutes, in microbatches of milliseconds."""


def test_a_warning_inside_a_step_longer_than_the_grace_saves_what_was_finished(workplace: Path) -> None:
    """S-CKP-20: Slurm warns by SIGUSR1 and sends SIGTERM at the end of the warning; the second is no force.

    The step is given up at half of the grace, and the state of the step before is there to go on from.
    """
    with started(workplace, "local", *LONG_STEPS) as run:
        wait_for(lambda: run.events("share", "rank-0-0"))
        run.process.send_signal(signal.SIGUSR1)
        began_s = time.monotonic()
        wait_for(lambda: run.events("signal"))
        run.process.send_signal(signal.SIGTERM)
        document = run.end()
        took_s = time.monotonic() - began_s
    assert took_s < 12
    assert (run.process.returncode, document["state"], document["steps"]) == (143, "stopped", 0)
    reasons = [event["reason"] for event in run.events("decision")]
    assert any("step 0 takes longer than the grace allows" in reason for reason in reasons)
    assert json.loads((run.folder / "checkpoints" / "step-0" / "manifest.json").read_text(encoding="utf-8"))


def test_a_notice_to_one_rank_stops_all_at_one_step(workplace: Path) -> None:
    """S-CKP-21: a scheduler that warns the processes of a step may reach one of them first, or only one."""
    slow = ("--inject", "slow:rank=0,step=5,factor=20")
    with started(workplace, "local", *slow) as run:
        run.wait_for_step(5)
        os.kill(run.pids(2)[1], signal.SIGUSR1)
        document = run.end()
    assert (run.process.returncode, document["state"]) == (143, "stopped")
    assert 6 <= document["steps"] < 12
    assert (run.folder / "checkpoints" / f"step-{document['steps']}" / "manifest.json").exists()
