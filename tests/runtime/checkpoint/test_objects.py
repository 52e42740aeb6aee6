"""Checkpoints in an object store: a real server of the S3 protocol, in a process of its own."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from trimtab.ledger.manifests import CheckpointError, seal
from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint import object_target, objects
from trimtab.runtime.checkpoint.contents import open_contents
from trimtab.runtime.checkpoint.events import Failed, Pruned, Saved
from trimtab.runtime.checkpoint.keyring import open_keyring
from trimtab.runtime.checkpoint.marks import change_marks
from trimtab.runtime.checkpoint.object_target import ObjectTarget
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.places import checkpoints_of
from trimtab.runtime.checkpoint.rewrapping import rewrap
from trimtab.runtime.checkpoint.saver import Company, Fault, Saver
from trimtab.runtime.checkpoint.signing import Key
from trimtab.runtime.checkpoint.store import (
    await_sight,
    find_checkpoints,
    newest_complete,
    set_aside,
    verify_checkpoint,
)
from trimtab.terms import InputError

pytestmark = pytest.mark.process

DEADLINE_S = 60.0
ROWS = 3_000_000
"""Of a weight that spans several chunks."""


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """An empty bucket of a server that is ended at the end."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    log = (tmp_path_factory.mktemp("server") / "log").open("wb")
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        url = f"http://127.0.0.1:{port}"
        with pytest.MonkeyPatch.context() as patch:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.setenv(name, "test")
            patch.setenv("AWS_ENDPOINT_URL", url)
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            deadline = time.monotonic() + DEADLINE_S
            while True:
                with contextlib.suppress(OSError):
                    request = urllib.request.Request(f"{url}/models", method="PUT")
                    urllib.request.urlopen(request, timeout=10).close()
                    break
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield ObjectPath("s3://models")
            objects._system.cache_clear()
        server.terminate()


@pytest.fixture
def run(bucket, tmp_path):
    """A run: where its checkpoints are, its folder, its keys."""
    return bucket / tmp_path.name, tmp_path, open_keyring(tmp_path)


def state(value, rows=ROWS):
    return {
        part: {"w": torch.full((rows,), float(value)), "b": torch.ones(3)}
        for part in ("parameters", "exp_avg")
    }


@contextlib.contextmanager
def saver_of(run, rows=ROWS):
    root, folder, keys = run
    with closing(Saver(root, state(0, rows), keys=keys, run_folder=folder)) as saver:
        yield saver


def save(saver, step, rows=ROWS, **settings):
    saver.stage(step, state(step, rows), {"step": step}, **({"retention": Retention(newest=2)} | settings))
    return saver.drain(DEADLINE_S)


def steps(root):
    return [found.step for found in find_checkpoints(root) if found.is_complete]


@pytest.mark.slow
def test_what_was_saved_is_what_loads_and_older_ones_go(kit, run):
    """The plainest run of all; a pinned one stays, and what is set aside counts no more."""
    root, folder, keys = run
    assert find_checkpoints(root) == ()
    assert newest_complete(root, keys).folder is None
    with saver_of(run) as saver:
        events = [event for step in (8, 9, 10) for event in save(saver, step)]
        assert [type(event) for event in events] == [Saved, Saved, Saved, Pruned]
        change_marks(folder, lambda marks: replace(marks, pinned=frozenset({9})))
        save(saver, 11, retention=Retention(newest=1))
    assert steps(root) == [9, 11]
    newest = newest_complete(root, keys).folder
    assert newest == root / "step-11"
    assert kit.same_bits(kit.load(newest, keys=keys).state, state(11))
    assert verify_checkpoint(newest, keys) == []
    set_aside(root, 11)
    assert newest_complete(root, keys).folder == root / "step-9"


