"""The trainer's side of a save: copy the state aside, let the writer work, hear about it later."""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trimtab.ledger.checkpoint_folders import folder_name, unfinished_name, writer_of
from trimtab.ledger.manifests import CheckpointError, Manifest, manifest_document
from trimtab.policy.retention import Retention, plan_pruning
from trimtab.runtime.checkpoint.chunks import stored_bytes
from trimtab.runtime.checkpoint.cipher import TAG_BYTES
from trimtab.runtime.checkpoint.durable import free_bytes, process_space, take_away
from trimtab.runtime.checkpoint.events import Event, Failed, Kept, Pruned, Saved, Skipped, WriterLost
from trimtab.runtime.checkpoint.keyring import Keyring
from trimtab.runtime.checkpoint.loader import State
from trimtab.runtime.checkpoint.object_target import GIVEN_UP, attempt_of
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.opened import OpenCheckpoint
from trimtab.runtime.checkpoint.process import WriterEndedError, WriterProcess, is_writer
from trimtab.runtime.checkpoint.staging import FileImage, Layout, StagingBuffer
from trimtab.runtime.checkpoint.store import find_checkpoints
from trimtab.terms.version import __version__

MAX_EXTRA_BYTES = 60_000
"""A request must fit into a pipe that nobody reads yet (64 KiB on Linux), or staging would wait."""
FORSAKEN_S = 3600.0
"""Without a byte, after which an unfinished save of another machine is given up: its writers wait five minutes at most."""
PATIENCE_S = 300.0
"""In which nothing of another rank's files has arrived, until it is given up: network storage may show them minutes late."""
MANIFEST_ROOM_BYTES = 1_000_000
"""Free space asked for beyond the tensors: manifest, folder and the file system's own."""


