"""The process that makes staged state durable while training goes on.

Started by the saver as ``python -m trimtab.runtime.checkpoint.writer FD SIZE FOLDER RUN``; never by hand. It
imports the standard library only, so that it starts in milliseconds and a hundred megabytes of libraries do
not lie beside every trainer; what encrypts, or speaks with an object store, is loaded when it is needed.

Requests come as JSON lines on stdin, answers go as JSON lines to stdout. The state itself never passes
through a pipe: the memory behind FD holds the exact bytes of the files.

    {"remove": ["step-10.tmp-7"]}                            leftovers of a writer that is gone
    {"step": 20, "started_ns": 5, "fault": null,             a save
     "files": [{"name": "model.safetensors", "offset_bytes": 0, "size_bytes": 104, "head_bytes": 64}],
     "manifest": {...}, "prune": [5, 10], "key": "9f86…", "sealing": null}

    {"step": 20, …, "into": "step-20.tmp-6",                 one rank's part of a save that several write together
     "receipt": "rank-1.json"}
    {"step": 20, …, "manifest": {...}, "into": "step-20.tmp-7",      the lead's, who waits for the others
     "patience_s": 300.0, "others": [{"receipt": "rank-1.json", "files": [{"name": "model-1.safetensors", "size_bytes": 104}]}]}

    {"event": "ready"}                                       after the start
    {"event": "saved", "step": 20, "seconds": 0.4, "pruned": [5], "kept": [[10, "it is being read"]]}
    {"event": "failed", "step": 20, "reason": "..."}

``key`` is the secret that signs, in hexadecimal, or null, ``sealing`` the one that wraps the keys of encrypted files. They
pass through the pipe and are written nowhere.

Several ranks that write together write into one folder, which the lead has made. Each leaves a receipt when its files are
durable: their entries in the manifest, signed. The lead waits for all of them, and gives the folder its name. Whoever cannot do
its part, or dies, takes the folder away: so the others notice, without a word between them. In an object store the lead
writes the manifest last instead, and who gives up leaves word of it.

The end of stdin means that the trainer is done or dead: what is unfinished is discarded at once.
"""

import contextlib
import errno
import hashlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from trimtab.runtime.checkpoint.chunks import CHUNK_BYTES, chunk_ends, digest_of
from trimtab.runtime.checkpoint.cipher import ALGORITHM, TAG_BYTES, about, new_secret, sealer, wrap
from trimtab.runtime.checkpoint.folder_target import Attempt, FolderTarget, Sink, Target
from trimtab.runtime.checkpoint.object_target import ObjectTarget
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.signing import Key, receipt_mark, signed
from trimtab.runtime.lifeline import die_with_parent

NICENESS = 10
"""The trainer's own threads come first; on an idle core it makes no difference."""
SLOW_CHUNK_S = 0.1
"""The pause after each chunk under the planted fault ``slow``."""
ABANDON_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR1)
"""Ends the writer as the end of stdin does. A real-time signal where there is one: SIGUSR1 is what clusters
send to a whole process group as a notice of preemption."""


class TrainerGoneError(Exception):
    """Nobody waits for an answer any more."""


