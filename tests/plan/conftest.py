"""Plans from text, for tests."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.catalog import Machine, cluster, network
from trimtab.plan.compiling import compile_program
from trimtab.plan.physical import Plan
from trimtab.plan.training import Training
from trimtab.spec import parse_strategy, resolve_mesh

MACHINE = Machine(num_devices=8, cores=8, memory_bytes=64 * 2**30)
GOLDEN = Path(__file__).parents[1] / "golden" / "plan"

PlanOf = Callable[..., Plan]


@pytest.fixture(scope="session")
def plan_of() -> PlanOf:
    """Compiles a program; the job around it is small unless a test says otherwise."""

    def compiled(
        text: str,
        *,
        model: str = "gpt-3m",
        devices: int = 4,
        on: str = "512xH100",
        batch: int = 32,
        microbatch: int = 1,
        sequence: int = 128,
        shares: int | None = None,
        compute: str = "fp32",
        num_states: int = 2,
        source: str = "run.trim",
        **fields: Any,
    ) -> Plan:
        program = parse_strategy(text, source=source)
        training = Training(
            network=network(model, **fields),
            batch=batch,
            microbatch=microbatch,
            sequence=sequence,
            shares=shares,
            compute=compute,
            num_states=num_states,
        )
        mesh = resolve_mesh(program, devices)
        return compile_program(program, training, mesh=mesh, cluster=cluster(on, machine=MACHINE))

    return compiled


@pytest.fixture(scope="session")
def check_golden() -> Callable[[str, str], None]:
    """Compares a text with a file of tests/golden/plan; TRIMTAB_REGENERATE=1 writes the file instead."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("TRIMTAB_REGENERATE") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
