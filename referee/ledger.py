"""Does the ledger account for every nanosecond, and is each share computed once?

    python referee/ledger.py RUN       a run that has ended
    python referee/ledger.py --drive   makes two runs, one of them with a kill, watched by the referee's own clock

Device time is recomputed from the agent's journal, time per clock from the clock files, and compared with what
`trimtab report RUN --json` prints.
"""

import argparse
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import driving
import processes
import records
from driving import Workplace
from verdicts import Verdict, exit_with

GUARANTEE = "every nanosecond of every device stands in exactly one class, and each share is computed once"
MOST_UNATTRIBUTED = 0.02
CLASSES_OF_CLOCKS = {
    "unattributed": ("unattributed",),
    "compute": ("useful", "compute_gap", "padding", "recompute"),
    "comm": ("comm_transfer", "comm_skew"),
    "input_wait": ("input_wait",),
    "host_wait": ("host_wait",),
    "checkpoint_stall": ("checkpoint_stall",),
    "evaluation": ("evaluation",),
    "bubble": ("bubble",),
}
"""Classes that nothing but one clock can fill, if no rank was lost and no step given up."""
SLACK_S = 0.5
"""How late the referee's thread may see a process begin or end, on a busy machine."""


@dataclass
class Watch:
    """The referee's own clock and its sightings of one run.

    Args:
        seen: By process of a rank, when it was first and last seen alive, ns.
        loading: By agent, when the process began that its ranks are forked from, in ticks of the kernel.
        first: By agent, when its first rank began, in ticks.
        waited: Ticks for which ranks had waited before they began: the first of an agent, for the loading.
    """

    seen: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    loading: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    waited: dict[tuple[int, int], int] = field(default_factory=dict)

    def look(self, run: str, agent: int) -> None:
        """Note who lives now."""
        now_ns = time.monotonic_ns()
        for loader in processes.loaders_of(run, agent)[:1]:
            self.loading.setdefault(agent, loader.started)
        for rank in processes.ranks_of(run, agent):
            first = self.first.setdefault(agent, rank.started)
            is_first = rank.started - first < SLACK_S * processes.TICKS_PER_S
            self.waited[rank.identity] = (
                rank.started - self.loading.get(agent, rank.started) if is_first else 0
            )
            self.seen.setdefault(rank.identity, [now_ns, now_ns])[1] = now_ns

    @property
    def total_ns(self) -> int:
        """Process time seen, summed over ranks, with the time for which the first of them waited for their loading."""
        waited_ns = sum(self.waited.values()) * 1_000_000_000 // processes.TICKS_PER_S
        return sum(last - first for first, last in self.seen.values()) + waited_ns


