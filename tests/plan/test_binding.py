"""The cascade: for one row and one property the last matching line decides, and its line is kept."""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.bound import Reduction
from trimtab.plan.physical import Plan
from trimtab.plan.tables import Table
from trimtab.spec import StrategyError
from trimtab.terms import Span


def reduction(plan: Plan, name: str, axis: str = "dp") -> Reduction:
    """How one gradient is summed by all groups."""
    (found,) = plan.bound.reductions[name][axis].values()
    return found


def line_of(span: Span | None) -> int | None:
    return span.line if span else None


def test_a_later_compression_keeps_an_earlier_route(plan_of: PlanOf) -> None:
    """Properties are decided one by one, as in a style sheet."""
    plan = plan_of(
        "REDUCE grads OVER dp USING ring BUCKET 1MB\nREDUCE grads WHERE kind = 'norm' OVER dp COMPRESS int8"
    )
    norm, matrix = reduction(plan, "final_norm.weight"), reduction(plan, "layers.0.mlp.up.weight")
    assert (norm.route.value, line_of(norm.route.line)) == ("ring", 1)
    assert (norm.compress.value, line_of(norm.compress.line)) == ("int8", 2)
    assert (norm.bucket_bytes.value, line_of(norm.bucket_bytes.line)) == (1_000_000, 1)
    assert (matrix.compress.value, matrix.compress.line) == ("none", None)


def test_default_and_none_take_back(plan_of: PlanOf) -> None:
    """What a preset says can be unsaid for some rows."""
    plan = plan_of(
        "REDUCE grads OVER dp USING tree COMPRESS int8\n"
        "REDUCE grads WHERE layer = 0 OVER dp USING default COMPRESS none"
    )
    first, second = reduction(plan, "layers.0.mlp.up.weight"), reduction(plan, "layers.1.mlp.up.weight")
    assert (first.route.value, first.compress.value) == ("native", "none")
    assert (second.route.value, second.compress.value) == ("tree", "int8")


def test_an_overridden_line_is_a_warning(plan_of: PlanOf) -> None:
    """Dead lines mislead whoever reads them next."""
    plan = plan_of("REDUCE grads OVER dp USING tree\nREDUCE grads OVER dp USING ring")
    (warning,) = plan.warnings
    assert (warning.span.line, "no effect" in warning.message) == (1, True)


def test_a_line_that_still_decides_something_is_none(plan_of: PlanOf) -> None:
    """Half an effect is an effect."""
    plan = plan_of("REDUCE grads OVER dp USING tree BUCKET 1MB\nREDUCE grads OVER dp USING ring")
    assert plan.warnings == ()


@pytest.mark.parametrize(
    ("condition", "matched"),
    [
        ("layer < 1", {"layers.0"}),
        ("NOT layer < 1", {"layers.1"}),  # NULL for the embedding: neither true nor false
        ("layer IS NULL", {"embedding", "positions", "final_norm"}),
        ("layer = NULL OR layer = 1", {"layers.1"}),
        ("layer NOT IN (1)", {"layers.0"}),
    ],
)
def test_conditions_have_three_values(condition: str, matched: set[str], plan_of: PlanOf) -> None:
    """The embedding has no layer: a comparison with it is neither true nor false."""
    if "= NULL" in condition:
        with pytest.raises(StrategyError):
            plan_of(f"STORE states WHERE {condition} OVER dp", layers=2)
        return
    plan = plan_of(f"STORE states WHERE {condition} OVER dp", layers=2)
    stored = plan.bound.stored[Table.STATES]
    found = {
        ".".join(name.split(".")[:2]) if name.startswith("layers") else name.split(".")[0] for name in stored
    }
    assert found == matched


def test_if_any_forgives_no_match(plan_of: PlanOf) -> None:
    """A preset may speak of experts that a dense network has not."""
    with pytest.raises(StrategyError, match="no row of grads matches"):
        plan_of("REDUCE grads WHERE kind = 'expert' OVER dp USING tree")
    plan = plan_of("REDUCE grads WHERE kind = 'expert' OVER dp USING tree IF ANY")
    assert plan.bound.reductions == {}


def test_kv_heads_go_with_heads(plan_of: PlanOf) -> None:
    """Queries on one rank and their keys on another would be no attention."""
    plan = plan_of("MESH dp 2, tp 2\nSPLIT heads OVER tp", model="llama-3m")
    splits = plan.bound.splits[Table.PARAMS]
    assert splits["layers.0.attention.wk.weight"]["tp"].value == "kv_heads"
    assert splits["layers.0.attention.wq.weight"]["tp"].value == "heads"


