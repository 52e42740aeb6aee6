"""Ranks that hold pieces write one checkpoint together; whatever is killed, the newest whole one loads."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch

from trimtab.ledger.manifests import CheckpointError
from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint.events import Failed, Saved, Skipped
from trimtab.runtime.checkpoint.exporting import export_model
from trimtab.runtime.checkpoint.saver import Company, Fault, Saver
from trimtab.runtime.checkpoint.store import find_checkpoints, newest_complete, verify_checkpoint

pytestmark = pytest.mark.process

KEEP = Retention(newest=2)
DEADLINE_S = 60.0
ROWS = 1_500_000
WHOLE = {"parameters": {"a": (2, ROWS), "b": (3,)}, "exp_avg": {"a": (2, ROWS), "b": (3,)}}


def pieces(rank, value, rows=ROWS):
    """What one of three ranks saves: a row of one tensor, or all of the other; filled with a value."""
    if rank == 2:
        return {part: {"b": torch.full((3,), float(value))} for part in WHOLE}
    name = f"a[{rank}:{rank + 1},0:{rows}]"
    return {part: {name: torch.full((1, rows), float(value))} for part in WHOLE}


@contextlib.contextmanager
def company(folder, rows=ROWS, **settings):
    """Savers of three ranks; the first leads."""
    savers = [
        Saver(
            folder,
            pieces(rank, 0, rows),
            Company(
                rank=rank,
                is_lead=rank == 0,
                others={other: pieces(other, 0, rows) for other in (1, 2)} if rank == 0 else {},
                **settings,
            ),
        )
        for rank in (0, 1, 2)
    ]
    try:
        yield savers
    finally:
        for saver in reversed(savers):
            saver.close(timeout_s=DEADLINE_S)


def stage(savers, step, *, faults=(None, None, None), rows=ROWS, who=(0, 1, 2)):
    """All, or some, stage a save."""
    into = savers[0].open(step)
    for rank in who:
        savers[rank].stage(
            step, pieces(rank, step, rows), {"step": step}, retention=KEEP, fault=faults[rank], into=into
        )
    return into


def drained(savers):
    """What each has heard, by rank; the lead waits last, for its own writer waits for what the others do."""
    return [saver.drain(DEADLINE_S) for saver in reversed(savers)][::-1]


def steps(folder):
    return [found.step for found in find_checkpoints(folder) if found.is_complete]


def assert_filled(kit, folder, value):
    loaded = kit.load(folder)
    assert {
        part: {name: tuple(x.shape) for name, x in by.items()} for part, by in loaded.state.items()
    } == WHOLE
    assert all(bool((x == value).all()) for by in loaded.state.values() for x in by.values())
    assert loaded.extra == {"step": value}


def _until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_what_each_has_written_is_one_checkpoint(kit, tmp_path):
    """Loaded, verified and exported as if one rank had written it; the older one is pruned."""
    with company(tmp_path) as savers:
        for step in (1, 2, 3):
            stage(savers, step)
            lead, *others = drained(savers)
            assert isinstance(lead[0], Saved)
            assert all(isinstance(event, Saved) for events in others for event in events)
    assert sorted(os.listdir(tmp_path)) == ["step-2", "step-3"]
    files = [f"{kind}-{rank}.safetensors" for kind in ("model", "optimizer") for rank in range(3)]
    assert sorted(os.listdir(tmp_path / "step-3")) == ["manifest.json", *files]
    assert verify_checkpoint(tmp_path / "step-3", None) == []
    assert_filled(kit, tmp_path / "step-3", 3)
    export_model(tmp_path / "step-3", tmp_path / "weights", None)
    exported = safetensors.torch.load_file(tmp_path / "weights")
    assert {name: tuple(x.shape) for name, x in exported.items()} == WHOLE["parameters"]
    assert all(bool((x == 3).all()) for x in exported.values())


def test_the_folder_of_a_writer_that_is_only_starting_stays(tmp_path, monkeypatch):
    """For a moment after its start the kernel shows no command line of a process: it looks like another program's."""
    monkeypatch.setattr("trimtab.runtime.checkpoint.saver.is_writer", lambda pid: False)
    with company(tmp_path, rows=10) as savers:
        stage(savers, 1, rows=10)
        assert isinstance(drained(savers)[0][0], Saved)
    assert steps(tmp_path) == [1]


