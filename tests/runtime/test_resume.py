"""Stopping, resuming and going back, for real: a run in pieces must be the run in one piece."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from safetensors.numpy import load

from tests.conftest import Ran, Trimtab

pytestmark = pytest.mark.process

T = TypeVar("T")
SAVING = ("--set", "fault_tolerance.checkpoint.every=4")
EPOCHS = ("--set", "train.epochs=2", "--set", "data.packing=pad")
SLOW = ("--inject", "slow:rank=0,step=5,factor=100")


@contextlib.contextmanager
def started(workplace: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A run that goes on meanwhile; killed at the end if need be."""
    command = [sys.executable, "-m", "trimtab", "run", "tiny.yaml", "--json", *arguments]
    process = subprocess.Popen(
        command,
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def run_names(workplace: Path) -> set[str]:
    """The runs that are there."""
    return {path.name for path in (workplace / "runs").glob("tiny-*")}


def new_run(workplace: Path, before: set[str]) -> Path:
    """The folder of the run that was begun since, once it is there."""
    return wait_for(lambda: next((workplace / "runs" / name for name in run_names(workplace) - before), None))


def wait_for(look: Callable[[], T | None], limit_s: float = 60.0) -> T:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def has_fault(folder: Path) -> bool | None:
    """True once the agent has declared a loss."""
    journal = folder / "journal" / "agent-1.jsonl"
    return (journal.exists() and '"event":"fault"' in journal.read_text(encoding="utf-8")) or None


def has_committed(folder: Path, step: int) -> bool | None:
    """True once the lead rank has committed this step."""
    for path in (folder / "journal").glob("rank-0-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if '"event":"commit"' in line and json.loads(line)["step"] >= step:
                return True
    return None


@pytest.fixture(scope="module")
def in_one_piece(trimtab: Trimtab) -> Ran:
    """Twelve steps without a pause."""
    return trimtab("run", "tiny.yaml", "--json", *SAVING)


def test_stopped_by_sigterm_and_resumed_at_another_size(
    trimtab: Trimtab, workplace: Path, in_one_piece: Ran
) -> None:
    """CKP-01, CKP-05, CKP-06, CKP-07: rate, position and count as if never stopped, on three ranks instead of four."""
    before = run_names(workplace)
    with started(workplace, *SAVING, *SLOW) as process:
        folder = new_run(workplace, before)
        wait_for(lambda: has_committed(folder, 5))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    stopped = json.loads(out)
    assert (process.returncode, stopped["state"]) == (143, "stopped")
    assert 6 <= stopped["steps"] < 12
    resumed = trimtab("resume", folder.name, "--json", "--set", "orchestration.devices=3")
    assert resumed.document["weights_sha256"] == in_one_piece.document["weights_sha256"]
    assert resumed.document["steps"] == 12
    rates = {event["step"]: event["lr"] for event in resumed.events("commit")}
    assert rates == {event["step"]: event["lr"] for event in in_one_piece.events("commit")}


def test_one_rank_that_is_told_to_stop_stops_all_at_one_step(trimtab: Trimtab, workplace: Path) -> None:
    """CKP-21: a rank that leaves alone would leave the others in a collective."""
    before = run_names(workplace)
    with started(workplace, *SAVING, *SLOW) as process:
        folder = new_run(workplace, before)
        wait_for(lambda: has_committed(folder, 5))
        agent = (folder / "journal" / "agent-1.jsonl").read_text(encoding="utf-8").splitlines()
        pids = {e["rank"]: e["pid"] for e in map(json.loads, agent) if e["event"] == "spawned"}
        os.kill(pids[2], signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert json.loads(out)["state"] == "stopped"
    steps = json.loads(out)["steps"]
    assert (folder / "checkpoints" / f"step-{steps}" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("phase", "arguments"),
    [
        ("start", ()),
        (
            "evaluation",
            ("--set", "train.evaluate.every=3", "--inject", "sleep:rank=1,step=3,class=evaluation,ms=3000"),
        ),
        pytest.param("reform", ("--inject", "kill:rank=3,step=2", *SLOW), marks=pytest.mark.slow),
    ],
)
def test_a_stop_outside_the_main_loop_is_not_lost(
    trimtab: Trimtab, workplace: Path, phase: str, arguments: tuple[str, ...]
) -> None:
    """CKP-20: a checkpoint of the last finished step exists, whatever the run was doing when the signal came."""
    before = run_names(workplace)
    with started(workplace, *SAVING, *arguments) as process:
        folder = new_run(workplace, before)
        if phase == "start":
            wait_for(lambda: (folder / "logs").exists() or None)
        elif phase == "evaluation":
            wait_for(lambda: has_committed(folder, 2))
        else:
            wait_for(lambda: has_fault(folder))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=40)
    document = json.loads(out)
    assert (process.returncode, document["state"]) == (143, "stopped")
    assert document["steps"] < 12
    is_nothing_done = (
        phase == "start" and document["steps"] == 0
    )  # a machine so busy that half of the grace went by
    saved = folder / "checkpoints" / f"step-{document['steps']}" / "manifest.json"
    assert saved.exists() or is_nothing_done


def test_evaluation_leaves_no_trace(trimtab: Trimtab, in_one_piece: Ran) -> None:
    """OBS-07: order of samples, random state and weights are those of a run that never evaluates."""
    ran = trimtab("run", "tiny.yaml", "--json", *SAVING, "--set", "train.evaluate.every=3")
    assert ran.document["weights_sha256"] == in_one_piece.document["weights_sha256"]
    scores = [event["loss"] for event in ran.events("evaluation", "rank-0-*")]
    assert len(scores) == 4
    assert scores[-1] == in_one_piece.document["eval_loss"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_losses_and_rejoins(trimtab: Trimtab) -> None:
    """FT-07: a newcomer takes the state of one step from a peer that goes on training; replicas end bit-equal."""
    steps = 2500
    long = ("--set", f"train.steps={steps}", "--set", "orchestration.devices=2", "--set", "train.batch=4",
            "--set", "train.microbatch=1")  # fmt: skip
    kills = [a for step in range(0, steps, 1) for a in ("--inject", f"kill:rank=1,step={step}")]
    ran = trimtab(
        "run", "tiny.yaml", "--json", *long, "--set", "fault_tolerance.replace=true", "--set",
        "fault_tolerance.restarts.node_loss=50", *kills, "--inject", "slow:rank=0,factor=40", timeout=800, check=None,
    )  # fmt: skip
    calm = trimtab("run", "tiny.yaml", "--json", *long, timeout=300)
    num_rejoined = sum(event["is_healing"] for event in ran.events("formed", "agent-*"))
    assert num_rejoined >= 20
    if ran.document["state"] == "done":
        assert ran.document["weights_sha256"] == calm.document["weights_sha256"]
    rows = {(e["step"], e["loss"]) for e in ran.events("commit")}
    assert rows <= {(e["step"], e["loss"]) for e in calm.events("commit")}, (
        "a mixed state would show in the loss"
    )


@pytest.mark.slow
def test_crashed_twice_inside_an_epoch_and_resumed_twice(trimtab: Trimtab) -> None:
    """CKP-02, CKP-03, CKP-04: the order of samples belongs to the epoch, and a second resume goes on from the first."""
    one = ("--set", "orchestration.devices=1", "--set", "fault_tolerance.restarts.node_loss=0")
    whole = trimtab("run", "tiny.yaml", "--json", *SAVING, *EPOCHS, *one)
    num_steps = whole.document["steps"]
    assert num_steps > 20
    crashes = ("--inject", f"kill:step={num_steps // 3}", "--inject", f"kill:step={2 * num_steps // 3}")
    broken = trimtab("run", "tiny.yaml", "--json", *SAVING, *EPOCHS, *one, *crashes, check=1)
    assert broken.document["state"] == "failed"
    name = broken.folder.name
    again = trimtab("resume", name, "--json", "--inject", f"kill:step={num_steps // 3}", "--inject",
                    f"kill:step={2 * num_steps // 3}", check=1)  # fmt: skip
    assert again.document["state"] == "failed"
    last = trimtab("resume", name, "--json")
    assert last.document["weights_sha256"] == whole.document["weights_sha256"]
    assert last.document["steps"] == num_steps


@pytest.mark.slow
@pytest.mark.parametrize("every", [4, 6])
def test_dropout_goes_on_as_if_never_stopped(trimtab: Trimtab, every: int) -> None:
    """S-CKP-25: every random number is told by its step and place, so a resume inside an epoch and at its end are alike."""
    settings = ("--set", f"fault_tolerance.checkpoint.every={every}", "--set", "model.dropout=0.1",
                "--set", "orchestration.devices=1", "--set", "fault_tolerance.restarts.node_loss=0")  # fmt: skip
    whole = trimtab("run", "tiny.yaml", "--json", *settings)
    without = trimtab("run", "tiny.yaml", "--json", *settings, "--set", "model.dropout=0.0")
    assert whole.document["weights_sha256"] != without.document["weights_sha256"]
    broken = trimtab("run", "tiny.yaml", "--json", *settings, "--inject", "kill:step=7", check=1)
    resumed = trimtab("resume", broken.folder.name, "--json")
    assert resumed.document["weights_sha256"] == whole.document["weights_sha256"]
    losses = {event["step"]: event["loss"] for event in whole.events("commit")}
    assert losses == {event["step"]: event["loss"] for event in resumed.events("commit")}


def test_the_only_rank_is_started_again_from_the_newest_checkpoint(
    trimtab: Trimtab, in_one_piece: Ran
) -> None:
    """With nobody left to take a state from, the run goes on from disk without being asked."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", *SAVING, "--set", "orchestration.devices=1", "--inject", "kill:step=6"
    )
    assert ran.document["weights_sha256"] == in_one_piece.document["weights_sha256"]
    (recovery,) = ran.document["recoveries"]
    assert recovery["steps_lost"] in (2, 6), "since step 4, or since the start if that save was cut off too"


def test_a_nan_is_skipped_and_never_saved(trimtab: Trimtab) -> None:
    """CKP-15: every tensor of every checkpoint is finite."""
    ran = trimtab("run", "tiny.yaml", "--json", *SAVING, "--inject", "nan:rank=1,step=3")
    assert [event["step"] for event in ran.events("skipped", "rank-0-*")] == [3]
    saved = sorted((ran.folder / "checkpoints").glob("step-*/*.safetensors"))
    assert {path.parent.name for path in saved} >= {"step-12"}, (
        "a save while the last is under way is left out"
    )
    for path in saved:
        assert all(np.isfinite(tensor).all() for tensor in load(path.read_bytes()).values())


def test_a_nan_stops_the_run_when_the_job_says_so(trimtab: Trimtab) -> None:
    """CKP-15: the newest checkpoint is from before, and the exit code is not 0."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", *SAVING, "--inject", "nan:rank=1,step=6", "--set", "train.on_nonfinite=stop",
        check=1,
    )  # fmt: skip
    assert "step 6 is not finite" in ran.document["error"]
    assert [path.name for path in (ran.folder / "checkpoints").glob("step-*")] == ["step-4"]


def test_a_nan_rolls_back_when_the_job_says_so(trimtab: Trimtab, in_one_piece: Ran) -> None:
    """A fault that does not come again leaves no trace in the weights; the lost steps are labelled as lost."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", *SAVING, "--inject", "nan:rank=1,step=6", "--set",
        "train.on_nonfinite=rollback",
    )  # fmt: skip
    assert ran.document["weights_sha256"] == in_one_piece.document["weights_sha256"]
    assert [event["to_step"] for event in ran.events("rollback", "agent-*")] == [4]


@pytest.mark.parametrize("fault", ["disk-full:step=4", "torn-checkpoint:step=4"])
def test_a_save_that_fails_costs_nothing_but_itself(trimtab: Trimtab, in_one_piece: Ran, fault: str) -> None:
    """CKP-10, CKP-14: loud, the run goes on, the older one stays newest, later saves succeed."""
    ran = trimtab("run", "tiny.yaml", "--json", *SAVING, "--inject", fault)
    assert ran.document["weights_sha256"] == in_one_piece.document["weights_sha256"]
    states = [(event["step"], event["state"]) for event in ran.events("checkpoint", "agent-*")]
    assert (4, "failed") in states
    assert (12, "saved") in states
    # A save that is due while the writer is being started again is skipped, which may be the next one.
    assert {path.name for path in (ran.folder / "checkpoints").iterdir()} - {"step-8"} == {"step-12"}


def test_other_data_is_refused_at_resume(trimtab: Trimtab, workplace: Path) -> None:
    """Positions of one text mean nothing in another."""
    one = ("--set", "orchestration.devices=1")
    ran = trimtab("run", "tiny.yaml", "--json", *SAVING, *one, "--set", "train.steps=4")
    extra = workplace / "text" / "new.txt"
    extra.write_text("something else " * 50, encoding="utf-8")
    try:
        refused = trimtab("resume", ran.folder.name, "--json", "--set", "train.steps=12", check=1)
    finally:
        extra.unlink()
    assert "belongs to another run" in refused.document["error"]


@pytest.mark.slow
def test_ragged_samples_keep_the_guarantee_and_uneven_shares_too(trimtab: Trimtab) -> None:
    """NUM-02, NUM-18, FT-15: three ranks hold 2 + 1 + 1 shares of ragged samples, and the batch is whole after a loss."""
    pad = ("--set", "data.packing=pad", "--set", "data.sequence=128")
    alone = trimtab("run", "tiny.yaml", "--json", *pad, "--set", "orchestration.devices=1")
    three = trimtab(
        "run",
        "tiny.yaml",
        "--json",
        *pad,
        "--set",
        "orchestration.devices=3",
        "--inject",
        "kill:rank=2,step=4",
    )
    assert three.document["weights_sha256"] == alone.document["weights_sha256"]
    targets = {event["step"]: event["targets"] for event in three.events("commit")}
    assert targets == {event["step"]: event["targets"] for event in alone.events("commit")}
    assert len(set(targets.values())) > 1, "the text is ragged"