class Fault(StrEnum):
    """What tests and ``--inject`` can make happen to a save."""

    DISK_FULL = "disk_full"
    """The kernel answers a write in the middle of a file with "no space left on device"."""
    TORN = "torn"
    """The writer is killed in the middle of a file."""
    SLOW = "slow"
    """The writer pauses after every few megabytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Company:
    """Several ranks that write one checkpoint together, each what it holds.

    Args:
        rank: The saver's own.
        is_lead: Whether it makes the folder, and gives it its name when all have written; one rank does.
        others: For the lead: what every other rank writes, names and shapes.
        patience_s: How long the lead waits while nothing arrives of another rank's files.
    """

    rank: int
    is_lead: bool
    others: Mapping[int, State] = field(default_factory=dict)
    patience_s: float = PATIENCE_S


class Saver:
    """Saves a state of fixed names and shapes into a run's folder ``checkpoints``.

    Used by one thread of the lead rank: ``stage`` at a step border, ``poll`` every step, ``close`` at the
    end. Between the three the state may change at will. At most one save is under way. Nothing that goes
    wrong with storage or with the writer raises: it is an event, and older checkpoints stay.

    Where ranks hold pieces, every rank has a saver, and they save in company: the lead calls ``open``, then each calls
    ``stage`` with the folder that was opened. A checkpoint is complete when the lead says so.

    The writer dies with the thread that created the saver.
    """

    def __init__(
        self,
        folder: Path | ObjectPath,
        state: State,
        company: Company | None = None,
        *,
        keys: Keyring | None = None,
        run_folder: Path | None = None,
    ) -> None:
        """Allocate the staging memory, start the writer and clear away what dead writers left.

        Args:
            folder: ``RUN/checkpoints``, created if it is not there; or a place in an object store.
            state: The tensors that will be saved; only names and shapes are taken.
            company: With whom it saves; None for a saver of all the state.
            keys: Of the run; None: nothing is signed.
            run_folder: Where pins and marks stand; None: the folder around ``folder``.

        Raises: ValueError if the state cannot be saved at all; OSError if the folder cannot be made.
        """
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
            run_folder = run_folder or folder.parent
        assert run_folder is not None, "an object store has no run's folder around it"
        self._folder, self._run_folder = folder, run_folder
        self._company, self._keys = company, keys
        self._is_lead = company is None or company.is_lead
        self._staging = StagingBuffer(state, company.rank if company else None)
        others = company.others if company else {}
        self._others = {rank: Layout.of(tensors, rank) for rank, tensors in others.items()}
        self._into: str | None = None
        self._complete = _complete_steps(folder, keys)
        self._events: list[Event] = []
        self._saving: int | None = None
        self._started_ns = 0
        self._writer: WriterProcess | None = None
        self._start_writer()

    @property
    def complete(self) -> frozenset[int]:
        """Steps whose checkpoints are complete, as far as the lead knows since the last ``poll``."""
        return frozenset(self._complete)

    @property
    def saving(self) -> int | None:
        """The step that is being written, if any."""
        return self._saving

    @property
    def size_bytes(self) -> int:
        """Of all files of a checkpoint, as far as this saver knows: the lead knows all."""
        layouts = (self._staging.layout, *self._others.values())
        return sum(self._stored_bytes(file) for layout in layouts for file in layout.files)

    def open(self, step: int) -> str | None:
        """Make the folder into which all write, on the lead; its name, or None and an event."""
        self._receive()
        if reason := self._reason_to_skip(step, True):
            self._events.append(Skipped(step=step, reason=reason))
            return None
        try:
            self._check_space()
            if self._writer is None:
                self._start_writer()
            if self._writer is None:
                raise OSError("there is no checkpoint writer")
            name = self._new_name(step, self._writer)
            if isinstance(self._folder, Path):
                (self._folder / name).mkdir()
        except OSError as error:
            self._events.append(Failed(step=step, reason=str(error)))
            return None
        return name

    def give_up(self, step: int, into: str, reason: str) -> None:
        """Nothing is staged into a folder that was opened, on the lead."""
        self._events.append(Skipped(step=step, reason=reason))
        self._leave(into)

    def _new_name(self, step: int, writer: WriterProcess) -> str:
        """Of an attempt: on disk one that tells whose it is, in an object store one that no other ever has."""
        is_on_disk = isinstance(self._folder, Path)
        return unfinished_name(step, writer.pid, process_space() if is_on_disk else secrets.token_hex(4))

    def stage(
        self,
        step: int,
        state: State,
        extra: Mapping[str, Any],
        *,
        retention: Retention,
        finite: bool = True,
        fault: Fault | None = None,
        into: str | None = None,
    ) -> bool:
        """Copy the state and have it written; training may go on as soon as this returns.

        Args:
            step: Optimizer steps finished.
            state: Tensors of exactly the names and shapes that the saver was made for.
            extra: JSON values that resume the run, at most ``MAX_EXTRA_BYTES`` of text.
            retention: What stays when this save is durable.
            finite: False if the state holds NaN or infinity: it is then not saved.
            fault: A fault to plant.
            into: The folder that the lead has opened, for those who save in company.

        Returns: Whether the save is under way; if not, an event says why.
        """
        self._started_ns = time.monotonic_ns()
        self._receive()
        if reason := self._reason_to_skip(step, finite):
            self._events.append(Skipped(step=step, reason=reason))
            self._leave(into)
            return False
        try:
            if into is None:
                self._check_space()
                into = self._own_attempt(step)
            request = self._request(step, extra, retention, fault, into)
            self._staging.fill(state)
            self._send(request)
        except (OSError, ValueError) as error:
            self._events.append(Failed(step=step, reason=str(error)))
            self._leave(into)
            return False
        self._saving, self._into = step, into
        return True

    def poll(self) -> list[Event]:
        """What happened since the last call, in order. Takes microseconds; never waits, never raises."""
        self._receive()
        events, self._events = self._events, []
        return events

    def drain(self, timeout_s: float | None = None) -> list[Event]:
        """Wait until no save is under way, or until the time is over; then as ``poll``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._receive()
        while self._saving is not None and self._writer is not None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if left_s == 0.0:
                break
            self._writer.wait(left_s)
            self._receive()
        return self.poll()

    def close(self, *, wait: bool = True, timeout_s: float | None = None) -> list[Event]:
        """End the writer, after the save under way or, without ``wait``, instead of it. Call once.

        Returns: The last events; a save that was given up is ``Failed``.
        """
        events = self.drain(timeout_s) if wait else self.poll()
        if self._writer is not None:
            self._writer.end()
        if self._saving is not None:
            events.append(Failed(step=self._saving, reason="given up: the saver was closed"))
            self._leave(self._into)  # a writer that was only starting has not
        self._staging.close()
        return events

    def _own_attempt(self, step: int) -> str | None:
        """A name for what is saved without company, where the manifest must say it."""
        if isinstance(self._folder, Path) or self._writer is None:
            return None
        return self._new_name(step, self._writer)

    def _leave(self, into: str | None) -> None:
        """The own part of a save in company will not come."""
        if into is None:
            return
        if isinstance(self._folder, Path):
            take_away(self._folder / into)
            return
        step = into.partition(".tmp-")[0]
        with contextlib.suppress(OSError):  # then the others wait until they lose patience
            (self._folder / step / attempt_of(into) / GIVEN_UP).write(b"")

    def _reason_to_skip(self, step: int, finite: bool) -> str:
        if not finite:
            return "the state holds values that are not finite"
        if self._is_lead and step in self._complete:
            return f"{folder_name(step)} is already complete and is never overwritten"
        if self._saving is not None:
            return f"{folder_name(self._saving)} is still being written"
        return ""

    def _request(
        self,
        step: int,
        extra: Mapping[str, Any],
        retention: Retention,
        fault: Fault | None,
        into: str | None,
    ) -> dict[str, Any]:
        found: dict[str, Any] = {
            "step": step,
            "run": self._keys.run if self._keys else "",
            "started_ns": self._started_ns,
            "fault": fault,
            "files": [
                {
                    "name": file.name,
                    "offset_bytes": file.offset_bytes,
                    "size_bytes": file.size_bytes,
                    "head_bytes": len(file.header),
                }
                for file in self._staging.layout.files
            ],
            "prune": [],
            "key": self._keys.signing.secret.hex() if self._keys else None,
            "sealing": self._keys.sealing.secret.hex() if self._keys and self._keys.sealing else None,
        }
        if into is not None:
            found["into"] = into
        if not self._is_lead:
            assert self._company is not None, "who is not the lead has company"
            return found | {"receipt": _receipt(self._company.rank)}
        return found | {
            "manifest": manifest_document(self._manifest(step, extra, into)),
            "remove": self._left_by_others(into),
            "prune": plan_pruning(self._complete | {step}, retention).remove,
            "patience_s": self._company.patience_s if self._company else PATIENCE_S,
            "others": [
                {
                    "receipt": _receipt(rank),
                    "files": [
                        {"name": file.name, "size_bytes": self._stored_bytes(file)} for file in layout.files
                    ],
                }
                for rank, layout in self._others.items()
            ],
        }

    def _left_by_others(self, into: str | None) -> list[str]:
        """What dead writers have left; the folder that was just opened is not, even if its writer is only starting."""
        if not isinstance(self._folder, Path):
            return []
        return [name for name in _abandoned(self._folder, None) if name != into]

    def _manifest(self, step: int, extra: Mapping[str, Any], into: str | None) -> Manifest:
        layouts = (self._staging.layout, *self._others.values())
        return Manifest(
            step=step,
            files=(),
            parts=tuple(part for layout in layouts for part in layout.parts),
            extra=_as_read_back(extra),
            written_by=__version__,
            run=self._keys.run if self._keys else "",
            folder=attempt_of(into) if into and not isinstance(self._folder, Path) else "",
        )

    def _stored_bytes(self, file: FileImage) -> int:
        tag_bytes = TAG_BYTES if self._keys and self._keys.sealing else 0
        return stored_bytes(file.size_bytes, head_bytes=len(file.header), tag_bytes=tag_bytes)

    def _check_space(self) -> None:
        if not isinstance(self._folder, Path):
            return  # an object store has as much room as is paid for
        needed = self.size_bytes + MANIFEST_ROOM_BYTES
        free = free_bytes(self._folder)
        if free < needed:
            raise OSError(
                f"not enough space in {self._folder}: needs {needed} bytes, {free} free; "
                "older checkpoints are untouched"
            )

    def _send(self, request: Mapping[str, Any]) -> None:
        if self._writer is not None:
            try:
                self._writer.send(request)
                return
            except BrokenPipeError:  # it died unnoticed since the last look
                self._receive()
        if self._writer is None:
            self._start_writer()
        if self._writer is None:
            raise OSError("there is no checkpoint writer")
        self._writer.send(request)

    def _start_writer(self) -> None:
        """Start one and have it clear away what dead ones left; an event if that is not possible."""
        try:
            self._writer = WriterProcess(
                staging_fd=self._staging.fd,
                size_bytes=self._staging.layout.image_bytes,
                folder=self._folder,
                run_folder=self._run_folder,
            )
            if self._is_lead:
                abandoned = _abandoned(self._folder, self._writer) if isinstance(self._folder, Path) else []
                self._writer.send({"remove": abandoned})
        except OSError as error:
            self._events.append(WriterLost(reason=f"cannot start the checkpoint writer: {error}"))

    def _receive(self) -> None:
        """Take in whatever the writer has said, without waiting."""
        if self._writer is None:
            return
        try:
            for answer in self._writer.receive():
                self._take(answer)
        except WriterEndedError as error:
            self._lose_writer(self._writer, f"the checkpoint writer ended: {error}")

    def _take(self, answer: Mapping[str, Any]) -> None:
        self._saving = self._into = None
        if answer["event"] == "failed":
            self._events.append(Failed(step=answer["step"], reason=answer["reason"]))
            return
        self._note_saved(answer["step"], answer["seconds"])
        for step in answer["pruned"]:
            self._complete.discard(step)
            self._events.append(Pruned(step=step))
        for step, reason in answer["kept"]:
            self._events.append(Kept(step=step, reason=reason))

    def _note_saved(self, step: int, seconds: float) -> None:
        if self._is_lead:
            self._complete.add(step)
        self._events.append(Saved(step=step, seconds=seconds, size_bytes=self.size_bytes))

    def _lose_writer(self, writer: WriterProcess, reason: str) -> None:
        """Settle what became of the save under way, and start another writer."""
        self._writer = None
        self._events.append(WriterLost(reason=reason))
        with contextlib.suppress(OSError):  # else what was known before still holds
            self._complete = _complete_steps(self._folder, self._keys)
        saving, self._saving = self._saving, None
        into, self._into = self._into, None
        if self._is_lead and saving in self._complete:  # it died between the last act and its answer
            self._note_saved(saving, (time.monotonic_ns() - self._started_ns) / 1e9)
        elif saving is not None:
            self._events.append(Failed(step=saving, reason=reason))
            self._leave(into)
        if writer.was_ready:  # else it cannot come up here: try at the next save, not at every step
            self._start_writer()


