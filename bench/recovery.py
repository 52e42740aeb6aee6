"""How long after `kill -9` of one of four ranks is a new step committed, and how many steps are lost?

    python bench/recovery.py [--quick] [--json] [--pairs 10] [--loaded] [--waited-for]

The peer is torchrun with restarts, a checkpoint after every step, and the store prefix that gloo needs to restart
reliably (bench/peers/restarting.py), on the same network. Where torchft is installed, it is a second peer
(bench/peers/torchft_replica.py), with its wrapper of DistributedDataParallel and with its manager called by hand: it goes
on with a smaller batch, or loses every survivor, which is counted. All are killed from here; the time runs from the kill
to the first commit of a step that had not been committed before it, by the same monotonic clock. With --waited-for the
rank is stopped first, so that its peers wait for it inside a collective when it is killed.
"""

import contextlib
import functools
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import recovering_torchft
import runs
from pairs import Row, measure_in_turn, parser, show
from runs import PEERS, TINY, Workplace

RANKS = 4
STEPS = 100_000
"""More than are ever made: the runs are ended from here."""
PATIENCE_S = 180.0
STOPPED_S = 0.5
"""Steps take a tenth of it, and every heartbeat is missed later."""
AT_MOST = {"torchrun": 0.125}
"""The bar: eight times as fast."""

Kill = Callable[[int], int]
"""Kills a process, and says when, ns."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One kill. Lost steps are those that had been committed and had to be done again."""

    seconds: float
    steps_lost: int


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=10)
    made.add_argument("--loaded", action="store_true", help="with one busy process on every core")
    made.add_argument("--waited-for", action="store_true", help="kill a rank that its peers wait for")
    made.add_argument("--seed", type=int, default=0, help="of the moments of the kills (%(default)s)")
    options = made.parse_args()
    if options.quick:
        options.pairs = 1
    kill = functools.partial(
        kill_after_a_while, chosen=random.Random(options.seed), is_waited_for=options.waited_for
    )
    found: dict[str, list[Recovery]] = {"trimtab": [], "torchrun": []}
    with runs.workplace(num_bytes=200_000) as place, busy_cores(is_wanted=options.loaded):
        measures: dict[str, Callable[[], float]] = {
            "trimtab": lambda: noted(found["trimtab"], kill_of_trimtab(place, kill)),
            "torchrun": lambda: noted(found["torchrun"], kill_of_torchrun(place, kill)),
            **torchft_measures(place, kill),
        }
        seconds = measure_in_turn(measures, rounds=options.pairs)
    name = (
        "kill to new commit"
        + (", waited for" if options.waited_for else "")
        + (", loaded" if options.loaded else "")
    )
    rows = [row for peer in measures if peer != "trimtab" for row in rows_against(name, peer, seconds)]
    lost = {f"steps lost, {name}": [r.steps_lost for r in recoveries] for name, recoveries in found.items()}
    all_lost = {
        f"all survivors lost, {peer}": f"{sum(map(math.isinf, times))} of {len(times)}"
        for peer, times in seconds.items()
        if peer.startswith("torchft")
    }
    show("recovery against restarts", rows, is_json=options.json, extra={**lost, **all_lost})
    return 0


def torchft_measures(place: Workplace, kill: Kill) -> dict[str, Callable[[], float]]:
    """The second peer, in both ways of using it; none where it is not installed."""
    if not recovering_torchft.is_installed():
        return {}
    of = functools.partial(recovering_torchft.seconds_to_commit, place, kill, ranks=RANKS)
    return {
        "torchft by hand": functools.partial(of, wrapper="hand"),
        "torchft wrapper": functools.partial(of, wrapper="ddp"),
    }


