"""Random accepted plans: each computes what one device computes, sends what it says, and breaks when a sum is spoilt.

`bench/plans.py` does the same for thousands of them.
"""

import contextlib
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.plan.random_plans import Job, Spoiling, explained_bytes, features_of, random_job, spoil
from trimtab.plan.document import plan_document
from trimtab.plan.physical import Plan
from trimtab.plan.verifier import find_wrong
from trimtab.spec import StrategyError

sys.path.append(str(Path(__file__).parents[2] / "referee"))

import symbolic

NUM_PLANS = 150
"""Plans that are drawn."""

NUM_RUN = 50
"""Those of them that are run: the others only show what is drawn."""


@pytest.fixture(scope="module")
def accepted() -> list[tuple[Job, Plan]]:
    """The first accepted plans; the jobs before them were refused with an error for people."""
    found: list[tuple[Job, Plan]] = []
    seed = 0
    while len(found) < NUM_PLANS:
        job = random_job(seed)
        seed += 1
        with contextlib.suppress(StrategyError):
            found.append((job, job.compile()))
    assert seed < 3 * NUM_PLANS, "most programs that are drawn are meant to be accepted"
    return found


def test_a_seed_draws_one_job() -> None:
    """A finding that cannot be drawn again cannot be mended."""
    assert random_job(7) == random_job(7)
    assert random_job(7) != random_job(8)


@pytest.mark.timeout(300)
def test_every_accepted_plan_computes_what_one_device_computes(accepted: list[tuple[Job, Plan]]) -> None:
    """A plan that is accepted and computes something else would train another model, and nobody would see it."""
    for job, plan in accepted[:NUM_RUN]:
        verdict = symbolic.run(plan_document(plan))
        assert verdict.is_held, f"{verdict.flaw}: {verdict.difference}\n{job}"
        explained = explained_bytes(plan)
        assert (explained.total, explained.site) == (verdict.sent_bytes, verdict.sent_between_nodes), job


@pytest.mark.timeout(600)
def test_a_plan_with_one_sum_spoilt_is_refused_and_computes_wrong(accepted: list[tuple[Job, Plan]]) -> None:
    """A verifier that lets one of them through lets that bug of the planner through."""
    made: Counter[Spoiling] = Counter()
    for job, plan in accepted[:NUM_RUN]:
        for spoilt in spoil(plan, random.Random(job.seed)):
            what = f"{spoilt.spoiling}: {spoilt.what}\n{job}"
            made[spoilt.spoiling] += 1
            assert next(iter(find_wrong(spoilt.plan)), None) is not None, what
            flaw = symbolic.run(plan_document(spoilt.plan)).flaw
            assert flaw in (symbolic.Flaw.COMPUTES_WRONG, symbolic.Flaw.CANNOT_RUN), what
    assert min(made[spoiling] for spoiling in Spoiling) > NUM_RUN // 3


def test_the_plans_use_the_whole_language(accepted: list[tuple[Job, Plan]]) -> None:
    """What is never drawn is never tested."""
    used = {feature for job, plan in accepted for feature in features_of(job, plan)}
    expected = {
        *(
            f"statement {verb}"
            for verb in ("AVERAGE", "COMPUTE", "KEEP", "OFFLOAD", "PLACE", "RECOMPUTE", "REDUCE")
        ),
        *(f"statement {verb}" for verb in ("SEAL", "SPLIT", "STORE")),
        *(f"attention {way}" for way in ("allgather", "ring", "ulysses")),
        *(f"route {route}" for route in ("hierarchical", "native", "ring", "tree")),
        *(f"parameters split {dim}" for dim in ("embed", "experts", "heads", "kv_heads", "mlp", "vocab")),
        *(
            f"operator {kind}"
            for kind in ("all_gather", "all_reduce", "all_to_all", "average", "reduce_scatter")
        ),
        *(f"{dim} cut over several axes" for dim in ("batch", "sequence", "slots")),
        *(f"stored {table} over 2 axes" for table in ("grads", "params", "states")),
        "a matrix tied over two stages",
        "experts over an axis of the batch",
        "groups that send in another way",
        "norm of queries and keys",
        "recompute",
        "replicas without a last share",
        "schedule 1f1b",
        "schedule gpipe",
        "uneven pieces of the vocabulary",
        "wire bf16",
    }
    assert expected <= used
