import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint.events import Failed, Kept, Pruned, Saved, Skipped, WriterLost
from trimtab.runtime.checkpoint.marks import change_marks
from trimtab.runtime.checkpoint.saver import FORSAKEN_S, MAX_EXTRA_BYTES, Fault, Saver
from trimtab.runtime.checkpoint.store import (
    OpenCheckpoint,
    find_checkpoints,
    newest_complete,
    verify_checkpoint,
)

pytestmark = pytest.mark.process

KEEP = Retention(newest=3)
DEADLINE_S = 60.0


@pytest.fixture
def saver(kit, tmp_path):
    with closing(Saver(tmp_path, kit.state())) as saver:
        yield saver


def _save(saver, step, state, **settings):
    """Stage, wait, and return everything that was said."""
    settings = {"extra": {"step": step}, "retention": KEEP} | settings
    saver.stage(step, state, **settings)
    return saver.drain(DEADLINE_S)


def _steps(folder):
    return [found.step for found in find_checkpoints(folder) if found.is_complete]


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def _writer_pid(folder):
    """The process of this test's writer, found as a user would: by its command line."""
    for pid in _children(os.getpid()):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if str(folder).encode() in file.read().split(b"\0"):
                return pid
    return None


def _has_ended(pid):
    return not os.path.exists(f"/proc/{pid}/fd/0")  # a process that nobody has reaped has no files


def _until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_what_was_staged_is_what_loads(kit, saver, tmp_path):
    """The plainest resume of all."""
    state = kit.state(seed=3)
    (event,) = _save(saver, 20, state, extra={"step": 20, "data": {"epoch": 1}})
    assert isinstance(event, Saved)
    assert (event.step, event.size_bytes) == (20, sum(map(len, kit.contents(state).values())))
    loaded = kit.load(tmp_path / "step-20", expected=state)
    assert kit.same_bits(loaded.state, state)
    assert loaded.extra == {"step": 20, "data": {"epoch": 1}}
    assert verify_checkpoint(tmp_path / "step-20", None) == []


def test_training_goes_on_while_the_save_is_written(kit, saver, tmp_path):
    """S-CKP-09: the next step changes the weights while they are still being copied."""
    state = kit.state()
    as_staged = {part: {name: t.clone() for name, t in tensors.items()} for part, tensors in state.items()}
    assert saver.stage(20, state, {}, retention=KEEP, fault=Fault.SLOW)
    for tensors in state.values():
        for tensor in tensors.values():
            tensor.fill_(float("nan"))
    assert saver.saving == 20
    saver.drain(DEADLINE_S)
    assert kit.same_bits(kit.load(tmp_path / "step-20").state, as_staged)


def test_save_before_the_last_one_ended_is_skipped(kit, saver):
    """A second copy into the same memory would mix two steps in one checkpoint."""
    assert saver.stage(10, kit.state(), {}, retention=KEEP, fault=Fault.SLOW)
    assert not saver.stage(11, kit.state(), {}, retention=KEEP)
    skipped, saved = saver.poll() + saver.drain(DEADLINE_S)
    assert skipped == Skipped(step=11, reason="step-10 is still being written")
    assert saved.step == 10


@pytest.mark.parametrize(
    ("settings", "event"),
    [
        ({"finite": False}, Skipped(step=20, reason="the state holds values that are not finite")),
        ({"extra": {"loss": float("nan")}}, Failed),
        ({"extra": {"rng": b"bytes"}}, Failed),
        ({"extra": {"ids": "x" * MAX_EXTRA_BYTES}}, Failed),
    ],
)
def test_what_must_not_become_a_checkpoint_does_not(kit, saver, tmp_path, settings, event):
    """S-CKP-15: a poisoned checkpoint rotates the good ones out."""
    _save(saver, 10, kit.state())
    (found,) = _save(saver, 20, kit.state(), **settings)
    assert found == event or type(found) is event
    assert _steps(tmp_path) == [10]


def test_numbers_as_keys_survive(kit, saver, tmp_path):
    """JSON turns them into text, in another order: the seal would not fit what a reader sees."""
    _save(saver, 20, kit.state(), extra={"losses": {9: 1.0, 10: 2.0}})
    assert kit.load(tmp_path / "step-20").extra == {"losses": {"9": 1.0, "10": 2.0}}


def test_existing_step_is_skipped_also_after_a_restart(kit, saver, tmp_path):
    """A replayed step would write over the checkpoint that the run resumed from."""
    _save(saver, 20, kit.state())
    with closing(Saver(tmp_path, kit.state())) as again:
        for who in (saver, again):
            assert _save(who, 20, kit.state(seed=1)) == [
                Skipped(step=20, reason="step-20 is already complete and is never overwritten")
            ]
    assert kit.same_bits(kit.load(tmp_path / "step-20").state, kit.state())


