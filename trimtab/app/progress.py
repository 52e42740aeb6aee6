"""What an attempt has come to, kept up to date from the agent's events, and the lines that tell it."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from trimtab.app.output import printable

_RATE_WINDOW = 20
"""Steps over which tokens per second are averaged."""

_KEPT_EVENTS = 8
"""Lines about events that a live view shows."""

Fields = Mapping[str, Any]


class Progress:
    """The state of an attempt as its watcher knows it.

    Attributes:
        step: The fields of the newest step; empty before the first.
        eval_loss: Of the newest evaluation; None before it, or where it was not finite.
        events: Lines about the newest events that are no ordinary steps.
        ranks: What each rank is doing, in a word.
        started_ns: When the devices were allocated; None before.
    """

    def __init__(self) -> None:
        self.step: Fields = {}
        self.eval_loss: float | None = None
        self.events: deque[str] = deque(maxlen=_KEPT_EVENTS)
        self.ranks: dict[int, str] = {}
        self.started_ns: int | None = None
        self._ends: deque[tuple[int, int]] = deque(maxlen=_RATE_WINDOW + 1)

    def take(self, kind: str, t_ns: int, fields: Fields) -> str | None:
        """Take one event; returns the line that tells it, None for an ordinary step and for what says nothing."""
        if kind == "step":
            self.step = fields
            self._ends.append((t_ns, fields["tokens"]))
            return None
        if kind == "allocated" and self.started_ns is None:
            self.started_ns = t_ns
        if kind == "evaluation":
            self.eval_loss = fields["loss"]
        self._take_ranks(kind, fields)
        line = event_line(kind, fields)
        if line is not None:
            self.events.append(line)
        return line

    @property
    def tokens_per_s(self) -> float | None:
        """Over the last steps; None before the second."""
        if len(self._ends) < 2:
            return None
        elapsed_ns = self._ends[-1][0] - self._ends[0][0]
        tokens = sum(count for _, count in self._ends) - self._ends[0][1]
        return tokens / elapsed_ns * 1e9 if elapsed_ns > 0 else None

    def _take_ranks(self, kind: str, fields: Fields) -> None:
        if kind == "formed":
            self.ranks |= dict.fromkeys(fields["members"], "training")
        elif word := _RANK_WORDS.get(kind):
            self.ranks[fields["rank"]] = word


def step_line(fields: Fields, tokens_per_s: float | None) -> str:
    """One committed step in one line; steps are counted from 1 where people read them."""
    parts = [
        f"step {fields['step'] + 1}",
        f"loss {_figure(fields['loss'], '.4f')}",
        f"norm {_figure(fields['grad_norm'], '.3f')}",
        f"lr {fields['lr']:.3g}",
    ]
    if tokens_per_s is not None:
        parts.append(f"{tokens_per_s:,.0f} tokens/s")
    return "  ".join(parts)


def event_line(kind: str, fields: Fields) -> str | None:
    """One line about an event; None for those that say nothing to people."""
    tell = _EVENT_LINES.get(kind)
    return printable(tell(fields)) if tell else None


def _figure(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


_RANK_WORDS = {"spawned": "starting", "hello": "ready", "fault": "lost", "failed": "failed", "exited": "gone"}

_EVENT_LINES: dict[str, Callable[[Fields], str]] = {
    "decision": lambda fields: str(fields["reason"]),
    "recovered": lambda fields: (
        f"recovered: step {fields['step'] + 1} committed {fields['resumed_s']:.2f} s after the fault"
    ),
    "failed": lambda fields: f"rank {fields['rank']} failed in step {fields['step']}: {fields['error']}",
    "refused": lambda fields: f"connection refused: {fields['reason']}",
    "planted": lambda fields: f"planted on rank {fields['rank']}: {fields['fault']} in step {fields['step']}",
    "evaluation": lambda fields: (
        f"evaluation after step {fields['step']}: loss {_figure(fields['loss'], '.4f')}"
    ),
    "checkpoint": lambda fields: f"checkpoint of step {fields['step']}: {fields['state']}",
    "signal": lambda fields: f"signal {fields['signal']}: ending cleanly; a second one ends by force",
}
