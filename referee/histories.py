"""Has a run one history, whatever was killed or cut off?

    python referee/histories.py RUN [RUN ...]

Reads what every process of every rank wrote: which epochs it entered and with whom, which steps it committed in them,
what the weights were after a step (`digest` events, where the job asks for them with `fault_tolerance.digest_every`),
and what the lead of an epoch says that loss and gradient norm were, which follow from the weights before.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import records
from records import Event, Process
from verdicts import RefereeError, Verdict, exit_with

GUARANTEE = "there is one history: no step has two outcomes, and no epoch goes back"


def main(arguments: Sequence[str] | None = None) -> int:
    """Referee; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run")
    options = parser.parse_args(arguments)
    verdict = Verdict(GUARANTEE)
    for run in map(Path, options.runs):
        print(run.name)
        journals = records.rank_journals(run)
        if not journals:
            raise RefereeError(f"{run} has no journal of a rank")
        referee(run, journals, verdict)
    return verdict.conclude()


def referee(run: Path, journals: dict[Process, list[Event]], verdict: Verdict) -> None:
    """Check one run."""
    check_outcomes(journals, verdict)
    for number, agent in records.agent_journals(run).items():
        mine = {(event["rank"], event["incarnation"]) for event in records.of_kind(agent, "spawned")}
        attempt = {process: journals[process] for process in sorted(mine & journals.keys())}
        print(f"  attempt {number}, {len(attempt)} processes")
        check_epochs(attempt, verdict)
        check_chain(agent, attempt, verdict)


def check_outcomes(journals: dict[Process, list[Event]], verdict: Verdict) -> None:
    """One hash and one loss for each step, whoever says it, and however often it was done."""
    hashes: dict[int, set[str]] = {}
    losses: dict[int, set[tuple[object, object]]] = {}
    num_hashes = 0
    for journal in journals.values():
        for event in records.of_kind(journal, "digest"):
            hashes.setdefault(event["step"], set()).add(event["weights_sha256"])
            num_hashes += 1
        for event in records.of_kind(journal, "commit"):
            losses.setdefault(event["step"], set()).add((event["loss"], event["grad_norm"]))
    split = sorted(step for step, found in hashes.items() if len(found) > 1)
    verdict.check(
        not split, f"{num_hashes} hashes of {len(hashes)} steps; steps with more than one: {split or 'none'}"
    )
    split = sorted(step for step, found in losses.items() if len(found) > 1)
    verdict.check(
        bool(losses) and not split,
        f"losses and norms of {len(losses)} steps; steps with more than one: {split or 'none'}",
    )


def check_epochs(journals: dict[Process, list[Event]], verdict: Verdict) -> None:
    """Who entered an epoch agrees on its members and its first step, and is one of them."""
    entered: dict[int, set[tuple[tuple[int, ...], int]]] = {}
    strangers = []
    for (rank, _), journal in journals.items():
        for event in records.of_kind(journal, "entered"):
            members = tuple(event["members"])
            entered.setdefault(event["epoch"], set()).add((members, event["step"]))
            if rank not in members:
                strangers.append((rank, event["epoch"]))
    split = {epoch: found for epoch, found in sorted(entered.items()) if len(found) > 1}
    verdict.check(
        bool(entered) and not split, f"{len(entered)} epochs; entered by two sides: {split or 'none'}"
    )
    verdict.check(not strangers, f"ranks in an epoch that they are no member of: {strangers or 'none'}")


def check_chain(agent: list[Event], journals: dict[Process, list[Event]], verdict: Verdict) -> None:
    """Epochs are formed in order, and each begins where the one before ended, or is rolled back to."""
    formed = [event["epoch"] for event in records.of_kind(agent, "formed")]
    verdict.check(formed == sorted(set(formed)), f"epochs were formed in the order {formed}")
    has_rolled_back = bool(records.of_kind(agent, "rollback"))
    steps: dict[int, list[int]] = {}
    backwards = []
    for process, journal in journals.items():
        last = (-1, -1)
        for event in records.of_kind(journal, "step"):
            here = (event["epoch"], event["step"])
            if here[0] < last[0] or (here[1] <= last[1] and not has_rolled_back):
                backwards.append((process, last, here))
            last = here
            steps.setdefault(here[0], []).append(here[1])
    verdict.check(not backwards, f"processes that went back: {backwards or 'none'}")
    if has_rolled_back:
        return
    gaps = [
        (before, after)
        for before, after in zip(sorted(steps), sorted(steps)[1:], strict=False)
        # Who committed alone, and was lost with that, leaves one step to be done again: with the same outcome.
        if min(steps[after]) not in (max(steps[before]), max(steps[before]) + 1)
    ]
    verdict.check(not gaps, f"epochs that do not follow on each other: {gaps or 'none'}")


if __name__ == "__main__":
    exit_with(main)
