"""What somebody who watches a run sees while it goes on: a live page on a terminal, lines anywhere else."""

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trimtab.app.progress import Progress, step_line
from trimtab.app.run_records import CLOCKS_FOLDER, read_clock_files
from trimtab.engines import Observer
from trimtab.engines.launch import Launch
from trimtab.terms import Clock, format_seconds

_LINE_INTERVAL_NS = 1_000_000_000
"""Between two lines about steps where lines are all there is."""

_REFRESHES_PER_S = 4
_PARTS_WINDOW = 20
"""Refreshes over which the parts of the ranks' time are measured: five seconds."""


@contextmanager
def open_view(launch: Launch, *, num_steps: int | None, is_stdout_free: bool) -> Iterator[Observer]:
    """The view of one attempt, as an observer for its agent.

    Args:
        launch: What the attempt starts.
        num_steps: Steps of the whole run; None if only the data tell.
        is_stdout_free: False if standard output must stay free for a document.
    """
    stream = sys.stdout if is_stdout_free else sys.stderr
    if not stream.isatty():
        yield LineView(stream)
        return
    page = LivePage(launch, num_steps=num_steps)
    console = Console(file=stream)
    with Live(console=console, get_renderable=page.render, refresh_per_second=_REFRESHES_PER_S):
        yield page


class LineView:
    """Lines of text: about one a second about steps, and one for each thing that is no ordinary step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress = Progress()
        self._next_line_ns = 0

    def __call__(self, kind: str, t_ns: int, fields: dict[str, Any]) -> None:
        """Take one event of the agent."""
        line = self._progress.take(kind, t_ns, fields)
        if kind == "step" and t_ns >= self._next_line_ns:
            self._next_line_ns = t_ns + _LINE_INTERVAL_NS
            line = step_line(fields, self._progress.tokens_per_s)
        if line is not None:
            print(line, file=self._stream, flush=True)


class LivePage:
    """A page that is drawn again and again. Events come on the agent's thread, drawing on the terminal's.

    What comes from jobs and ranks is put into ``Text``: it is data, and no markup in it is followed.
    """

    def __init__(self, launch: Launch, *, num_steps: int | None) -> None:
        self._launch = launch
        self._num_steps = num_steps
        self._progress = Progress()
        self._parts = StepParts(launch.folder / CLOCKS_FOLDER)
        self._drawing = threading.Lock()

    def __call__(self, kind: str, t_ns: int, fields: dict[str, Any]) -> None:
        """Take one event of the agent."""
        with self._drawing:
            self._progress.take(kind, t_ns, fields)

    def render(self) -> RenderableType:
        """The page as it is now."""
        parts = self._parts.measure()
        with self._drawing:
            return Group(
                self._headline(),
                self._figures(parts, now_ns=time.monotonic_ns()),
                *(Text(f"  {line}", style="dim") for line in self._progress.events),
            )

    def _headline(self) -> Text:
        done = self._progress.step.get("step", -1) + 1
        of = f" of {self._num_steps}" if self._num_steps else ""
        return Text(f"{self._launch.run}  attempt {self._launch.attempt}  step {done}{of}", style="bold")

    def _figures(self, parts: Mapping[Clock, float], *, now_ns: int) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, value in (
            ("training", self._training()),
            ("held out", "-" if self._progress.eval_loss is None else f"loss {self._progress.eval_loss:.4f}"),
            ("time", ", ".join(f"{clock.value} {100 * part:.0f} %" for clock, part in parts.items()) or "-"),
            ("ranks", "  ".join(f"{rank} {word}" for rank, word in sorted(self._progress.ranks.items()))),
            ("money", self._money(now_ns)),
        ):
            table.add_row(Text(name, style="cyan"), Text(value))
        return table

    def _training(self) -> str:
        if not self._progress.step:
            return "not yet"
        return step_line(self._progress.step, self._progress.tokens_per_s).partition("  ")[2]

    def _money(self, now_ns: int) -> str:
        started_ns, price = self._progress.started_ns, self._launch.device_price_usd_per_hour
        if started_ns is None:
            return "-"
        held_s = (now_ns - started_ns) / 1e9
        held = f"{self._launch.devices} devices for {format_seconds(held_s)}"
        if price is None:
            return held
        return f"${self._launch.devices * held_s / 3600 * price:.4f}  ({held})"


class StepParts:
    """Into what the ranks' time goes, from their clock files, over the last few seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._snapshots: deque[dict[Clock, int]] = deque(maxlen=_PARTS_WINDOW)
        self._parts: dict[Clock, float] = {}

    def measure(self) -> dict[Clock, float]:
        """Fractions of the time that the ranks' clocks have closed, largest first; those below 1 % are left out.

        While no clock was switched, what was measured last is still the best that is known.
        """
        totals = dict.fromkeys(Clock, 0)
        for _, reading in read_clock_files(self._folder):
            for clock, ns in reading.closed.items():
                totals[clock] += ns
        before = self._snapshots[0] if self._snapshots else dict.fromkeys(Clock, 0)
        self._snapshots.append(totals)
        spent = {clock: totals[clock] - before[clock] for clock in Clock}
        whole = sum(spent.values())
        if whole > 0:
            parts = {clock: ns / whole for clock, ns in spent.items() if ns >= whole / 100}
            self._parts = dict(sorted(parts.items(), key=lambda item: -item[1]))
        return self._parts
