"""What gloo and CPUs get wrong, as things that no plan can ask of them.

One test for each row of the measured list of what fails or lies there and concerns a layout.
"""

from collections.abc import Iterator

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.physical import Plan
from trimtab.plan.placements import PlacementKind, local_elements
from trimtab.plan.program import COLLECTIVES, Operator, OperatorKind, Value
from trimtab.spec import StrategyError

PROGRAMS = [
    "SPLIT batch OVER dp",
    "STORE params, grads, states OVER dp",
    "MESH dp 2, tp 4\nSPLIT heads, mlp, vocab OVER tp\nSTORE states OVER dp",
    "MESH dp 2, cp 4\nSPLIT sequence OVER cp USING ulysses",
    "MESH dp 2, cp 4\nSPLIT sequence OVER cp USING allgather",
    "MESH pp 2, dp 4\nSPLIT layers OVER pp MICROBATCHES 4",
    "MESH site 2, dp 4\nSPLIT batch OVER site, dp\nAVERAGE params OVER site EVERY 4 STEPS",
]


@pytest.fixture(params=PROGRAMS)
def plan(request: pytest.FixtureRequest, plan_of: PlanOf) -> Plan:
    return plan_of(request.param, devices=8, on="this-machine", vocab=251)


def operators(plan: Plan) -> Iterator[tuple[Operator, dict[str, Value]]]:
    for block in plan.blocks:
        for operator in (*block.gathers, *block.forward, *block.recompute, *block.backward):
            yield operator, dict(block.values)
    for operator in plan.update.operators:
        yield operator, dict(plan.update.values)


def test_only_operations_that_gloo_carries_right(plan: Plan) -> None:
    """dist.scatter copies raw bytes and the autograd all-gather loses gradients: a plan has neither."""
    sent = {operator.kind for operator, _ in operators(plan) if operator.transfer is not None}
    assert sent <= COLLECTIVES
    assert not any(
        "scatter" in kind.value and kind is not OperatorKind.REDUCE_SCATTER for kind in OperatorKind
    )


def test_sums_are_plain(plan: Plan) -> None:
    """PREMUL_SUM raises on gloo: a plan sums or takes the maximum; factors are applied outside."""
    operations = {operator.transfer.operation for operator, _ in operators(plan) if operator.transfer}
    assert operations <= {"sum", "max"}


def test_what_is_gathered_is_equal_on_all_ranks(plan: Plan) -> None:
    """An all-gather of unequal sizes raises: stored pieces are padded, cut dims divide."""
    sizes = plan.axis_sizes
    for operator, values in operators(plan):
        if operator.kind is not OperatorKind.ALL_GATHER:
            continue
        for name in operator.inputs:
            value = values[name]
            elements = local_elements(value.dims, value.shape, value.placements, sizes)
            if value.placements.axes_of(PlacementKind.STORED):
                assert elements % 16 == 0
            else:
                cut = next(dim for dim in value.dims if value.placements.axes_cutting(dim))
                pieces = 1
                for axis in value.placements.axes_cutting(cut):
                    pieces *= sizes[axis]
                assert value.shape[value.dims.index(cut)] % pieces == 0


def test_reductions_are_never_left_to_a_seam_between_backends(plan: Plan) -> None:
    """A wire type that gloo does not know raises, and everything after it stalls."""
    wires = {operator.transfer.wire for operator, _ in operators(plan) if operator.transfer}
    assert wires <= {"fp32", "bf16", "fp16"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("REDUCE grads OVER dp IN fp8", "gloo cannot send fp8"),
        ("KEEP grads IN fp8", "gloo cannot send fp8"),
        ("COMPUTE layers IN fp8", "CPUs do not compute in it"),
        ("OFFLOAD states TO host", "a rank's device is the host's memory: there is nowhere else to put it"),
        ("OFFLOAD activations TO host", "a rank's device is the host's memory"),
    ],
)
def test_refused_on_a_cpu(text: str, message: str, plan_of: PlanOf) -> None:
    """CPUOffloadPolicy and float8 raise in the first step; the plan says so before."""
    with pytest.raises(StrategyError, match=message):
        plan_of(text, on="this-machine")
    plan_of(text, on="512xH100")


def test_a_padded_vocabulary_is_the_only_uneven_cut(plan_of: PlanOf) -> None:
    """Other uneven cuts would hand a kernel pieces of different sizes; the nearest valid ones are named."""
    plan_of("MESH tp 4\nSPLIT vocab OVER tp", vocab=257)
    with pytest.raises(StrategyError, match="Nearest"):
        plan_of("MESH tp 3\nSPLIT mlp OVER tp", devices=3)