def rows_against(name: str, peer: str, seconds: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """One row, of the rounds in which the peer survived; none if it never did."""
    pairs = zip(seconds["trimtab"], seconds[peer], strict=True)
    survived = [(ours, theirs) for ours, theirs in pairs if math.isfinite(theirs)]
    if survived:
        ours, theirs = zip(*survived, strict=True)
        yield Row(name=f"{name} / {peer}", unit="s", ours=ours, peer=theirs, at_most=AT_MOST.get(peer))


def noted(recoveries: list[Recovery], recovery: Recovery) -> float:
    """Keep a recovery, and give its seconds."""
    recoveries.append(recovery)
    return recovery.seconds


def kill_of_trimtab(place: Workplace, kill: Kill) -> Recovery:
    """Kill a rank in the middle of a run."""
    process, run = place.start(TINY, steps=STEPS, devices=RANKS, shares=str(RANKS))
    try:
        wait_for(lambda: len(runs.events(run, "rank-0-0", "commit")) > 10, process, "the first steps")
        (victim,) = {e["pid"] for e in runs.events(run, "agent-1", "spawned") if e["rank"] == RANKS - 1}
        killed_ns = kill(victim)
        wait_for(lambda: bool(steps_since(run, 1)), process, "a commit after the kill")
        committed = max(
            event["step"] for event in runs.events(run, "rank-0-0", "step") if event["epoch"] == 1
        )
        new = [event for event in steps_since(run, 1) if event["step"] > committed]
        again = {event["step"] for event in steps_since(run, 1) if event["step"] <= committed}
        return Recovery(seconds=(new[0]["end_ns"] - killed_ns) / 1e9, steps_lost=len(again))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def steps_since(run: Path, epoch: int) -> list[runs.Event]:
    """The first rank's committed steps after an epoch."""
    return [event for event in runs.events(run, "rank-0-0", "step") if event["epoch"] > epoch]


def kill_of_torchrun(place: Workplace, kill: Kill) -> Recovery:
    """Kill a rank of the peer in the middle of its training."""
    folder = place.folder / f"torchrun-{time.monotonic_ns()}"
    folder.mkdir()
    process = subprocess.Popen(
        [
            *runs.torchrun(ranks=RANKS, options=("--max-restarts", "4")),
            str(PEERS / "restarting.py"), *TINY.network_options(),
            "--steps", str(STEPS), "--text", str(place.folder / "text"), "--folder", str(folder),
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        wait_for(lambda: len(commits(folder, 0)) > 10, process, "the first steps")
        victim = int((folder / f"rank-{RANKS - 1}-0.pid").read_text(encoding="utf-8"))
        killed_ns = kill(victim)
        wait_for(
            lambda: bool(later_commits(folder)) and later_commits(folder)[-1]["step"] > commits(folder, 0)[-1]["step"],
            process, "a commit after the restart",
        )  # fmt: skip
        committed = commits(folder, 0)[-1]["step"]
        new = [event for event in later_commits(folder) if event["step"] > committed]
        again = {event["step"] for event in later_commits(folder) if event["step"] <= committed}
        return Recovery(seconds=(new[0]["t_ns"] - killed_ns) / 1e9, steps_lost=len(again))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def commits(folder: Path, attempt: int) -> list[runs.Event]:
    """The steps that the peer's first rank committed in one attempt."""
    return runs.read_journal(folder / f"commits-{attempt}.jsonl")


def later_commits(folder: Path) -> list[runs.Event]:
    """The same of every restart, in order."""
    return [event for attempt in range(1, 6) for event in commits(folder, attempt)]


def kill_after_a_while(pid: int, *, chosen: random.Random, is_waited_for: bool) -> int:
    """Kill a process at a random moment of its steps, or when its peers wait for it; when, ns."""
    time.sleep(chosen.uniform(0.2, 0.7))
    if is_waited_for:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    return killed_ns


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]", what: str) -> None:
    """Look fifty times a second until ``condition`` holds.

    Raises: RuntimeError if the process ends or the time is over first.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"ended before {what}: {process.communicate()[1][-3000:]}")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {PATIENCE_S:g} s in vain for {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def busy_cores(*, is_wanted: bool) -> Iterator[None]:
    """One process on every core that does nothing but compute."""
    num_busy = len(os.sched_getaffinity(0)) if is_wanted else 0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
