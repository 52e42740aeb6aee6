"""Random accepted plans against one device: do they compute the same, send what they say, and break when spoilt?

    python bench/plans.py [--plans 5000] [--first SEED] [--features]

Draws random jobs (small networks, meshes of 1 to 16 ranks, every statement of the language), compiles them, and runs
every accepted plan in `referee/symbolic.py`. Then one of its sums is removed, one made twice and one moved to another
axis: the verifier must refuse each, and run all the same each must compute wrong. Exits 1 if anything else happened.
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

import symbolic  # noqa: E402  (the folders of referee and tests must be known first)
from tests.plan.random_plans import Job, Spoilt, explained_bytes, features_of, random_job, spoil  # noqa: E402
from trimtab.plan.document import plan_document  # noqa: E402
from trimtab.plan.physical import Plan  # noqa: E402
from trimtab.plan.verifier import find_wrong  # noqa: E402
from trimtab.spec import StrategyError  # noqa: E402


class Tally:
    """What became of the jobs."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.features: Counter[str] = Counter()
        self.num_held = 0
        self.num_runs = 0
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
        except Exception as error:  # noqa: BLE001 a planner that stops in another way is a finding
            self.findings.append(f"not compiled, {error!r}\n{job}")
            return
        verdict = symbolic.run(plan_document(plan))
        if not verdict.is_held:
            self.findings.append(f"{verdict.flaw}: {verdict.difference}\n{job}")
            return
        explained = explained_bytes(plan)
        if (explained.total, explained.site) != (verdict.sent_bytes, verdict.sent_between_nodes):
            self.findings.append(f"explain says {explained}, the ranks sent {verdict}\n{job}")
            return
        self.num_held += 1
        self.num_runs += verdict.num_runs
        self.sent_bytes += verdict.sent_bytes
        self.features.update(features_of(job, plan))
        for spoilt in spoil(plan, random.Random(job.seed)):
            self._try_spoilt(job, spoilt)

    def _try_spoilt(self, job: Job, spoilt: Spoilt) -> None:
        what = f"{spoilt.spoiling.value}: {spoilt.what}\n{job}"
        self.spoilt[spoilt.spoiling.value, "made"] += 1
        if _is_refused(spoilt.plan):
            self.spoilt[spoilt.spoiling.value, "refused"] += 1
        else:
            self.findings.append(f"not refused, {what}")
        flaw = symbolic.run(plan_document(spoilt.plan)).flaw
        if flaw in (symbolic.Flaw.COMPUTES_WRONG, symbolic.Flaw.CANNOT_RUN):
            self.spoilt[spoilt.spoiling.value, flaw.value] += 1
        else:
            self.findings.append(f"still right, {what}")


def _is_refused(plan: Plan) -> bool:
    return next(iter(find_wrong(plan)), None) is not None


def _kind_of(error: StrategyError) -> str:
    """The first message without names and numbers."""
    message = error.problems[0].message
    return re.sub(r"'[^']*'|\b\d+\b|(?<=over )[\w, ]+?(?=:|$)", "…", message)[:100]


def _print(tally: Tally, num_jobs: int, seconds: float, *, with_features: bool) -> None:
    print(f"{num_jobs:,} jobs drawn in {seconds:,.0f} s: {sum(tally.refused.values()):,} refused, of which")
    for reason, count in tally.refused.most_common(12):
        print(f"  {count:6,}  {reason}")
    print(f"{tally.num_held + len(tally.findings):,} plans accepted and run; {tally.num_held:,} held:")
    print("  every number on every rank is that of one device;")
    print(
        f"  {tally.num_runs:,} runs of collectives and {tally.sent_bytes:,} bytes as the plans say, none left over"
    )
    for spoiling in dict.fromkeys(name for name, _ in tally.spoilt):
        made, refused, wrong, dead = (
            tally.spoilt[spoiling, what] for what in ("made", "refused", "computes wrong", "cannot run")
        )
        print(
            f"one sum {spoiling}: {made:,} plans, {refused:,} refused; run all the same {wrong:,} compute wrong, {dead:,} cannot run"
        )
    if with_features:
        for feature, count in sorted(tally.features.items()):
            print(f"  {count:6,}  {feature}")


def main() -> int:
    """The command line; 1 if anything was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=5000, help="accepted plans to run")
    parser.add_argument("--first", type=int, default=0, help="seed of the first job")
    parser.add_argument("--features", action="store_true", help="print what the plans put to work")
    arguments = parser.parse_args()
    tally, seed, started = Tally(), arguments.first, time.monotonic()
    while tally.num_held < arguments.plans and len(tally.findings) < 20:
        num_before = len(tally.findings)
        tally.try_job(random_job(seed))
        seed += 1
        for finding in tally.findings[num_before:]:
            print(f"FOUND  {finding}\n", flush=True)
    _print(tally, seed - arguments.first, time.monotonic() - started, with_features=arguments.features)
    return int(bool(tally.findings))


if __name__ == "__main__":
    sys.exit(main())