def test_ranks_write_together_and_any_layout_reads_what_it_needs(run, monkeypatch):
    """Encrypted, by three ranks at once; whoever reads a row fetches that, and not the others' files."""
    root, folder, keys = run
    keys = replace(keys, sealing=Key(secret=os.urandom(32)))
    pieces = {
        rank: {
            part: {f"w[{rank}:{rank + 1},0:{ROWS}]": torch.full((1, ROWS), float(rank))}
            for part in ("parameters", "m")
        }
        for rank in range(3)
    }
    with ExitStack() as stack:
        savers = [
            stack.enter_context(
                closing(
                    Saver(
                        root,
                        pieces[rank],
                        Company(
                            rank=rank, is_lead=not rank, others={} if rank else {1: pieces[1], 2: pieces[2]}
                        ),
                        keys=keys,
                        run_folder=folder,
                    )
                )
            )
            for rank in range(3)
        ]
        into = savers[0].open(5)
        for rank, saver in enumerate(savers):
            saver.stage(5, pieces[rank], {}, retention=Retention(), into=into)
        assert [type(event) for saver in reversed(savers) for event in saver.drain(DEADLINE_S)] == [Saved] * 3
    assert verify_checkpoint(root / "step-5", keys) == []
    fetched = []
    read = ObjectPath.read_range
    monkeypatch.setattr(
        ObjectPath, "read_range", lambda path, a, b: fetched.append((path.name, b - a)) or read(path, a, b)
    )
    with open_contents(root / "step-5", keys) as contents:
        before = len(fetched)  # headers
        found = np.empty((1, 100), dtype=np.float32)
        contents.copy("parameters", "w", ((2, 3), (ROWS - 100, ROWS)), found)
    assert (found == 2.0).all()
    assert {name for name, _ in fetched[before:]} == {"model-2.safetensors"}
    assert rewrap(root / "step-5", keys, Key(secret=bytes(32))) == 6
    assert verify_checkpoint(root / "step-5", replace(keys, sealing=Key(secret=bytes(32)))) == []