def test_the_batch_takes_what_no_line_uses(plan_of: PlanOf) -> None:
    """STORE, REDUCE and AVERAGE do not use an axis up; SPLIT and PLACE do."""
    plan = plan_of(
        "MESH a 2, b 2, tp 2\nSPLIT mlp OVER tp\nSTORE states OVER a\nREDUCE grads OVER a, b", devices=8
    )
    assert list(plan.bound.batch_axes) == ["a", "b"]


def test_gradients_and_states_lie_as_their_parameter(plan_of: PlanOf) -> None:
    """STORE params alone is ZeRO-3; STORE states alone is ZeRO-1."""
    whole = plan_of("STORE params OVER dp").parameters["final_norm.weight"]
    states = plan_of("STORE states OVER dp").parameters["final_norm.weight"]
    assert {table: str(found) for table, found in whole.stored.items()} == dict.fromkeys(
        ("params", "grads", "states"), "stored over dp"
    )
    assert str(states.stored["params"]) == "replicated"
    assert str(states.stored["states"]) == "stored over dp"


def test_on_chooses_groups(plan_of: PlanOf) -> None:
    """A group takes a line only if all of its devices satisfy it."""
    plan = plan_of(
        "MESH r 2, dp 16\nREDUCE grads OVER r\nREDUCE grads OVER dp\nREDUCE grads OVER dp IN bf16 ON node < 2",
        devices=32,
    )
    by_groups = plan.bound.reductions["final_norm.weight"]["dp"]
    assert {groups: found.wire.value for groups, found in by_groups.items()} == {(0,): "bf16", (1,): None}


def test_a_seal_speaks_of_rows_and_axes(plan_of: PlanOf) -> None:
    """What a line does not name travels as it is; what it names is sealed wherever it is sent."""
    plan = plan_of(
        "MESH dp 2, tp 2\nSPLIT heads, mlp OVER tp\nSTORE params OVER dp\n"
        "SEAL params WHERE layer = 0 OVER dp\nSEAL activations WHERE kind = 'residual' OVER tp"
    )
    sealed = {
        (traffic.block, traffic.tensors[0], traffic.transfer.is_sealed)
        for traffic in plan.traffic
        if traffic.block.startswith("layer") and traffic.phase.value == "forward"
    }
    assert ("layer 0", "stored:attention_norm.weight", True) in sealed
    assert ("layers 1-3", "stored:attention_norm.weight", False) in sealed
    assert ("layer 0", "attention.wo.product", True) in sealed


def test_a_sum_names_the_line_that_makes_it_one(plan_of: PlanOf) -> None:
    """Norms under sequence parallelism are summed over tp because of that line, not of the batch's."""
    plan = plan_of(
        "MESH dp 2, tp 2\nSPLIT batch OVER dp\nSPLIT heads, mlp, vocab OVER tp\n"
        "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp\nREDUCE grads OVER dp USING tree"
    )
    lines = {
        traffic.transfer.axes: line_of(traffic.because.line)
        for traffic in plan.traffic
        if traffic.block == "update" and any(name.startswith("acc:layers") for name in traffic.tensors)
    }
    assert lines == {("dp",): 5, ("tp",): 4}


def test_rows_are_those_of_the_microbatch_that_runs(plan_of: PlanOf) -> None:
    """MICROBATCHES changes what WHERE bytes speaks of."""
    plan = plan_of("MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 2", microbatch=2)
    assert plan.work.microbatch == 8
    assert plan.bound.rows[Table.ACTIVATIONS]["embedding"].shape[0] == 8


def test_an_average_is_compressed_as_it_says(plan_of: PlanOf) -> None:
    """A clause that is read and forgotten is a lie about bytes."""
    text = "MESH site 2, dp 2\nSPLIT batch OVER site, dp\nAVERAGE params OVER site EVERY 4 STEPS"
    plain, small = plan_of(text), plan_of(f"{text} COMPRESS int8")
    sent = [
        sum(traffic.sent_bytes(0) for traffic in plan.traffic if traffic.operator.kind.value == "average")
        for plan in (plain, small)
    ]
    assert sent[0] == 4 * sent[1]


def test_the_order_of_storing_and_cutting_does_not_matter(plan_of: PlanOf) -> None:
    """A preset may be used after a STORE: what is cut over an axis is in pieces there already."""
    lines = ["MESH dp 2, tp 2", "STORE states OVER tp", "SPLIT heads, mlp, vocab OVER tp"]
    first, second = plan_of("\n".join(lines)), plan_of("\n".join([lines[0], lines[2], lines[1]]))
    for plan in (first, second):
        assert str(plan.parameters["layers.0.mlp.up.weight"].stored["states"]) == "split mlp over tp"
        assert str(plan.parameters["final_norm.weight"].stored["states"]) == "stored over tp"
