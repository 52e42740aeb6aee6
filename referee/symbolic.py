"""Does a plan compute what one device computes, and does it send what it says it sends?

    python referee/symbolic.py PLAN.json

Takes the document of a plan, puts random integers in for weights and tokens, and runs one whole training step on all
its ranks, in integers modulo a prime: every rank holds only its own pieces, and learns of others only what arrives
over wires that count. Then the step is made on one device that knows no mesh. All of it must agree, digit by digit,
on every rank: loss, number of tokens, norm, every gradient as the optimizer sees it, every updated parameter as it is
stored, every activation that is kept. And every collective of the run must stand in the document with its runs and
its bytes, and none may stand there that did not run.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from symbolic_data import WrongError
from symbolic_pieces import MisfitError
from symbolic_plan import Plan, read_plan
from symbolic_step import Step
from symbolic_traffic import traffic_differences
from symbolic_wires import Wires
from verdicts import RefereeError, exit_with

GUARANTEE = "the plan computes what one device computes, and sends what it says"


class Flaw(StrEnum):
    """What is wrong with a plan."""

    COMPUTES_WRONG = "computes wrong"
    CANNOT_RUN = "cannot run"
    LIES_OTHERWISE = "lies otherwise than declared"
    SENDS_OTHERWISE = "sends otherwise than it says"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the referee found.

    Args:
        flaw: None if the plan holds.
        difference: The first one, in a sentence: the tensor, the rank, the axis.
        num_collectives: Collectives that were counted, as the plan lists them.
        num_runs: How often ranks took part in one.
        sent_bytes: That all ranks sent.
        sent_between_nodes: Of them those that left their node.
    """

    flaw: Flaw | None
    difference: str
    num_collectives: int
    num_runs: int
    sent_bytes: int
    sent_between_nodes: int

    @property
    def is_held(self) -> bool:
        """Whether nothing was found."""
        return self.flaw is None


def run(document: Mapping[str, Any]) -> Verdict:
    """Run the document of a plan.

    Raises: RefereeError if it is none, or asks for what integers cannot show.
    """
    plan = read_plan(document)
    step = Step(plan)
    flaw, difference = _flaw_of(plan, step)
    return _verdict(flaw, difference, step.ranks.wires, plan.nodes)


def _flaw_of(plan: Plan, step: Step) -> tuple[Flaw | None, str]:
    """The first thing that is wrong, numbers before layouts before messages."""
    try:
        step.run()
    except WrongError as error:
        return Flaw.COMPUTES_WRONG, str(error)
    except (MisfitError, ValueError, IndexError, KeyError) as error:
        return Flaw.CANNOT_RUN, f"{step.where}: {error!r}"
    if (misplaced := step.ranks.misplaced) is not None:
        return Flaw.LIES_OTHERWISE, misplaced
    for difference in traffic_differences(plan, step.ranks.wires):
        return Flaw.SENDS_OTHERWISE, difference
    return None, ""


def _verdict(flaw: Flaw | None, difference: str, wires: Wires, nodes: Sequence[int]) -> Verdict:
    pairs = [(pair, size) for sent in wires.sent_bytes.values() for pair, size in sent.items()]
    return Verdict(
        flaw=flaw,
        difference=difference,
        num_collectives=len(wires.runs),
        num_runs=sum(count for runs in wires.runs.values() for count in runs.values()),
        sent_bytes=sum(size for _, size in pairs),
        sent_between_nodes=sum(size for (source, target), size in pairs if nodes[source] != nodes[target]),
    )


def main() -> int:
    """The command line; 0 if the plan held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path, help="document of a plan, JSON")
    try:
        document = json.loads(parser.parse_args().plan.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise RefereeError(f"no document of a plan: {error}") from error
    verdict = run(document)
    if not verdict.is_held:
        print(f"BROKEN: {GUARANTEE}: it {verdict.flaw}: {verdict.difference}")
        return 1
    print(
        f"HELD: {GUARANTEE} ({verdict.num_collectives} collectives, {verdict.sent_bytes} bytes sent in the step)"
    )
    return 0


if __name__ == "__main__":
    exit_with(main)
