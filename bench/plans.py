"""Random accepted plans against one device: do they compute the same, send what they say, and break when spoilt?

    python bench/plans.py [--plans 5000] [--first SEED]

Draws random jobs (small networks, meshes of 1 to 16 ranks, every statement of the language), compiles them, and runs
every accepted plan in `referee/symbolic.py`. Then one of its sums is removed, one made twice and one moved to another
axis: the verifier must refuse each, and run all the same each must compute wrong.
"""

import argparse
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "referee")]

import symbolic  # noqa: E402  (the referee's folder must be known first)
from tests.plan.random_plans import Job, random_job, spoil  # noqa: E402
from trimtab.plan.document import plan_document  # noqa: E402
from trimtab.plan.verifier import find_wrong  # noqa: E402
from trimtab.spec import StrategyError  # noqa: E402


class Tally:
    """What became of the jobs."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.held = 0
        self.collectives = 0
        self.sent_bytes = 0
        self.spoilt: Counter[tuple[str, str]] = Counter()
        self.findings: list[str] = []

    def try_job(self, job: Job) -> None:
        """Compile, run, spoil."""
        try:
            plan = job.compile()
        except StrategyError as error:
            self.refused[_kind_of(error)] += 1
            return
        verdict = symbolic.run(plan_document(plan))
        if not verdict.is_held:
            self.findings.append(f"{verdict.flaw}: {verdict.difference}\n{job}")
            return
        self.held += 1
        self.collectives += verdict.num_collectives
        self.sent_bytes += verdict.sent_bytes
        for spoilt in spoil(plan, random.Random(job.seed)):
            if not any(find_wrong(spoilt.plan)):
                self.findings.append(f"{spoilt.spoiling} and not refused: {spoilt.what}\n{job}")
            verdict = symbolic.run(plan_document(spoilt.plan))
            self.spoilt[spoilt.spoiling.value, str(verdict.flaw)] += 1
            if verdict.flaw not in (symbolic.Flaw.COMPUTES_WRONG, symbolic.Flaw.CANNOT_RUN):
                self.findings.append(
                    f"{spoilt.spoiling} and still right ({verdict.flaw}): {spoilt.what}\n{job}"
                )


def _kind_of(error: StrategyError) -> str:
    """The first message without names and numbers."""
    message = error.problems[0].message
    return re.sub(r"'[^']*'|\d+", "…", message)[:90]


def main() -> int:
    """The command line; 1 if anything was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=5000, help="accepted plans to run")
    parser.add_argument("--first", type=int, default=0, help="seed of the first job")
    arguments = parser.parse_args()
    tally, seed, started = Tally(), arguments.first, time.monotonic()
    while tally.held + len(tally.findings) < arguments.plans:
        tally.try_job(random_job(seed))
        seed += 1
    print(f"{seed - arguments.first} jobs in {time.monotonic() - started:.0f} s: {tally.held} plans held,")
    return 0


if __name__ == "__main__":
    sys.exit(main())
