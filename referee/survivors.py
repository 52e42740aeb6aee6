"""Do the survivors of a killed rank go on in the same processes, and does each of them work?

    python referee/survivors.py RUN       a run in progress on this machine; kills one of its ranks
    python referee/survivors.py --drive   makes the run

Reads /proc: the ranks are the agent's children that have the run's name in their environment. A process is told
from a later one of the same pid by its start time.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from os import kill
from pathlib import Path
from signal import SIGKILL

import driving
import processes
import records
from processes import Sighting
from verdicts import RefereeError, Verdict, exit_with

GUARANTEE = "survivors of a killed rank finish the step in the same processes, and all of them work"
STEPS_WATCHED = 20
LEAST_PART = 0.2
"""Of the CPU time of an equal split that a rank must have used to count as working."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Referee; returns the exit code."""
    options = parse(arguments)
    verdict = Verdict(GUARANTEE)
    if not options.drive:
        referee(Path(options.run).resolve(), options, verdict)
        return verdict.conclude()
    with driving.temporary_folder(is_kept=options.keep) as folder:
        place = driving.Workplace(folder, steps=options.steps, every=options.steps)
        started = place.start()
        try:
            referee(started.folder, options, verdict)
        finally:
            ended = started.end()
        verdict.check(ended.code == 0, f"the run ended with exit code {ended.code}, needed 0")
    return verdict.conclude()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="directory of a run in progress")
    parser.add_argument("--drive", action="store_true", help="make the run")
    parser.add_argument("--victim", type=int, default=1, help="rank to kill (%(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="of the run that is made (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the run that was made")
    parser.add_argument("--quick", action="store_true", help="a run of 150 steps")
    options = parser.parse_args(arguments)
    if options.drive == bool(options.run):
        parser.error("name a run, or let one be made with --drive")
    if options.quick:
        options.steps = 150
    return options


def referee(run: Path, options: argparse.Namespace, verdict: Verdict) -> None:
    """Watch, kill, watch again."""
    wait(lambda: bool(run_events(run)), "the agent's first word")
    agent = run_events(run)[0]["pid"]
    wait(lambda: records.newest_commit(run) >= 1, "the first steps")
    before = living(run, agent)
    worked = cpu_over_steps(run, agent)
    check_work("before the kill", worked, verdict)
    victim = pid_of_rank(run, options.victim)
    committed = records.newest_commit(run)
    killed_ns = time.monotonic_ns()
    kill(victim, SIGKILL)
    wait(lambda: processes.see(victim) is None, f"the end of pid {victim}")
    wait(lambda: records.newest_commit(run) > committed + 1, "a commit after the kill")
    print(
        f"  killed rank {options.victim}, pid {victim}; two commits later {since_s(killed_ns):.2f} s had gone by"
    )
    after = living(run, agent)
    expected = {identity for identity in before if identity[0] != victim}
    verdict.check(
        set(after) == expected,
        f"ranks before {pids(before)}, after {pids(after)}: all but {victim}, the same processes",
    )
    check_work("after the kill", cpu_over_steps(run, agent), verdict)
    verdict.check(set(living(run, agent)) == expected, f"{STEPS_WATCHED} steps later still the same")


def run_events(run: Path) -> list[records.Event]:
    """What the newest agent wrote of itself: nothing in its first moments."""
    journal = records.agent_journals(run)
    return records.of_kind(journal[max(journal)], "run") if journal else []


def living(run: Path, agent: int) -> dict[tuple[int, int], Sighting]:
    """The ranks that live, by pid and start time."""
    return {rank.identity: rank for rank in processes.ranks_of(run.name, agent)}


def cpu_over_steps(run: Path, agent: int) -> dict[int, float]:
    """CPU seconds of each rank, by pid, while the next steps are committed."""
    first, start = records.newest_commit(run), living(run, agent)
    wait(lambda: records.newest_commit(run) >= first + STEPS_WATCHED, f"{STEPS_WATCHED} steps")
    end = living(run, agent)
    return {key[0]: end[key].cpu_s - start[key].cpu_s for key in start.keys() & end.keys()}


def check_work(when: str, cpu_s: Mapping[int, float], verdict: Verdict) -> None:
    """Every rank must have used its part of the CPU time."""
    if not verdict.check(bool(cpu_s), f"{when}: {len(cpu_s)} ranks live"):
        return
    least_s = LEAST_PART * sum(cpu_s.values()) / len(cpu_s)
    shown = ", ".join(f"pid {pid} {used:.2f} s" for pid, used in sorted(cpu_s.items()))
    verdict.check(min(cpu_s.values()) > least_s, f"{when}, CPU time in {STEPS_WATCHED} steps: {shown}")


def pid_of_rank(run: Path, rank: int) -> int:
    """The pid of a rank's newest process, as the agent wrote it down.

    Raises: RefereeError if it wrote down none.
    """
    spawned = [
        event["pid"]
        for journal in records.agent_journals(run).values()
        for event in records.of_kind(journal, "spawned")
        if event["rank"] == rank
    ]
    if not spawned:
        raise RefereeError(f"the agent of {run.name} spawned no rank {rank}")
    return int(spawned[-1])


def wait(condition: Callable[[], bool], what: str, *, timeout_s: float = 90.0) -> None:
    """Look every 10 ms until ``condition`` holds.

    Raises: RefereeError when the time is over.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise RefereeError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(0.01)


def pids(ranks: Mapping[tuple[int, int], Sighting]) -> list[int]:
    """For people."""
    return sorted(pid for pid, _ in ranks)


def since_s(moment_ns: int) -> float:
    """Seconds since a moment."""
    return (time.monotonic_ns() - moment_ns) / 1e9


if __name__ == "__main__":
    exit_with(main)