class Requests:
    """The lines that the trainer sends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._received = b""

    def next(self) -> dict[str, Any]:
        """Wait for a request.

        Raises: TrainerGoneError at the end of input.
        """
        while b"\n" not in self._received:
            self._receive()
        line, _, self._received = self._received.partition(b"\n")
        request: dict[str, Any] = json.loads(line)
        return request

    def check(self) -> None:
        """Look, without waiting, whether the trainer is still there.

        Raises: TrainerGoneError if it is not.
        """
        while select.select([self._fd], [], [], 0)[0]:
            self._receive()

    def _receive(self) -> None:
        received = os.read(self._fd, 65536)
        if not received:
            _abandon()
        self._received += received


def main(arguments: list[str]) -> int:
    """Serve one trainer until it goes away."""
    fd, size_bytes = int(arguments[0]), int(arguments[1])
    target = _target(arguments[2], Path(arguments[3]))
    try:
        _outlive_nobody()
        os.nice(NICENESS)
        image = memoryview(mmap(fd, size_bytes, access=ACCESS_READ))
        requests = Requests(sys.stdin.fileno())
        _answer({"event": "ready"})
        while True:
            _serve(requests.next(), image, target, requests.check)
    except (TrainerGoneError, BrokenPipeError):
        return 0


def _target(place: str, run_folder: Path) -> Target:
    if "://" not in place:
        return FolderTarget(Path(place), run_folder)
    return ObjectTarget(ObjectPath(place), run_folder)


def _outlive_nobody() -> None:
    """Die with the trainer, but not by the signals that ask the trainer to save and stop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole process group
    signal.signal(ABANDON_SIGNAL, _abandon)
    # The end of stdin does not come while a forked child of the trainer, such as a data loader, holds the other
    # end; this does. Not SIGKILL, which would leave the unfinished folder behind.
    die_with_parent(ABANDON_SIGNAL)


def _abandon(*_: object) -> None:
    # A dying trainer closes the pipe and then sends the signal: the second must not cut short the clearing
    # up after the first.
    signal.signal(ABANDON_SIGNAL, signal.SIG_IGN)
    raise TrainerGoneError


def _serve(request: dict[str, Any], image: memoryview, target: Target, check: Callable[[], None]) -> None:
    if "remove" in request:
        with contextlib.suppress(OSError):  # it is looked for again
            target.clear(request["remove"])
    if "step" not in request:
        return
    step = request["step"]
    try:
        _save(request, image, target, check)
    except (OSError, ImportError) as error:
        _answer({"event": "failed", "step": step, "reason": _explain(error, request, target)})
        return
    seconds = (time.monotonic_ns() - request["started_ns"]) / 1e9
    pruned, kept = _prune(request["prune"], target)
    _answer({"event": "saved", "step": step, "seconds": seconds, "pruned": pruned, "kept": kept})