def test_older_ones_go_only_when_the_newer_is_durable(kit, saver, tmp_path):
    """S-CKP-09, S-CKP-11: a failed save would have deleted the last good checkpoint already."""
    keep = Retention(newest=1, pinned=frozenset({10}))
    for step in (10, 20):
        _save(saver, step, kit.state(), retention=keep)
    assert isinstance(_save(saver, 30, kit.state(), retention=keep, fault=Fault.DISK_FULL)[0], Failed)
    assert _steps(tmp_path) == [10, 20]
    assert _save(saver, 40, kit.state(), retention=keep)[1:] == [Pruned(step=20)]
    assert _steps(tmp_path) == [10, 40] == sorted(saver.complete)


def test_checkpoint_that_is_being_read_is_kept_until_later(kit, saver, tmp_path):
    """S-CKP-11: an export would find its files gone half-way."""
    keep = Retention(newest=1)
    _save(saver, 10, kit.state())
    with OpenCheckpoint(tmp_path / "step-10", None):
        assert _save(saver, 20, kit.state(), retention=keep)[1:] == [Kept(step=10, reason="it is being read")]
    assert _save(saver, 30, kit.state(), retention=keep)[1:] == [Pruned(step=10), Pruned(step=20)]


def test_full_disk_in_the_middle_of_a_save(kit, saver, tmp_path):
    """S-CKP-14: files that look whole, or a job dead at the last save of a long run."""
    _save(saver, 10, kit.state())
    (event,) = _save(saver, 20, kit.state(), fault=Fault.DISK_FULL)
    assert isinstance(event, Failed)
    assert event.reason.startswith("No space left on device: needs 1316 bytes, ")
    assert os.listdir(tmp_path) == ["step-10"]
    assert isinstance(_save(saver, 20, kit.state())[0], Saved)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("mounting a file system needs privileges")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_disk_with_room_for_one_and_a_half(kit, small_disk):
    """S-CKP-14: told before anything is written, with both figures, and the previous one loads."""
    state = kit.state({"a": (1_250_000,)}, parts=("parameters",))
    with closing(Saver(small_disk, state)) as saver:
        _save(saver, 10, state)
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        needed = os.path.getsize(small_disk / "step-10" / "model.safetensors") + 1_000_000
        (event,) = _save(saver, 20, state)
    assert event == Failed(
        step=20,
        reason=f"not enough space in {small_disk}: needs {needed} bytes, {free} free; "
        "older checkpoints are untouched",
    )
    assert os.listdir(small_disk) == ["step-10"]
    assert kit.same_bits(kit.load(newest_complete(small_disk, None).folder).state, state)


def test_storage_that_becomes_read_only(kit, small_disk):
    """S-CKP-10: training would go on for hours and the next save would die over a missing old one."""
    with closing(Saver(small_disk, kit.state())) as saver:
        _save(saver, 10, kit.state())
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        (event,) = _save(saver, 20, kit.state(), retention=Retention(newest=1))
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        assert "Read-only file system" in event.reason
        assert isinstance(_save(saver, 30, kit.state())[0], Saved)
    assert _steps(small_disk) == [10, 30]


def test_folder_that_is_gone_is_an_event(kit, saver, tmp_path):
    """S-CKP-10: the run must not die because of its storage."""
    shutil.rmtree(tmp_path)
    for step in (10, 20):
        (event,) = _save(saver, step, kit.state())
        assert "No such file or directory" in event.reason


def test_killed_writer_is_replaced_and_its_remains_removed(kit, saver, tmp_path):
    """S-CKP-08, S-CKP-10: no save would ever succeed again, and nobody would be told."""
    _save(saver, 10, kit.state())
    lost, failed = _save(saver, 20, kit.state(), fault=Fault.TORN)
    assert lost == WriterLost(reason="the checkpoint writer ended: killed by signal 9")
    assert failed == Failed(step=20, reason=lost.reason)
    assert [event.step for event in _save(saver, 30, kit.state())] == [30]
    assert sorted(os.listdir(tmp_path)) == ["step-10", "step-30"]


def test_writer_that_dies_idle_is_replaced_for_the_next_save(kit, saver, tmp_path):
    """S-CKP-10: the save after the death would be the one that is lost."""
    _save(saver, 10, kit.state())
    pid = _writer_pid(tmp_path)
    os.kill(pid, signal.SIGKILL)
    _until(lambda: _has_ended(pid))
    lost, saved = _save(saver, 20, kit.state())
    assert isinstance(lost, WriterLost)
    assert (type(saved), saved.step) == (Saved, 20)


