"""Makes planted faults happen, for real, to the rank that they are meant for.

A fault strikes once in a run: the rank leaves a mark in the run's folder first, so that its replacement, or a
resumed run, is spared.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trimtab.runtime.errors import CollectiveError
from trimtab.spec import NO_TIMER, FaultKind, Injection
from trimtab.terms import Clock, Phase

_ENDLESS = (FaultKind.HANG, FaultKind.LIVELOCK)
_ABRUPT = {FaultKind.KILL: signal.SIGKILL, FaultKind.STOP: signal.SIGSTOP}


class PlantedError(RuntimeError):
    """The exception that ``--inject raise`` raises, as a user's code might."""


class Faults:
    """The faults of one rank.

    Args:
        announce: Told of each fault just before it strikes, with its fields.
        move: Tells progress of the main thread to whoever watches it.
    """

    def __init__(
        self,
        injections: Sequence[Injection],
        *,
        rank: int,
        folder: Path,
        announce: Callable[[dict[str, object]], None],
        move: Callable[[], None] = lambda: None,
    ) -> None:
        anywhere = (FaultKind.DISK_FULL, FaultKind.TORN_CHECKPOINT)
        self._mine = [fault for fault in injections if fault.rank == rank or fault.kind in anywhere]
        self._folder = folder / "faults"
        self._announce, self._move = announce, move
        if self._mine:
            self._folder.mkdir(exist_ok=True)

    def at_phase(self, phase: Phase, step: int) -> None:
        """Die, hang, raise or lose the connection here if that was planted. In ``reform`` the step is a lower bound."""
        for fault in self._mine:
            due = fault.phase is phase and (
                step >= fault.step if phase is Phase.REFORM else step == fault.step
            )
            if not due:
                continue
            if fault.kind in _ABRUPT and self._strike(fault, step):
                os.kill(os.getpid(), _ABRUPT[fault.kind])
            elif fault.kind in _ENDLESS and self._strike(fault, step):
                self._never_return(is_busy=fault.kind is FaultKind.LIVELOCK)
            elif fault.kind is FaultKind.RAISE and self._strike(fault, step):
                raise PlantedError(f"planted by --inject: raise in phase {phase} of step {step}")
            elif fault.kind is FaultKind.DISCONNECT and self._strike(fault, step):
                raise CollectiveError(f"planted by --inject: disconnect in phase {phase} of step {step}")

    def in_timer(self, timer: Clock | str, step: int) -> float:
        """Sleep here if that was planted for this timer; returns the milliseconds (0 without a fault)."""
        for fault in self._mine:
            if fault.kind is FaultKind.SLEEP and fault.timer == timer and fault.step == step:
                if not self._strike(fault, step):
                    continue
                time.sleep(fault.ms / 1e3)
                return fault.ms
        return 0.0

    def outside_timers(self, step: int) -> None:
        """Sleep here, where no timer runs, if that was planted."""
        self.in_timer(NO_TIMER, step)

    def slow_down(self, step: int, took_s: float) -> None:
        """Make what just took ``took_s`` take ``factor`` times as long."""
        for fault in self._mine:
            end = fault.step + fault.steps if fault.steps else math.inf
            if fault.kind is FaultKind.SLOW and fault.step <= step < end:
                time.sleep(took_s * (fault.factor - 1))

    def in_writer(self, timer: str, step: int) -> bool:
        """Whether the background writer shall be slow with the checkpoint of this step."""
        return any(
            fault.kind is FaultKind.SLEEP
            and fault.timer == timer
            and fault.step == step
            and self._strike(fault, step)
            for fault in self._mine
        )

    def poisons(self, step: int) -> bool:
        """Whether the gradients computed now shall be NaN."""
        return any(
            fault.kind is FaultKind.NAN and fault.step == step and self._strike(fault, step)
            for fault in self._mine
        )

    def flip(self, values: Tensor, step: int, *, of: str) -> None:
        """Flip the planted bit of these values, fp32, in place."""
        for fault in self._mine:
            is_due = fault.kind is FaultKind.BIT_FLIP and fault.of == of and fault.step == step
            if is_due and self._strike(fault, step):
                bits = values.view(torch.int32)
                mask = 1 << fault.bit if fault.bit < 31 else -(1 << 31)
                bits[fault.element % len(bits)] ^= mask

    def of_writer(self, kind: FaultKind, step: int) -> Injection | None:
        """The fault of this kind that the checkpoint of this step shall suffer, if any."""
        for fault in self._mine:
            if fault.kind is kind and fault.step == step and self._strike(fault, step):
                return fault
        return None

    def _never_return(self, *, is_busy: bool) -> None:
        while True:
            time.sleep(0.01)
            if is_busy:
                self._move()

    def _strike(self, fault: Injection, step: int) -> bool:
        """Whether the fault strikes now: it does unless it struck before."""
        try:
            os.close(os.open(self._folder / fault.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        self._announce(
            {"fault": str(fault.kind), "rank": fault.rank, "step": step, "phase": str(fault.phase)}
        )
        return True