def main(arguments: Sequence[str] | None = None) -> int:
    """Referee; returns the exit code."""
    options = parse(arguments)
    verdict = Verdict(GUARANTEE)
    with driving.temporary_folder(is_kept=options.keep) as folder:
        place = Workplace(folder, steps=options.steps, every=max(1, options.steps // 3))
        if options.drive:
            drive(place, options, verdict)
        else:
            run = Path(options.run).resolve()
            referee(run, options.report or reported(place, run), verdict)
    return verdict.conclude()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="directory of a run that has ended")
    parser.add_argument("--report", type=read_report, help="a saved report to take instead of asking for one")
    parser.add_argument("--drive", action="store_true", help="make the runs")
    parser.add_argument("--steps", type=int, default=200, help="of each run that is made (%(default)s)")
    parser.add_argument(
        "--inject", action="append", default=[], help="a fault for the first run that is made"
    )
    parser.add_argument("--keep", action="store_true", help="keep the runs that were made")
    parser.add_argument("--quick", action="store_true", help="one run, with a kill, of 40 steps")
    options = parser.parse_args(arguments)
    if options.drive == bool(options.run):
        parser.error("name a run, or let runs be made with --drive")
    if options.quick:
        options.steps = 40
    return options


def read_report(path: str) -> dict[str, Any]:
    """A report that was saved as a file."""
    document: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return document


def reported(place: Workplace, run: Path) -> dict[str, Any]:
    """What Trimtab says of a run."""
    return place.trimtab("report", str(run), "--json").document


def drive(place: Workplace, options: argparse.Namespace, verdict: Verdict) -> None:
    """Make the runs, watch them from outside, and referee each."""
    kill = [f"kill:rank=1,step={options.steps // 2},phase=reduce"]
    for injections in [kill] if options.quick else [options.inject, kill]:
        print(f"{options.steps} steps on 4 ranks, {', '.join(injections) or 'no fault'}")
        started = place.start(*(word for value in injections for word in ("--inject", value)))
        watch, is_over = Watch(), threading.Event()
        watcher = threading.Thread(target=look_until, args=(watch, started, is_over))
        watcher.start()
        try:
            ended = started.end()
        finally:
            is_over.set()
            watcher.join()
        verdict.check(ended.code == 0, f"the run ended with exit code {ended.code}, needed 0")
        report = reported(place, started.folder)
        referee(started.folder, report, verdict)
        check_watch(started.folder, report, watch, (ended.started_ns, ended.ended_ns), verdict)


def look_until(watch: Watch, started: driving.Started, is_over: threading.Event) -> None:
    """Look for ranks every 20 ms."""
    while not is_over.wait(0.02):
        watch.look(started.folder.name, started.agent)


def referee(run: Path, report: Mapping[str, Any], verdict: Verdict) -> None:
    """Everything that the files of a run can be held against."""
    check_sum(run, report["ledger"], verdict)
    check_clocks(run, report["ledger"]["classes"], verdict)
    check_shares(run, verdict)


def check_sum(run: Path, ledger: Mapping[str, Any], verdict: Verdict) -> None:
    """The classes must add up to the time from allocation to release, and few may be unattributed."""
    allocated_ns = sum(
        end - start for journal in records.agent_journals(run).values() for start, end in holds(journal)
    )
    classes: Mapping[str, int] = ledger["classes"]
    total_ns = sum(classes.values())
    verdict.check(
        total_ns == allocated_ns == ledger["allocated_ns"],
        f"{run.name}: classes add up to {total_ns} ns, the report's allocated time is {ledger['allocated_ns']} ns, "
        f"allocation to release in the journal {allocated_ns} ns",
    )
    verdict.check(min(classes.values()) >= 0, f"{run.name}: no class is negative")
    fraction = classes["unattributed"] / allocated_ns
    verdict.check(
        fraction <= MOST_UNATTRIBUTED,
        f"{run.name}: unattributed {fraction:.3%}, at most {MOST_UNATTRIBUTED:.0%}",
    )
    verdict.check(
        abs(fraction - ledger["unattributed_fraction"]) < 1e-9,
        f"{run.name}: the report says {ledger['unattributed_fraction']:.3%}",
    )


def holds(journal: list[records.Event]) -> list[tuple[int, int]]:
    """Allocation and release of each device in one attempt, ns."""
    allocated = {event["device"]: event["t_ns"] for event in records.of_kind(journal, "allocated")}
    released = {event["device"]: event["t_ns"] for event in records.of_kind(journal, "released")}
    return [(allocated[device], released[device]) for device in allocated]


def check_clocks(run: Path, classes: Mapping[str, int], verdict: Verdict) -> None:
    """What the clock files measured must stand in the classes of its clock, to the nanosecond.

    Work that was given up stands under ``lost_work`` whatever it was, so after a fault only the bound holds.
    """
    totals: Counter[str] = Counter()
    for process, clocks in records.clock_files(run).items():
        totals.update(clocks.totals)
        totals[clocks.running] += open_ns(run, process, clocks)
    is_disturbed = any(
        records.of_kind(journal, kind)
        for journal in (*records.agent_journals(run).values(), *records.rank_journals(run).values())
        for kind in ("fault", "aborted", "rollback")
    )
    for clock, names in CLASSES_OF_CLOCKS.items():
        stated_ns = sum(classes[name] for name in names)
        moved_ns = classes["lost_work"] if is_disturbed else 0
        verdict.check(
            totals[clock] - moved_ns <= stated_ns <= totals[clock],
            f"{run.name}: clock {clock} measured {totals[clock]} ns, {' + '.join(names)} are {stated_ns} ns"
            + (f", {moved_ns} ns are lost work" if moved_ns else ""),
        )


def open_ns(run: Path, process: records.Process, clocks: records.Clocks) -> int:
    """How long the last clock of a lost process ran on after its last switch, until its last sign of life, ns."""
    lives = [
        event["t_fault_ns"] - clocks.last_ns
        for journal in records.agent_journals(run).values()
        for event in records.of_kind(journal, "fault")
        if process_of(event) == process
    ]
    return max(0, *lives) if lives else 0


def check_shares(run: Path, verdict: Verdict) -> None:
    """In each attempt every share of a committed step is computed once, and again only if its computer died."""
    journals = records.rank_journals(run)
    for number, agent in records.agent_journals(run).items():
        spawned = [process_of(event) for event in records.of_kind(agent, "spawned")]
        lost = {process_of(event) for event in records.of_kind(agent, "fault")}
        committed: set[int] = set()
        computers: dict[tuple[int, int], list[records.Process]] = {}
        died_in: dict[records.Process, int] = {}
        for process in spawned:
            journal = journals.get(process, [])
            committed |= {event["step"] for event in records.of_kind(journal, "step")}
            for event in records.of_kind(journal, "share"):
                computers.setdefault((event["step"], event["share"]), []).append(process)
                died_in[process] = event["step"] if process in lost else -1
        num_shares = 1 + max((share for _, share in computers), default=-1)
        wrong, num_lost = [], 0
        for step, share in itertools.product(sorted(committed), range(num_shares)):
            found = computers.get((step, share), [])
            num_dead = sum(died_in[process] == step for process in found)
            num_living = len(found) - num_dead
            num_lost += min(num_dead, max(0, len(found) - 1))
            if not found or num_living > 1:
                wrong.append(f"share {share} of step {step} was computed {len(found)} times")
        verdict.check(
            not wrong,
            f"{run.name}, attempt {number}: {len(committed)} steps x {num_shares} shares computed once, "
            f"and {num_lost} that a rank took with it{'; but ' + '; '.join(wrong[:3]) if wrong else ''}",
        )


def process_of(event: records.Event) -> records.Process:
    """The process that an agent's event is about."""
    return event["rank"], event["incarnation"]


def check_watch(
    run: Path, report: Mapping[str, Any], watch: Watch, wall_ns: tuple[int, int], verdict: Verdict
) -> None:
    """The ledger's time against the referee's own clock and its own sightings of the ranks."""
    spans = [hold for journal in records.agent_journals(run).values() for hold in holds(journal)]
    verdict.check(
        all(wall_ns[0] <= start <= end <= wall_ns[1] for start, end in spans),
        f"{run.name}: {len(spans)} devices were held inside the {(wall_ns[1] - wall_ns[0]) / 1e9:.2f} s that the "
        "command took",
    )
    allocated_ns = report["ledger"]["allocated_ns"]
    degraded_ns = report["ledger"]["classes"]["degraded"]
    missing_s = (allocated_ns - watch.total_ns - degraded_ns) / 1e9
    verdict.check(
        -SLACK_S <= missing_s <= SLACK_S * len(spans),
        f"{run.name}: {allocated_ns / 1e9:.2f} s allocated, ranks seen alive for {watch.total_ns / 1e9:.2f} s, "
        f"{degraded_ns / 1e9:.2f} s degraded; {missing_s:.2f} s between",
    )


if __name__ == "__main__":
    exit_with(main)