def _explain(error: OSError | ImportError, request: dict[str, Any], target: Target) -> str:
    if isinstance(error, FileNotFoundError) and "into" in request:
        return f"{request['into']} was taken away: another rank could not write its part, and says why"
    if isinstance(error, ImportError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return str(error)
    needed_bytes = sum(file["size_bytes"] for file in request["files"])
    return f"{error.strerror}: needs {needed_bytes} bytes, {target.free_bytes()} free without this attempt"


def _answer(answer: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


def _save(request: dict[str, Any], image: memoryview, target: Target, check: Callable[[], None]) -> None:
    """Write, make durable, and only then make it a checkpoint: one act that either happened or did not."""
    key = Key(secret=bytes.fromhex(request["key"])) if request["key"] else None
    attempt = target.attempt(request["step"], request.get("into"))
    try:
        entries = [_write_region(attempt, file, image, request, check) for file in request["files"]]
        if "receipt" in request:
            attempt.leave(request["receipt"], _receipt(request["step"], entries, key))
            return
        others = request.get("others", ())
        for other in others:
            entries += _await(attempt, other, request, key, check)
        manifest = request["manifest"] | {"files": entries}
        attempt.finish(signed(manifest, key) if key else manifest, [other["receipt"] for other in others])
    except BaseException:
        attempt.discard()
        raise


def _receipt(step: int, entries: list[dict[str, Any]], key: Key | None) -> dict[str, Any]:
    """What a rank says of its files; nobody can put words into its mouth who has not the key."""
    said = {"step": step, "files": entries}
    return said | {"mark": receipt_mark(said, key)} if key else said


def _await(
    attempt: Attempt,
    other: dict[str, Any],
    request: dict[str, Any],
    key: Key | None,
    check: Callable[[], None],
) -> list[dict[str, Any]]:
    """Wait until another rank has written its files; their entries in the manifest.

    Raises: OSError if it has given up, writes nothing any more, or has written something else.
    """
    arrived_bytes, deadline_s = -1, 0.0
    names = [file["name"] for file in other["files"]]
    while (said := attempt.find(other["receipt"])) is None:
        check()
        found_bytes = attempt.arrived_bytes(names)
        if found_bytes != arrived_bytes:
            arrived_bytes, deadline_s = found_bytes, time.monotonic() + request["patience_s"]
        elif time.monotonic() > deadline_s:
            rank = other["receipt"].removesuffix(".json").replace("-", " ")
            raise OSError(
                f"nothing of {rank} has arrived for {request['patience_s']:g} s: a save is of all ranks that hold pieces"
            )
        time.sleep(attempt.look_s)
    entries: list[dict[str, Any]] = said["files"]
    if said != _receipt(request["step"], entries, key):
        raise OSError(f"{other['receipt']} does not bear the run's mark: another program wrote it")
    stated = [{name: entry[name] for name in ("name", "size_bytes")} for entry in entries]
    if stated != other["files"]:
        raise OSError(f"{other['receipt']} speaks of {stated}, expected {other['files']}")
    return entries


def _write_region(
    attempt: Attempt,
    file: dict[str, Any],
    image: memoryview,
    request: dict[str, Any],
    check: Callable[[], None],
) -> dict[str, Any]:
    """Write one file out of the staged image, encrypted if there is a key for it; returns its entry in the manifest."""
    first, size_bytes, head_bytes = file["offset_bytes"], file["size_bytes"], file["head_bytes"]
    contents = image[first : first + size_bytes]
    seal, cipher = _sealing(request, file["name"])
    digests, stored_bytes = [], 0
    with attempt.create(file["name"]) as sink:
        ends = list(chunk_ends(size_bytes, head_bytes=head_bytes, chunk_bytes=CHUNK_BYTES))
        for number, (begin, end) in enumerate(ends):
            chunk = seal(number, end == size_bytes, contents[begin:end])
            sink.write(memoryview(chunk))
            digests.append(hashlib.sha256(chunk).hexdigest())
            stored_bytes += len(chunk)
            check()
            if request["fault"] is not None:
                _strike(request["fault"], sink)
    tag_bytes = TAG_BYTES if cipher else 0
    chunks = {"head_bytes": head_bytes + tag_bytes, "chunk_bytes": CHUNK_BYTES + tag_bytes, "sha256": digests}
    entry = {"name": file["name"], "size_bytes": stored_bytes, "sha256": digest_of(digests), "chunks": chunks}
    return entry | cipher


def _sealing(
    request: dict[str, Any], name: str
) -> tuple[Callable[[int, bool, memoryview], bytes | memoryview], dict[str, Any]]:
    """What a file's chunks become, and how its entry in the manifest tells."""
    if request["sealing"] is None:
        return lambda number, is_last, plain: plain, {}
    key, secret = Key(secret=bytes.fromhex(request["sealing"])), new_secret()
    bound = about(request["run"], request["step"], name)
    wrapped = {"algorithm": ALGORITHM, "key": key.id, "wrapped": wrap(secret, key, bound)}
    return sealer(secret, bound), {"cipher": wrapped}


def _strike(fault: str, sink: Sink) -> None:
    """Make a planted fault happen in the middle of a file."""
    if fault == "disk_full":
        if sink.fd is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        full = os.open("/dev/full", os.O_WRONLY)  # whose writes fail with the kernel's own ENOSPC
        os.dup2(full, sink.fd)
        os.close(full)
    elif fault == "torn":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "slow":
        time.sleep(SLOW_CHUNK_S)


def _prune(steps: list[int], target: Target) -> tuple[list[int], list[tuple[int, str]]]:
    """Remove older checkpoints, passing over those that cannot go now; the next plan names them again."""
    pruned = []
    kept = []
    for step in steps:
        try:
            target.prune(step)
        except FileNotFoundError:
            pruned.append(step)  # somebody else removed it
        except BlockingIOError:
            kept.append((step, "it is being read"))
        except (OSError, ValueError) as error:
            kept.append((step, str(error)))
        else:
            pruned.append(step)
    return pruned, kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