def test_remains_of_dead_writers_are_removed_at_the_start(kit, tmp_path):
    """S-CKP-11: abandoned folders fill the disk, attempt after attempt.

    In a container the dead writer's number may be that of another process by now.
    """
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (f"step-20.tmp-{gone.pid}", f"step-10.tmp-{os.getpid()}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
    with closing(Saver(tmp_path, kit.state())) as saver:
        _save(saver, 40, kit.state())
    assert os.listdir(tmp_path) == ["step-40"]


def test_what_another_machine_writes_is_removed_only_when_nobody_can_be_at_work_in_it(kit, tmp_path):
    """S-CKP-11: on shared storage the number of another host's writer means nothing here."""
    old = time.time() - FORSAKEN_S - 60
    for name, is_old in (("step-10.tmp-7-00000000", True), ("step-20.tmp-7-00000000", False)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
        for path in (tmp_path / name / "model.safetensors", tmp_path / name) if is_old else ():
            os.utime(path, (old, old))
    with closing(Saver(tmp_path, kit.state())) as saver:
        _save(saver, 40, kit.state())
        assert sorted(os.listdir(tmp_path)) == ["step-20.tmp-7-00000000", "step-40"]
        for path in (*(tmp_path / "step-20.tmp-7-00000000").iterdir(), tmp_path / "step-20.tmp-7-00000000"):
            os.utime(path, (old, old))
        _save(saver, 50, kit.state())  # looked for again at every save, not at the start alone
    assert _steps(tmp_path) == [40, 50]
    assert len(os.listdir(tmp_path)) == 2


def test_a_checkpoint_that_is_pinned_in_the_last_moment_stays(kit, tmp_path):
    """Somebody saw a good one and pinned it, while the save that takes it away was already under way."""
    root = tmp_path / "checkpoints"
    with closing(Saver(root, kit.state())) as saver:
        _save(saver, 10, kit.state(), retention=Retention(newest=1))
        saver.stage(20, kit.state(), {}, retention=Retention(newest=1), fault=Fault.SLOW)
        change_marks(tmp_path, lambda marks: replace(marks, pinned=frozenset({10})))
        events = saver.drain(DEADLINE_S)
        assert Kept(step=10, reason="it was pinned just now") in events
    assert _steps(root) == [10, 20]


def test_save_of_a_living_writer_is_not_touched(kit, saver, tmp_path):
    """S-CKP-11: an attempt that starts early would delete what the one before is still writing."""
    saver.stage(10, kit.state(), {}, retention=KEEP, fault=Fault.SLOW)
    _until(lambda: any(".tmp-" in name for name in os.listdir(tmp_path)))
    with closing(Saver(tmp_path, kit.state())) as other:
        _save(other, 20, kit.state())
        assert isinstance(saver.drain(DEADLINE_S)[0], Saved)
    assert _steps(tmp_path) == [10, 20]


def test_close_waits_for_the_save_or_gives_it_up(kit, tmp_path):
    """S-CKP-20: the save at the stop signal is the one that matters; after the grace period it is given up."""
    patient = Saver(tmp_path, kit.state())
    patient.stage(10, kit.state(), {}, retention=KEEP)
    assert [type(event) for event in patient.close()] == [Saved]
    hurried = Saver(tmp_path, kit.state())
    hurried.stage(20, kit.state(), {}, retention=KEEP, fault=Fault.SLOW)
    assert hurried.close(timeout_s=0.05) == [Failed(step=20, reason="given up: the saver was closed")]
    assert os.listdir(tmp_path) == ["step-10"]
    assert _writer_pid(tmp_path) is None


SAVE_BYTES = 3 * 4 * 3_333_333
TRAINERS = """
import os, sys, time
from pathlib import Path
import torch
from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint.saver import Saver

torch.set_num_threads(1)
folder = Path(sys.argv[1])
for line in sys.stdin:  # each trainer is a fork: importing torch takes longer than the test of it
    step = int(line)
    if (pid := os.fork()) == 0:
        state = {part: {"a": torch.full((3_333_333,), float(step))} for part in ("parameters", "m", "v")}
        saver = Saver(folder, state)
        saver.stage(step, state, {"step": step}, retention=Retention(newest=2))
        print(os.getpid(), flush=True)
        time.sleep(60)
    os.waitpid(pid, 0)
"""
"""Trainers that save 40 MB and wait to be killed, one for every step named on stdin."""


@pytest.fixture
def trainers(tmp_path):
    command = [sys.executable, "-c", TRAINERS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server
        server.stdin.close()


def _written_bytes(folder, step):
    """How far the save of a step has come; everything once it is complete."""
    if (folder / f"step-{step}").exists():
        return float("inf")
    sizes = []
    for path in folder.glob(f"step-{step}.tmp-*/*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def _wait_for_progress(folder, step, moments):
    """A random moment of a save, by its progress: so it is as random on a busy machine.

    Some are after the last byte, in an fsync or in the rename, and some at the very end.
    """
    fraction = moments.uniform(0, 1.4)
    bytes_wanted = fraction * SAVE_BYTES if fraction < 1 else SAVE_BYTES if fraction < 1.2 else float("inf")
    _until(lambda: _written_bytes(folder, step) >= bytes_wanted)


def _kill_trainer(trainers, folder, step, moments):
    print(step, file=trainers.stdin, flush=True)
    pid = int(trainers.stdout.readline())
    (writer,) = _children(pid)
    _wait_for_progress(folder, step, moments)
    os.kill(pid, signal.SIGKILL)
    _until(lambda: _has_ended(writer))


def _filled(value):
    return {part: {"a": torch.full((3_333_333,), float(value))} for part in ("parameters", "m", "v")}


def _is_filled(state, value):
    return all(bool((tensor == value).all()) for tensors in state.values() for tensor in tensors.values())


def test_trainer_killed_at_random_moments_of_a_save(kit, trainers, tmp_path):
    """S-CKP-08: after any kill the newest whole checkpoint loads, and nothing half is left or believed."""
    moments = random.Random(8)
    known = {}
    for step in range(1, 11):
        _kill_trainer(trainers, tmp_path, step, moments)
        assert not [name for name in os.listdir(tmp_path) if ".tmp-" in name]
        known[step] = step in _steps(tmp_path)
        folder = newest_complete(tmp_path, None).folder
        newest = max((s for s, is_saved in known.items() if is_saved), default=None)
        assert (folder and folder.name) == (newest and f"step-{newest}")
        if folder:
            loaded = kit.load(folder)
            assert _is_filled(loaded.state, newest)
            assert loaded.extra == {"step": newest}
    assert 0 < sum(known.values()) < 10  # else every kill came too late or too early, and nothing was tested


def test_writer_killed_at_random_moments_of_a_save(kit, tmp_path):
    """S-CKP-08, S-CKP-10: the run goes on with another writer, and what it was told is what is there."""
    moments = random.Random(9)
    saved = []
    with closing(Saver(tmp_path, _filled(0))) as saver:
        for step in range(1, 11):
            saver.stage(step, _filled(step), {"step": step}, retention=Retention(newest=2))
            _wait_for_progress(tmp_path, step, moments)
            os.kill(_writer_pid(tmp_path), signal.SIGKILL)
            events = saver.drain(DEADLINE_S)
            saved += [event.step for event in events if isinstance(event, Saved)]
            failed = [event.step for event in events if isinstance(event, Failed)]
            assert failed == ([] if step in saved else [step])
            assert _steps(tmp_path)[-1:] == saved[-1:]
            if saved:
                assert _is_filled(kit.load(newest_complete(tmp_path, None).folder).state, saved[-1])
        assert 0 < len(saved) < 10
        _save(saver, 99, _filled(99))
    assert not [name for name in os.listdir(tmp_path) if ".tmp-" in name]


def test_there_is_always_a_complete_checkpoint(kit, tmp_path):
    """S-CKP-11: with keep 1, whoever looks at any moment finds one to resume from."""
    moments = random.Random(11)
    state = kit.state({"a": (100_000,)})
    looks = 0
    with closing(Saver(tmp_path, state)) as saver:
        _save(saver, 1, state)
        for step in range(2, 52):
            saver.stage(step, state, {}, retention=Retention(newest=1))
            kill_at = time.monotonic() + moments.uniform(0, 0.06)
            while saver.saving is not None:
                assert newest_complete(tmp_path, None).folder is not None
                looks += 1
                if time.monotonic() > kill_at and (pid := _writer_pid(tmp_path)):
                    os.kill(pid, signal.SIGKILL)
                    kill_at = float("inf")
                saver.poll()
    assert looks > 100


def test_manifest_is_readable_by_people(kit, saver, tmp_path):
    """Whoever looks into a folder after an accident sees what it should hold."""
    _save(saver, 20, kit.state())
    document = json.loads((tmp_path / "step-20" / "manifest.json").read_text())
    assert list(document) == [
        "format", "version", "written_by", "run", "step", "files", "parts", "extra", "digest"
    ]  # fmt: skip
    assert document["written_by"]