def _receipt(rank: int) -> str:
    """What a rank leaves for the lead when its files are durable."""
    return f"rank-{rank}.json"


def _as_read_back(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader will see, which is what must be sealed: a key that was a number is text there.

    Raises: ValueError if the values are no strict JSON, or too many.
    """
    try:
        text = json.dumps(dict(extra), allow_nan=False)
    except TypeError as error:
        raise ValueError(f"extra: {error}") from error
    if len(text) > MAX_EXTRA_BYTES:
        raise ValueError(f"extra has {len(text)} bytes of JSON, at most {MAX_EXTRA_BYTES} are allowed")
    document: dict[str, Any] = json.loads(text)
    return document


def _complete_steps(folder: Path | ObjectPath, keys: Keyring | None) -> set[int]:
    """Those that this run can go on from. Others neither count among the newest nor are ever removed."""
    return {
        found.step
        for found in find_checkpoints(folder)
        if found.is_complete and _is_own(folder / found.name, keys)
    }


def _is_own(folder: Path | ObjectPath, keys: Keyring | None) -> bool:
    try:
        OpenCheckpoint(folder, keys).close()
    except CheckpointError:
        return False
    return True


def _abandoned(folder: Path, started: WriterProcess | None) -> list[str]:
    """Unfinished folders whose writers are provably gone.

    Process numbers come again, in containers even the same ones at every start: that a process lives is not enough. And
    what is no process here may be one on another machine, of a run that goes on there: only when nothing has been written
    for ``FORSAKEN_S``, beyond the patience of every writer, is it nobody's.

    Args:
        folder: Of the run's checkpoints.
        started: A writer that was started just now, which has not begun anything.
    """
    space = process_space()
    found = []
    for name in os.listdir(folder):
        if (writer := writer_of(name)) is None:
            continue
        pid, where = writer
        if where not in ("", space):
            is_gone = _is_forsaken(folder / name)
        else:
            is_gone = (started is not None and pid == started.pid) or not is_writer(pid)
        if is_gone:
            found.append(name)
    return found


def _is_forsaken(unfinished: Path) -> bool:
    try:
        times = [path.stat().st_mtime for path in (unfinished, *unfinished.iterdir())]
    except OSError:  # somebody is at work in it, or it has gone
        return False
    return max(times) < time.time() - FORSAKEN_S
