"""The journal of whoever runs an attempt, ``agent-<attempt>.jsonl``: what the ledger takes for the view from outside."""

import os
import time
from pathlib import Path
from typing import Any

from trimtab.engines.engine import Observer, Outcome
from trimtab.engines.launch import Launch
from trimtab.ledger import EventKind, encode_event


class AgentJournal:
    """Writes events down and tells the observer. One thread; close it at the end."""

    def __init__(self, launch: Launch, observe: Observer) -> None:
        self._launch, self._observe = launch, observe
        self._paid: set[int] = set()
        folder = launch.folder / "journal"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(
            folder / f"agent-{launch.attempt}.jsonl",
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
            0o644,
        )

    def begin(self) -> None:
        """The attempt begins, and its devices are paid for from now on."""
        launch = self._launch
        self.record(
            EventKind.RUN,
            run=launch.run,
            attempt=launch.attempt,
            devices=list(range(launch.devices)),
            price_usd_per_hour=launch.device_price_usd_per_hour,
            pid=os.getpid(),
            boot=_boot_id(),
        )
        for device in range(launch.devices):
            self.allocate(device)

    def allocate(self, device: int) -> None:
        """A device is paid for from now on, unless it is already."""
        if device not in self._paid:
            self._paid.add(device)
            self.record(EventKind.ALLOCATED, device=device)

    def release(self, device: int) -> None:
        """A device is not paid for any more."""
        if device in self._paid:
            self._paid.remove(device)
            self.record(EventKind.RELEASED, device=device)

    def end(self, outcome: Outcome) -> None:
        """The last process is gone."""
        for device in sorted(self._paid):
            self.release(device)
        weights = outcome.results.get("weights_sha256")
        self.record(
            EventKind.FINISHED, state=outcome.state.value, error=outcome.error, weights_sha256=weights
        )

    def record(self, kind: str, *, at_ns: int | None = None, **fields: Any) -> None:
        """Write one event, of now or of ``at_ns``, and tell the observer."""
        t_ns = time.monotonic_ns() if at_ns is None else at_ns
        os.write(self._file, encode_event(kind, t_ns, **fields))
        self._observe(kind, t_ns, fields)

    def close(self) -> None:
        """No event follows."""
        os.close(self._file)


def _boot_id() -> str:
    """Names this boot of the machine: monotonic times of two boots cannot be compared. Empty where unknown."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""
