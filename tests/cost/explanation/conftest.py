"""Explanations of programs, for tests."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.plan.conftest import MACHINE, PlanOf
from trimtab.catalog import Cluster, cluster
from trimtab.cost.explanation import Asked, Explanation, explanation
from trimtab.cost.explanation.document import CheckpointFacts, DetectionFacts, ModelFacts, OnLossFacts
from trimtab.plan.physical import Plan
from trimtab.spec import Program, parse_strategy
from trimtab.terms import OnLoss

Explain = Callable[..., tuple[Plan, Explanation]]


def asked_of(
    plan: Plan,
    program: Program,
    place: Cluster,
    *,
    compute: str = "bf16",
    rule: OnLoss = OnLoss.ROLLBACK,
    every: int | str = "adaptive",
) -> Asked:
    """What a job around a plan would say."""
    return Asked(
        run="run",
        digest="0" * 64,
        program=program,
        model=ModelFacts(
            network=plan.network.name,
            parameters=plan.network.num_parameters(),
            active_parameters=plan.network.num_active_parameters(),
            layers=plan.network.layers,
            decided_by="run.yaml:2",
        ),
        compute=compute,
        cluster=place,
        device_bytes=place.nodes[0].accelerator.memory_bytes,
        steps=100,
        usd_per_device_hour=None,
        on_loss=OnLossFacts(
            rule=rule, strongest=rule, reason="", guarantee="", decided_by="default", limited_by=""
        ),
        checkpoints=CheckpointFacts(every=every, keep=3, decided_by="run.yaml:8"),
        detection=DetectionFacts(
            deadline_s=60.0,
            limits_s={"heartbeat": 2.0},
            probe_share=0.0,
            compare_every=100,
            decided_by="default",
        ),
        origins={"fault_tolerance.shares": "run.yaml:9"},
    )


@pytest.fixture(scope="session")
def explain(plan_of: PlanOf) -> Explain:
    """Compiles and explains a program."""

    def explained(
        text: str,
        *,
        on: str = "512xH100",
        compute: str = "bf16",
        rule: OnLoss = OnLoss.ROLLBACK,
        every: int | str = "adaptive",
        **options: Any,
    ) -> tuple[Plan, Explanation]:
        plan = plan_of(text, on=on, compute=compute, **options)
        program, place = parse_strategy(text, source="run.trim"), cluster(on, machine=MACHINE)
        asked = asked_of(plan, program, place, compute=compute, rule=rule, every=every)
        return plan, explanation(plan, asked)

    return explained
