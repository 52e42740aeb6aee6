"""Is anything of a run left 5 s after it was interrupted, at whatever moment and by whatever signal?

    python referee/leftovers.py            interrupts runs at random moments

Looks for processes with the run's name in their environment, for files in /dev/shm and for listening ports.
"""

import argparse
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import driving
import processes
from driving import Workplace
from verdicts import Verdict, exit_with

GUARANTEE = "5 s after an interruption no process, shared memory or port of the run is left"
GRACE_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
LONGEST_S = 12.0
"""The latest moment of an interruption: past the start of the ranks, in the middle of training."""


@dataclass
class Held:
    """What a run's processes were seen to hold while they lived."""

    ports: set[int] = field(default_factory=set)
    shared_memory: set[str] = field(default_factory=set)
    num_processes: int = 0

    def look(self, run: str, agent: int) -> None:
        """Note what they hold now."""
        pids = [agent, *(process.pid for process in processes.processes_of(run))]
        self.num_processes = max(self.num_processes, len(pids))
        for pid in pids:
            self.ports |= processes.ports_of(pid)
            self.shared_memory |= processes.shared_memory_of(pid)


def main(arguments: Sequence[str] | None = None) -> int:
    """Referee; returns the exit code."""
    options = parse(arguments)
    verdict = Verdict(GUARANTEE)
    chosen = random.Random(options.seed)
    print(f"seed {options.seed}")
    with driving.temporary_folder(is_kept=options.keep) as folder:
        place = Workplace(folder, steps=100_000, every=20)
        for number in range(options.times):
            interrupt(place, SIGNALS[number % len(SIGNALS)], chosen.uniform(0.0, options.longest), verdict)
    return verdict.conclude()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--times", type=int, default=9, help="interruptions, the signals in turn (%(default)s)"
    )
    parser.add_argument("--longest", type=float, default=LONGEST_S, help="latest moment, s (%(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moments (from the clock)")
    parser.add_argument("--keep", action="store_true", help="keep the runs that were made")
    parser.add_argument("--quick", action="store_true", help="one interruption by each signal")
    options = parser.parse_args(arguments)
    if options.quick:
        options.times = len(SIGNALS)
    return options


def interrupt(place: Workplace, number: signal.Signals, after_s: float, verdict: Verdict) -> None:
    """Start a run, interrupt it, wait for the command's end and 5 s, and look."""
    before = processes.shared_memory_files()
    started = place.start()
    held, is_over = Held(), threading.Event()
    watcher = threading.Thread(target=look_until, args=(held, started.folder, started.agent, is_over))
    watcher.start()
    try:
        time.sleep(after_s)
        os.kill(started.agent, number)
        ended = started.end()
    finally:
        is_over.set()
        watcher.join()
    what = f"{number.name} after {after_s:.2f} s"
    code = ended.code if ended.code >= 0 else 128 - ended.code  # as a shell reports a death by signal
    verdict.check(code == 128 + number, f"{what}: exit code {code}, needed {128 + number}")
    time.sleep(GRACE_S)
    left = processes.processes_of(started.folder.name)
    verdict.check(
        not left,
        f"{what}: {len(left)} of {held.num_processes} processes left {[process.pid for process in left]}",
    )
    files = sorted((held.shared_memory | new_orphans(before)) & processes.shared_memory_files())
    verdict.check(
        not files, f"{what}: {len(files)} files of {len(held.shared_memory)} left in /dev/shm {files}"
    )
    ports = sorted(held.ports & processes.listening_ports())
    verdict.check(not ports, f"{what}: {len(ports)} of {len(held.ports)} ports still listening {ports}")


def look_until(held: Held, run: Path, agent: int, is_over: threading.Event) -> None:
    """Look at what the run holds, ten times a second."""
    while not is_over.wait(0.1):
        held.look(run.name, agent)


def new_orphans(before: set[str]) -> set[str]:
    """Files that came into /dev/shm since and that no living process has open or mapped."""
    new = processes.shared_memory_files() - before
    if new:
        for pid in processes.all_pids():
            new -= processes.shared_memory_of(pid)
    return new


if __name__ == "__main__":
    exit_with(main)
