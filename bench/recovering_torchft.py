"""A kill under torchft: how long until a survivor commits a step, if any survives? For bench/recovery.py.

torchft is no dependency of anything here: where it is installed (``pip install torchft``), it is measured.
"""

import contextlib
import importlib.util
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import runs
from runs import PEERS, TINY, Workplace

PEER = PEERS / "torchft_replica.py"
PATIENCE_S = 300.0
"""For the first steps."""
GIVEN_UP_S = 40.0
"""After a kill without a commit of any survivor for this time, all is lost: far above its timeouts together."""


def is_installed() -> bool:
    """Whether torchft can be measured here."""
    return importlib.util.find_spec("torchft") is not None


def seconds_to_commit(
    place: Workplace,
    kill: Callable[[int], int],
    wrapper: str,
    *,
    ranks: int,
) -> float:
    """Kill one of some replicas in the middle of their training; seconds to the next commit of a survivor.

    Args:
        place: Where.
        kill: Kills a process at a moment of its choice, and says when, ns.
        wrapper: ddp, torchft's own wrapper of DistributedDataParallel, or hand, its manager called by hand.
        ranks: Replicas of one process each.

    Returns: Infinity if no survivor ever commits again.
    """
    folder = place.folder / f"torchft-{time.monotonic_ns()}"
    folder.mkdir()
    with lighthouse(folder) as address, contextlib.ExitStack() as stack:
        replicas = [
            stack.enter_context(replica(number, place, folder, address, wrapper, ranks=ranks))
            for number in range(ranks)
        ]
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(together(folder, number, ranks) > 10 for number in range(ranks)):
            dead = [number for number, process in enumerate(replicas) if process.poll() is not None]
            if dead or time.monotonic() > deadline_s:
                raise RuntimeError(f"torchft did not begin; {dead} ended: {said_by(folder, dead or [0])}")
            time.sleep(0.02)
        killed_ns = kill(replicas[-1].pid)
        survivors = range(ranks - 1)
        while time.monotonic_ns() < killed_ns + GIVEN_UP_S * 1e9:
            new = [t_ns for number in survivors if (t_ns := first_without(folder, number, ranks)) is not None]
            if new:
                return (min(new) - killed_ns) / 1e9
            if all(replicas[number].poll() is not None for number in survivors):
                return math.inf
            time.sleep(0.02)
        return math.inf


def together(folder: Path, number: int, ranks: int) -> int:
    """Steps that a replica committed with all others."""
    return sum(event["replicas"] == ranks for event in commits(folder, number))


def first_without(folder: Path, number: int, ranks: int) -> int | None:
    """When a replica, after steps with all, first committed one that not all took part in; None if it has not yet."""
    events = commits(folder, number)
    whole = max(
        (place for place, event in enumerate(events) if event["replicas"] == ranks), default=len(events)
    )
    return next((event["t_ns"] for event in events[whole:] if event["replicas"] < ranks), None)


@contextlib.contextmanager
def lighthouse(folder: Path) -> Iterator[str]:
    """The address of a lighthouse that serves meanwhile."""
    with (folder / "lighthouse.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(PEER), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def replica(
    number: int, place: Workplace, folder: Path, address: str, wrapper: str, *, ranks: int
) -> "Iterator[subprocess.Popen[bytes]]":
    """One replica, ended at the end."""
    with (folder / f"replica-{number}.log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, str(PEER), *TINY.network_options(), "--replica", str(number), "--replicas", str(ranks),
                "--wrapper", wrapper, "--lighthouse", address, "--text", str(place.folder / "text"), "--folder", str(folder),
            ],
            stdout=subprocess.DEVNULL, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def commits(folder: Path, number: int) -> list[runs.Event]:
    """The steps that a replica committed."""
    return runs.read_journal(folder / f"commits-{number}.jsonl")


def said_by(folder: Path, numbers: list[int]) -> str:
    """The end of what some replicas said."""
    return "\n".join(
        (folder / f"replica-{number}.log").read_text(encoding="utf-8")[-1500:] for number in numbers
    )
