"""What somebody who watches a run sees while it goes on."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from trimtab.engines.launch import Launch
from trimtab.engines.local.agent import Observer

_RATE_WINDOW = 20
"""Steps over which tokens per second are averaged."""

_LINE_INTERVAL_NS = 1_000_000_000
"""Between two lines about steps where lines are all there is."""


class Pace:
    """Tokens per second over the last steps."""

    def __init__(self) -> None:
        self._ends: deque[tuple[int, int]] = deque(maxlen=_RATE_WINDOW + 1)

    def take(self, t_ns: int, tokens: int) -> None:
        """Note that a step of so many tokens ended."""
        self._ends.append((t_ns, tokens))

    @property
    def tokens_per_s(self) -> float | None:
        """None before the second step."""
        if len(self._ends) < 2:
            return None
        elapsed_ns = self._ends[-1][0] - self._ends[0][0]
        return sum(tokens for _, tokens in list(self._ends)[1:]) / elapsed_ns * 1e9 if elapsed_ns else None


class PlainView:
    """Lines of text, about one a second, and one for each thing that is no ordinary step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pace = Pace()
        self._next_line_ns = 0

    def __call__(self, kind: str, t_ns: int, fields: dict[str, Any]) -> None:
        """Take one event of the agent."""
        if kind == "step":
            self._pace.take(t_ns, fields["tokens"])
            if t_ns >= self._next_line_ns:
                self._next_line_ns = t_ns + _LINE_INTERVAL_NS
                self._print(step_line(fields, self._pace.tokens_per_s))
        elif line := event_line(kind, fields):
            self._print(line)

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def step_line(fields: dict[str, Any], tokens_per_s: float | None) -> str:
    """One committed step in one line."""
    loss, norm = fields["loss"], fields["grad_norm"]
    return "  ".join(
        [
            f"step {fields['step'] + 1}",
            f"loss {loss:.4f}" if loss is not None else "loss -",
            f"norm {norm:.3f}" if norm is not None else "norm -",
            f"lr {fields['lr']:.3g}",
            f"{tokens_per_s:,.0f} tokens/s" if tokens_per_s is not None else "",
        ]
    ).rstrip()


def event_line(kind: str, fields: dict[str, Any]) -> str | None:
    """One line about an event; None for those that say nothing to people."""
    formatter = _EVENT_LINES.get(kind)
    return formatter(fields) if formatter else None


def _evaluation_line(fields: dict[str, Any]) -> str:
    loss = fields["loss"]
    return (
        f"evaluation after step {fields['step']}: loss {loss:.4f}"
        if loss is not None
        else "evaluation: no loss"
    )


_EVENT_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "decision": lambda fields: str(fields["reason"]),
    "fault": lambda fields: f"rank {fields['rank']} lost: {fields['detail']}",
    "recovered": lambda fields: (
        f"recovered: step {fields['step'] + 1} committed {fields['resumed_s']:.2f} s after the fault"
    ),
    "failed": lambda fields: f"rank {fields['rank']} failed in step {fields['step']}: {fields['error']}",
    "refused": lambda fields: f"connection refused: {fields['reason']}",
    "planted": lambda fields: f"planted on rank {fields['rank']}: {fields['fault']} in step {fields['step']}",
    "evaluation": _evaluation_line,
    "checkpoint": lambda fields: f"checkpoint of step {fields.get('step')}: {fields.get('state', 'saved')}",
}


@contextmanager
def open_view(launch: Launch, *, is_stdout_free: bool) -> Iterator[Observer]:
    """The view of one attempt, as an observer for its agent.

    Args:
        launch: What the attempt starts.
        is_stdout_free: False if standard output must stay free for a document.
    """
    yield PlainView(sys.stdout if is_stdout_free else sys.stderr)