def test_what_is_missing_or_damaged_of_one_rank_is_named(kit, tmp_path):
    """A third of a tensor would be zeros, or of another step, and nobody would know."""
    with company(tmp_path, rows=10) as savers:
        stage(savers, 1, rows=10)
        drained(savers)
    folder = tmp_path / "step-1"
    kit.flip_bit(folder / "model-1.safetensors", 0.9)
    assert [problem.file for problem in verify_checkpoint(folder, None)] == ["step-1/model-1.safetensors"]
    with pytest.raises(CheckpointError, match=r"^step-1/model-1\.safetensors: damaged"):
        kit.load(folder)
    (folder / "model-1.safetensors").unlink()
    assert newest_complete(tmp_path, None).folder is None


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fault", [Fault.DISK_FULL, Fault.TORN])
def test_a_rank_that_cannot_write_spoils_this_save_only(kit, tmp_path, rank, fault):
    """The others must notice, or wait for ever; the older checkpoint stays newest, and the next save works."""
    faults = [fault if who == rank else None for who in range(3)]
    with company(tmp_path) as savers:
        stage(savers, 1)
        drained(savers)
        stage(savers, 2, faults=faults)
        lead, *_ = drained(savers)
        assert [event.step for event in lead if isinstance(event, Failed)] == [2]
        assert steps(tmp_path) == [1]
        stage(savers, 2)
        events = drained(savers)
        assert [type(event) for event in events[0]] == [Saved], events
        assert_filled(kit, newest_complete(tmp_path, None).folder, 2)
    assert sorted(os.listdir(tmp_path)) == ["step-1", "step-2"]


def test_a_rank_that_ends_before_it_has_written_takes_the_folder_away(tmp_path):
    """Its successor would find the lead waiting for a part that never comes."""
    with company(tmp_path) as savers:
        stage(savers, 1, faults=(None, Fault.SLOW, None))
        savers.pop(1).close(wait=False)
        (event,) = savers[0].drain(DEADLINE_S)
        assert isinstance(event, Failed)
        assert "could not write its part" in event.reason
        assert steps(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_a_save_of_the_lead_alone_names_who_is_missing(tmp_path):
    """S-CKP-19: a save in an ``if rank == 0`` would wait for the others until the watchdog ends the run."""
    with company(tmp_path, rows=10, patience_s=1.0) as savers:
        started_s = time.monotonic()
        into = stage(savers, 1, rows=10, who=(0,))
        (event,) = savers[0].drain(DEADLINE_S)
        assert isinstance(event, Failed)
        assert (
            "nothing of rank 1 has arrived for 1 s: a save is of all ranks that hold pieces" in event.reason
        )
        assert time.monotonic() - started_s < 20.0
        savers[1].stage(1, pieces(1, 1, 10), {}, retention=KEEP, into=into)  # late, and told so
        (late,) = savers[1].drain(DEADLINE_S)
        assert isinstance(late, Failed)
        stage(savers, 2, rows=10)  # the next one is of all
        assert all(isinstance(event, Saved) for events in drained(savers) for event in events)
    assert steps(tmp_path) == [2]


def test_the_lead_gives_up_for_all(tmp_path):
    """A rank that holds NaN keeps the others' good parts from becoming a checkpoint."""
    with company(tmp_path, rows=10) as savers:
        into = savers[0].open(1)
        savers[0].give_up(1, into, "a rank holds values that are not finite")
        (event,) = savers[0].poll()
        assert event == Skipped(step=1, reason="a rank holds values that are not finite")
    assert os.listdir(tmp_path) == []


def _writers(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_writers_killed_at_random_moments(kit, tmp_path):
    """S-CKP-08 for pieces: what was told is what is there, and it loads."""
    moments, saved = random.Random(5), []
    with company(tmp_path) as savers:
        for step in range(1, 9):
            stage(savers, step)
            time.sleep(moments.uniform(0, 0.03))
            os.kill(moments.choice(_writers(os.getpid())), signal.SIGKILL)
            lead, *_ = drained(savers)
            saved += [event.step for event in lead if isinstance(event, Saved)]
            assert steps(tmp_path)[-1:] == saved[-1:]
            if saved:
                assert_filled(kit, newest_complete(tmp_path, None).folder, saved[-1])
        stage(savers, 99)
        drained(savers)
        assert_filled(kit, newest_complete(tmp_path, None).folder, 99)
    assert not [name for name in os.listdir(tmp_path) if ".tmp-" in name]


TRAINER = """
import sys, time
from pathlib import Path
from tests.runtime.checkpoint.test_company import company, drained, stage
with company(Path(sys.argv[1])) as savers:
    stage(savers, 1)
    drained(savers)
    print("staged", stage(savers, 2), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("fraction", [0.1, 0.7])
def test_all_ranks_killed_in_the_middle(kit, tmp_path, fraction):
    """S-CKP-08: a machine that goes away leaves the checkpoint before, or this one, whole."""
    command = [sys.executable, "-c", TRAINER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        into = tmp_path / trainer.stdout.readline().split()[1]
        writers = _writers(trainer.pid)
        total = 4 * 4 * ROWS
        _until(lambda: sum(map(_size, into.glob("*"))) > fraction * total or not into.exists())
        for pid in (*writers, trainer.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    newest = newest_complete(tmp_path, None).folder
    assert newest is not None
    assert_filled(kit, newest, int(newest.name.removeprefix("step-")))
    with company(tmp_path) as savers:  # who leads next clears away what is left
        stage(savers, 3)
        drained(savers)
    assert not [name for name in os.listdir(tmp_path) if ".tmp-" in name]


def _size(path):
    try:
        return path.stat().st_size
    except OSError:
        return 0
