"""The trainer's side of a save: copy the state aside, let the writer work, hear about it later."""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from trimtab.ledger.manifests import Manifest, folder_name, manifest_document, writer_of
from trimtab.policy.retention import Retention, plan_pruning
from trimtab.runtime.checkpoint.durable import free_bytes
from trimtab.runtime.checkpoint.events import Event, Failed, Kept, Pruned, Saved, Skipped, WriterLost
from trimtab.runtime.checkpoint.loader import State
from trimtab.runtime.checkpoint.process import WriterEndedError, WriterProcess, is_writer
from trimtab.runtime.checkpoint.staging import StagingBuffer
from trimtab.runtime.checkpoint.store import find_checkpoints
from trimtab.terms.version import __version__

MAX_EXTRA_BYTES = 60_000
"""A request must fit into a pipe that nobody reads yet (64 KiB on Linux), or staging would wait."""
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


class Saver:
    """Saves a state of fixed names and shapes into a run's folder ``checkpoints``.

    Used by one thread of the lead rank: ``stage`` at a step border, ``poll`` every step, ``close`` at the
    end. Between the three the state may change at will. At most one save is under way. Nothing that goes
    wrong with storage or with the writer raises: it is an event, and older checkpoints stay.

    The writer dies with the thread that created the saver.
    """

    def __init__(self, folder: Path, state: State) -> None:
        """Allocate the staging memory, start the writer and clear away what dead writers left.

        Args:
            folder: ``RUN/checkpoints``; created if it is not there.
            state: The tensors that will be saved; only names and shapes are taken.

        Raises: ValueError if the state cannot be saved at all; OSError if the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._staging = StagingBuffer(state)
        self._complete = _complete_steps(folder)
        self._events: list[Event] = []
        self._saving: int | None = None
        self._started_ns = 0
        self._writer: WriterProcess | None = None
        self._start_writer()

    @property
    def complete(self) -> frozenset[int]:
        """Steps whose checkpoints are complete, as far as is known since the last ``poll``."""
        return frozenset(self._complete)

    @property
    def saving(self) -> int | None:
        """The step that is being written, if any."""
        return self._saving

    def stage(
        self,
        step: int,
        state: State,
        extra: Mapping[str, Any],
        *,
        retention: Retention,
        finite: bool = True,
        fault: Fault | None = None,
    ) -> bool:
        """Copy the state and have it written; training may go on as soon as this returns.

        Args:
            step: Optimizer steps finished.
            state: Tensors of exactly the names and shapes that the saver was made for.
            extra: JSON values that resume the run, at most ``MAX_EXTRA_BYTES`` of text.
            retention: What stays when this save is durable.
            finite: False if the state holds NaN or infinity: it is then not saved.
            fault: A fault to plant.

        Returns: Whether the save is under way; if not, an event says why.
        """
        self._started_ns = time.monotonic_ns()
        self._receive()
        if reason := self._reason_to_skip(step, finite):
            self._events.append(Skipped(step=step, reason=reason))
            return False
        try:
            request = self._request(step, extra, retention, fault)
            self._check_space()
            self._staging.fill(state)
            self._send(request)
        except (OSError, ValueError) as error:
            self._events.append(Failed(step=step, reason=str(error)))
            return False
        self._saving = step
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
        self._staging.close()
        return events

    def _reason_to_skip(self, step: int, finite: bool) -> str:
        if not finite:
            return "the state holds values that are not finite"
        if step in self._complete:
            return f"{folder_name(step)} is already complete and is never overwritten"
        if self._saving is not None:
            return f"{folder_name(self._saving)} is still being written"
        return ""

    def _request(
        self, step: int, extra: Mapping[str, Any], retention: Retention, fault: Fault | None
    ) -> dict[str, Any]:
        layout = self._staging.layout
        manifest = Manifest(
            step=step, files=(), parts=layout.parts, extra=_as_read_back(extra), written_by=__version__
        )
        return {
            "step": step,
            "started_ns": self._started_ns,
            "fault": fault,
            "files": [
                {"name": file.name, "offset_bytes": file.offset_bytes, "size_bytes": file.size_bytes}
                for file in layout.files
            ],
            "manifest": manifest_document(manifest),
            "prune": plan_pruning(self._complete | {step}, retention).remove,
        }

    def _check_space(self) -> None:
        needed = self._staging.layout.size_bytes + MANIFEST_ROOM_BYTES
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
                staging_fd=self._staging.fd, size_bytes=self._staging.layout.image_bytes, folder=self._folder
            )
            self._writer.send({"remove": _abandoned(self._folder, self._writer)})
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
        self._saving = None
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
        self._complete.add(step)
        self._events.append(Saved(step=step, seconds=seconds, size_bytes=self._staging.layout.size_bytes))

    def _lose_writer(self, writer: WriterProcess, reason: str) -> None:
        """Settle what became of the save under way, and start another writer."""
        self._writer = None
        self._events.append(WriterLost(reason=reason))
        with contextlib.suppress(OSError):  # else what was known before still holds
            self._complete = _complete_steps(self._folder)
        saving, self._saving = self._saving, None
        if saving in self._complete:  # it died between the last act and its answer
            self._note_saved(saving, (time.monotonic_ns() - self._started_ns) / 1e9)
        elif saving is not None:
            self._events.append(Failed(step=saving, reason=reason))
        if writer.was_ready:  # else it cannot come up here: try at the next save, not at every step
            self._start_writer()


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


def _complete_steps(folder: Path) -> set[int]:
    return {found.step for found in find_checkpoints(folder) if found.is_complete}


def _abandoned(folder: Path, writer: WriterProcess) -> list[str]:
    """Unfinished folders that no writer on this machine is at work on; the one just started is not yet.

    Process numbers come again, in containers even the same ones at every start: that a process lives is not
    enough.
    """
    return [
        name
        for name in os.listdir(folder)
        if (pid := writer_of(name)) is not None and (pid == writer.pid or not is_writer(pid))
    ]
