"""Counts clock switches in every process that has this folder in PYTHONPATH; bench/timers.py puts it there.

Each `step` event in a rank's journal then says how many times the clocks were switched since the one before.
"""

from trimtab.runtime.recorder import Recorder
from trimtab.terms import Clock

_switch, _lap, _event = Recorder.switch, Recorder.lap, Recorder.event
_count = 0


def _counted_switch(self: Recorder, clock: Clock, *, at_ns: int | None = None) -> Clock:
    global _count
    _count += 1
    return _switch(self, clock, at_ns=at_ns)


def _counted_lap(self: Recorder) -> dict[str, int]:
    global _count
    _count += 1
    return _lap(self)


def _counted_event(self: Recorder, kind: str, **fields: object) -> None:
    global _count
    if kind == "step":
        fields["switches"] = _count
        _count = 0
    _event(self, kind, **fields)


Recorder.switch = _counted_switch  # type: ignore[method-assign]  # the purpose of this module
Recorder.lap = _counted_lap  # type: ignore[method-assign]  # as above
Recorder.event = _counted_event  # type: ignore[method-assign]  # as above