@pytest.mark.slow
def test_nothing_is_seen_before_the_manifest(kit, run):
    """S-CKP-08: killed in the middle of an upload, the one before is the newest, and the next save works."""
    root, _, keys = run
    with saver_of(run) as saver:
        save(saver, 1)
        saver.stage(2, state(2), {}, retention=Retention(), fault=Fault.SLOW)
        with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        (writer,) = [
            pid for pid in children if root.url.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        deadline = time.monotonic() + DEADLINE_S
        while not any(name.startswith("step-2/") for name in root.sizes()):
            assert steps(root) == [1]
            assert time.monotonic() < deadline
        os.kill(writer, signal.SIGKILL)
        assert any(isinstance(event, Failed) for event in saver.drain(DEADLINE_S))
        assert steps(root) == [1]
        assert isinstance(save(saver, 2)[-1], Saved)
    assert kit.same_bits(kit.load(newest_complete(root, keys).folder, keys=keys).state, state(2))


@pytest.fixture(scope="module")
def small(bucket, tmp_path_factory):
    """A run with two small checkpoints; whoever changes it puts it right again."""
    folder = tmp_path_factory.mktemp("small")
    run = bucket / folder.name, folder, open_keyring(folder)
    with saver_of(run, 100) as saver:
        for step in (1, 2):
            save(saver, step, 100)
    return run


@pytest.mark.parametrize("harm", ["flipped", "cut", "removed", "swapped", "forged"])
def test_an_object_that_is_harmed_is_refused_by_name(small, harm):
    """Who can write to the bucket would decide what the run goes on with."""
    root, _, keys = small
    manifest = root / "step-2" / "manifest.json"
    written = manifest.read()
    document = json.loads(written)
    path = root / "step-2" / document["folder"] / "model.safetensors"
    whole = path.read()
    body = bytearray(whole)
    body[-1] ^= 1
    source = "step-2/model.safetensors"
    if harm == "removed":
        path.remove()
    elif harm == "swapped":
        other = json.loads((root / "step-1" / "manifest.json").read())["folder"]
        path.write((root / "step-1" / other / "model.safetensors").read())
    else:
        path.write(bytes(body)[: -1 if harm == "cut" else None])
    if harm == "forged":
        source = "step-2/manifest.json"
        entry = document["files"][0]
        head = entry["chunks"]["head_bytes"]
        entry["chunks"]["sha256"] = [hashlib.sha256(part).hexdigest() for part in (body[:head], body[head:])]
        digests = b"".join(map(bytes.fromhex, entry["chunks"]["sha256"]))
        entry["sha256"] = hashlib.sha256(digests).hexdigest()
        manifest.write(json.dumps(seal(document)).encode())
    try:
        assert [problem.file for problem in verify_checkpoint(root / "step-2", keys)] == [source]
        with (
            pytest.raises(CheckpointError, match=f"^{source}"),
            open_contents(root / "step-2", keys) as contents,
        ):
            contents.check()
    finally:
        path.write(whole)
        manifest.write(written)
    assert verify_checkpoint(root / "step-2", keys) == []


def test_a_second_manifest_is_refused(run):
    """Two attempts that both believe they are the run would take turns in one checkpoint."""
    root, *_ = run
    first, second = (ObjectTarget(root, Path()).attempt(3, f"step-3.tmp-1-0000000{n}") for n in (1, 2))
    first.finish({"step": 3, "of": 1}, [])
    with pytest.raises(FileExistsError):
        second.finish({"step": 3, "of": 2}, [])
    first.finish({"step": 3, "of": 1}, [])  # an answer that was lost makes it ask again
    assert json.loads((root / "step-3" / "manifest.json").read()) == {"step": 3, "of": 1}


def test_dead_attempts_are_collected_and_nothing_else(small, monkeypatch):
    """S-CKP-11: what killed uploads leave is paid for month after month; what is young may be somebody's work."""
    root, folder, _ = small
    aside = set_aside(root, 2)
    for attempt in ("7-aaaaaaaa", "8-bbbbbbbb"):
        (root / "step-1" / attempt / "model.safetensors").write(b"half")
    before = set(root.sizes())
    target = ObjectTarget(root, folder)
    target.clear([])
    assert set(root.sizes()) == before
    monkeypatch.setattr(object_target, "FORSAKEN_S", -60.0)
    target.clear([])
    assert set(root.sizes()) == {name for name in before if "aaaaaaaa" not in name and "bbbbbbbb" not in name}
    assert steps(root) == [1]
    (root / "step-2" / "manifest.json").write((aside / "manifest.json").read())
    assert steps(root) == [1, 2]


class Moody:
    """A store that fails, or sees nothing, for a while."""

    def __init__(self, system, *, failures=0, blind_s=0.0):
        self._system, self.failures, self._sighted_s = system, failures, time.monotonic() + blind_s
        self.num_asked = 0

    def __getattr__(self, name):
        found = getattr(self._system, name)
        if name == "_strip_protocol":
            return found

        def ask(*arguments, **settings):
            self.num_asked += 1
            if self.failures:
                self.failures -= 1
                raise ConnectionResetError("the store went away")
            if time.monotonic() < self._sighted_s:
                if name == "find":
                    return {}
                raise FileNotFoundError(arguments[0])
            return found(*arguments, **settings)

        return ask


def test_a_store_that_fails_now_and_then_is_asked_again_and_not_for_ever(bucket, tmp_path, monkeypatch):
    """One lost connection in an hour of uploads would lose the save; a store that is gone must not hold it up."""
    path = bucket / tmp_path.name / "object"
    path.write(b"contents")
    monkeypatch.setattr(objects, "FIRST_PAUSE_S", 0.001)
    moody = Moody(objects._system("s3"), failures=objects.TRIES - 1)
    monkeypatch.setattr(objects, "_system", lambda protocol: moody)
    assert path.read() == b"contents"
    moody.failures, moody.num_asked = 10**6, 0
    with pytest.raises(
        OSError, match=rf"cannot read {path}, asked {objects.TRIES} times: the store went away"
    ):
        path.read()
    assert moody.num_asked == objects.TRIES


def test_what_the_lead_has_found_is_waited_for(kit, small, monkeypatch):
    """S-CKP-22: a rank that sees it late would begin anew, or die, while the others go on."""
    root, _, keys = small
    moody = Moody(objects._system("s3"), blind_s=3.0)
    monkeypatch.setattr(objects, "_system", lambda protocol: moody)
    looks = []
    started_s = time.monotonic()
    await_sight(root / "step-1", keys, on_wait=lambda: looks.append(1))
    assert time.monotonic() - started_s > 2.0
    assert looks
    assert kit.same_bits(kit.load(root / "step-1", keys=keys).state, state(1, 100))
    with pytest.raises(CheckpointError, match=r"step-3/manifest\.json: there is no such object"):
        await_sight(root / "step-3", keys, timeout_s=0.1)


def test_a_folder_that_is_shown_late_is_waited_for(kit, tmp_path):
    """S-CKP-22: the same on network storage, where names are remembered for half a minute."""
    kit.write(tmp_path / "elsewhere", 20, kit.state())
    root = tmp_path / "checkpoints"
    await_sight(
        root / "step-20", None, on_wait=lambda: root.exists() or (tmp_path / "elsewhere").rename(root)
    )


@pytest.mark.parametrize("place", ["memory://x", "s3://"])
def test_a_place_that_cannot_be_is_refused(tmp_path, place):
    """The run would find out at its first save, or at the first resume."""
    with pytest.raises(InputError, match=f"checkpoints cannot go to {place}"):
        checkpoints_of(tmp_path, place, Path())


@pytest.mark.parametrize("place", ["elsewhere", "file://{}/elsewhere"])
def test_a_folder_is_a_place(tmp_path, place):
    """A disk that is mounted needs no library, and keeps its locks and its rename."""
    run = tmp_path / "tune-1"
    assert checkpoints_of(run, place.format(tmp_path), tmp_path) == tmp_path / "elsewhere" / "tune-1"
    assert checkpoints_of(run, None, Path()) == run / "checkpoints"
