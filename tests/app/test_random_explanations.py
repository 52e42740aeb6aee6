"""Explanations of random plans that use the whole language: whole, true to the plan, and as wide as the terminal."""

from collections.abc import Iterator

import pytest

from tests.cost.explanation.conftest import asked_of
from tests.cost.explanation.test_schema import problems
from tests.plan.random_plans import Job, random_job
from trimtab.app.explanation_text import explanation_lines, plain
from trimtab.catalog import Cluster, Level, Link, Node, accelerator
from trimtab.cost.explanation import document_of, explanation
from trimtab.cost.explanation.schema import explanation_schema
from trimtab.cost.flops import step_flops
from trimtab.plan.explanation import LevelBytes
from trimtab.plan.physical import Plan
from trimtab.spec import StrategyError, parse_strategy

SEEDS = range(300)
SCHEMA = explanation_schema()


def accepted() -> Iterator[tuple[Job, Plan]]:
    for seed in SEEDS:
        job = random_job(seed)
        try:
            yield job, job.compile()
        except StrategyError:
            continue


@pytest.fixture(scope="module")
def plans() -> list[tuple[Job, Plan]]:
    return list(accepted())


def cluster_of(job: Job) -> Cluster:
    links = [Link(level=level, bytes_per_s=1e9, latency_s=1e-6, source="a test") for level in Level]
    return Cluster(
        name="a test",
        nodes=tuple(Node(accelerator=accelerator("A100-SXM-80GB"), num_devices=count) for count in job.nodes),
        links=tuple(links[: min(len(job.nodes), 2)]),
        source="a test",
    )


def test_enough_plans_are_accepted(plans: list[tuple[Job, Plan]]) -> None:
    """What is refused is not explained: a generator that is refused tests nothing."""
    assert len(plans) > len(SEEDS) / 3


def test_every_plan_is_explained_whole(plans: list[tuple[Job, Plan]]) -> None:
    """No combination of lines breaks the document, its sums or its text."""
    for job, plan in plans:
        program = parse_strategy(job.text, source="run.trim")
        found = explanation(plan, asked_of(plan, program, cluster_of(job)))
        assert problems(document_of(found), SCHEMA, SCHEMA["$defs"]) == [], job.text
        assert sum(group.num_ranks for group in found.groups) == plan.mesh.num_devices
        assert sum((group.group_bytes for group in found.groups), LevelBytes()) == found.sent_bytes
        assert found.cost.step_s is not None
        for width in (60, 120):
            text = plain(explanation_lines(found, width=width))
            assert max(map(len, text.splitlines())) <= width, job.text


def test_no_plan_computes_less_than_its_network_needs(plans: list[tuple[Job, Plan]]) -> None:
    """A product that a plan forgets would make it fast and wrong."""
    for job, plan in plans:
        needed = plan.network.flops_per_token(plan.work.sequence, causal=False) * plan.work.tokens
        assert step_flops(plan).useful.full >= needed, job.text
