"""The journal of whoever runs an attempt, ``agent-<attempt>.jsonl``: what the ledger takes for the view from outside."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trimtab.engines.engine import Observer, Outcome
from trimtab.engines.launch import Launch
from trimtab.ledger import EventKind, encode_event
from trimtab.policy.coordinator import Line
from trimtab.policy.quorum import FIRST


def journal_path(launch: Launch) -> Path:
    """Where the journal of an attempt is; its folder is made."""
    folder = launch.folder / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"agent-{launch.attempt}.jsonl"


class AgentJournal:
    """Writes events down and tells the observer. One thread; close it at the end."""

    def __init__(self, launch: Launch, observe: Observer) -> None:
        self._launch, self._observe = launch, observe
        self._file = os.open(
            journal_path(launch), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )

    def begin(self) -> int:
        """The attempt begins; returns the moment, from which on devices are paid for once they are there."""
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
        return time.monotonic_ns()

    def hold(self, since_ns: int) -> None:
        """The devices of this host are in use, and paid for since a moment: what could not be started costs nothing."""
        for device, host in enumerate(self._launch.placement):
            if host == FIRST:
                self.record(EventKind.ALLOCATED, at_ns=since_ns, device=device)

    def end(self, outcome: Outcome) -> None:
        """The last process is gone."""
        for device, host in enumerate(self._launch.placement):
            if host == FIRST:
                self.record(EventKind.RELEASED, device=device)
        weights = outcome.results.get("weights_sha256")
        self.record(
            EventKind.FINISHED, state=outcome.state.value, error=outcome.error, weights_sha256=weights
        )

    def record(self, kind: str, *, at_ns: int | None = None, **fields: Any) -> None:
        """Write one event, of now or of ``at_ns``, and tell the observer."""
        t_ns = time.monotonic_ns() if at_ns is None else at_ns
        os.write(self._file, encode_event(kind, t_ns, **fields))
        self._observe(kind, t_ns, fields)

    def keep(self, lines: Iterable[Line]) -> None:
        """Write lines, all at once, and tell the observer."""
        lines = list(lines)
        os.write(self._file, b"".join(encode_event(line.kind, line.t_ns, **line.fields) for line in lines))
        for line in lines:
            self._observe(line.kind, line.t_ns, dict(line.fields))

    def close(self) -> None:
        """No event follows."""
        os.close(self._file)


def _boot_id() -> str:
    """Names this boot of the machine: monotonic times of two boots cannot be compared. Empty where unknown."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""
