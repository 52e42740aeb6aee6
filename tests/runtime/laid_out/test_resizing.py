"""May a run change its number of devices while it is at work, again and again, and keep its bits?"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = [pytest.mark.process, pytest.mark.slow]

STRATEGIES = {
    "replicas": "MESH dp 4",
    "stored": "MESH dp 4; STORE params, grads, states OVER dp",
    "stages": "MESH pp 2, dp 2; SPLIT layers OVER pp; SPLIT batch OVER dp",
}
CHAINS = {"replicas": [3, 2, 4, 1], "stored": [3, 2, 4, 1], "stages": [2, 4, 2]}
STEPS = ("--set", "train.steps=400")


def asked(trimtab: Trimtab, run: Path, devices: int) -> list[int]:
    """Who takes part once the run goes on with so many devices."""
    answer = trimtab("resize", str(run), "--devices", str(devices), "--json")
    active: list[int] = answer.document["active"]
    return active


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*STRATEGIES])
def test_a_run_shrinks_and_grows_and_keeps_its_bits(trimtab: Trimtab, workplace: Path, name: str) -> None:
    """Four devices, three, two, four, one: shares are what is added, and not ranks."""
    strategy = ("--set", f'parallelism="{STRATEGIES[name]}"', "--set", "orchestration.devices=4")
    calm = trimtab("run", "tiny.yaml", "--json", "--set", "run=calm", *strategy, *STEPS, timeout=240)
    command = [sys.executable, "-m", "trimtab", "run", "tiny.yaml", "--json", "--set", f"run=resized-{name}", *strategy, *STEPS]  # fmt: skip
    with subprocess.Popen(command, cwd=workplace, stdout=subprocess.PIPE, text=True) as process:
        folder = workplace / "runs" / f"resized-{name}-1"
        wait_for_steps(folder, 5)
        for devices in CHAINS[name]:
            assert len(asked(trimtab, folder, devices)) == devices
        said, _ = process.communicate(timeout=240)
    ran = json.loads(said)
    assert ran["state"] == "done"
    assert ran["weights_sha256"] == calm.document["weights_sha256"]
    assert ran["recoveries"] == [], "nobody was lost"
    ledger = ran["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]
    assert_paid_for_what_was_there(folder, ran)


def wait_for_steps(folder: Path, steps: int) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        journals = list(folder.glob("journal/rank-*.jsonl"))
        if any(path.read_text(encoding="utf-8").count('"step"') > steps for path in journals):
            return
        time.sleep(0.05)
    raise AssertionError(f"no {steps} steps in {folder}")


def assert_paid_for_what_was_there(folder: Path, ran: Ran | dict[str, object]) -> None:
    """A device that the run does without is not paid for."""
    lines = (folder / "journal" / "agent-1.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    last = [event["device"] for event in events if event["event"] == "released"]
    ended_ns = next(event["t_ns"] for event in events if event["event"] == "finished")
    early = {
        event["device"]
        for event in events
        if event["event"] == "released" and event["t_ns"] < ended_ns - 10**8
    }
    assert sorted({*last}) == [0, 1, 2, 3]
    assert early
