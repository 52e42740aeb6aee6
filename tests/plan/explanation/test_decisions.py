from tests.plan.conftest import PlanOf
from trimtab.plan.explanation import decision_changes, decisions
from trimtab.plan.explanation.decisions import RowClass
from trimtab.plan.physical import Plan
from trimtab.plan.tables import Table
from trimtab.spec import Program, parse_strategy

TEXT = """\
MESH dp 2, tp 2
SPLIT batch OVER dp
SPLIT heads, mlp, vocab OVER tp
STORE states OVER dp
REDUCE grads OVER dp USING ring
REDUCE grads WHERE layer < 2 OVER dp USING tree
REDUCE grads WHERE kind = 'embedding' OVER dp IN bf16
KEEP states WHERE layer = 0 IN bf16
RECOMPUTE activations WHERE layer % 2 = 0
COMPUTE layers WHERE layer < 2 IN bf16
"""


def compiled(plan_of: PlanOf, text: str) -> tuple[Plan, Program]:
    return plan_of(text), parse_strategy(text, source="run.trim")


def classes(plan_of: PlanOf, text: str, table: Table) -> tuple[RowClass, ...]:
    return decisions(plan_of(text), parse_strategy(text, source="run.trim"))[table]


def decided(plan_of: PlanOf, table: Table, name: str) -> dict[str, tuple[str, int | None]]:
    """By property of one row: the value and the line that decided it."""
    for rows in classes(plan_of, TEXT, table):
        if name in rows.rows:
            return {
                item.property: (item.value, item.line.line if item.line else None) for item in rows.decided
            }
    raise AssertionError(f"{name} stands nowhere")


def test_the_last_matching_line_decides_each_property(plan_of: PlanOf) -> None:
    """The cascade is what a reader comes for: which of three REDUCE lines holds here?"""
    assert decided(plan_of, Table.GRADS, "layers.0-1.attention.wq.weight") == {
        "sum dp": ("all_reduce", 6),
        "route dp": ("tree", 6),
    }
    assert decided(plan_of, Table.GRADS, "layers.2-3.attention.wq.weight") == {
        "sum dp": ("reduce_scatter", 5),
        "route dp": ("ring", 5),
    }
    assert decided(plan_of, Table.GRADS, "embedding.weight") == {
        "sum dp": ("reduce_scatter", 7),
        "route dp": ("ring", 5),
        "wire dp": ("bf16", 7),
    }


def test_each_table_tells_its_own(plan_of: PlanOf) -> None:
    """Splits of parameters, storage of states, recompute of activations, types of layers."""
    assert decided(plan_of, Table.PARAMS, "layers.0-3.mlp.up.weight") == {"split tp": ("mlp", 3)}
    assert decided(plan_of, Table.STATES, "layers.0.mlp.up.weight") == {
        "store dp": ("pieces", 4),
        "keep": ("bf16", 8),
    }
    assert decided(plan_of, Table.LAYERS, "layers.0-1") == {"compute": ("bf16", 10)}


def test_every_row_is_told_once(plan_of: PlanOf) -> None:
    """A row in two classes has two answers."""
    plan = plan_of(TEXT)
    for table, found in decisions(plan, parse_strategy(TEXT, source="run.trim")).items():
        assert sum(rows.num_rows for rows in found) == len(plan.bound.rows[table])


def test_what_the_prelude_decides_has_no_line(plan_of: PlanOf) -> None:
    """Nobody is sent to a line that does not exist."""
    (rows, *_) = classes(plan_of, "", Table.ACTIVATIONS)
    assert [(item.property, item.value, item.line) for item in rows.decided] == [("split dp", "batch", None)]


def test_ways_of_groups_are_told_apart(plan_of: PlanOf) -> None:
    """ON gives one row two routes, each with its line."""
    text = "MESH dp 2, tp 2\nSPLIT heads OVER tp\nREDUCE grads OVER dp USING ring\nREDUCE grads OVER dp USING tree ON rank % 2 = 0"
    (rows,) = classes(plan_of, text, Table.GRADS)
    assert {(item.property, item.value, item.line and item.line.line) for item in rows.decided} == {
        ("sum dp (groups 0)", "all_reduce", 4),
        ("route dp (groups 0)", "tree", 4),
        ("sum dp (groups 1)", "all_reduce", 3),
        ("route dp (groups 1)", "ring", 3),
    }


def test_one_changed_line_changes_its_rows_only(plan_of: PlanOf) -> None:
    """What a change does is asked before it costs a night."""
    after = TEXT.replace("WHERE layer < 2 OVER dp USING tree", "WHERE layer < 3 OVER dp USING tree")
    changes = decision_changes(compiled(plan_of, TEXT), compiled(plan_of, after))
    assert list(changes) == [Table.GRADS]
    told = {
        change.before.property: (change.before.value, change.after.value)
        for change in changes[Table.GRADS]
        if change.before and change.after
    }
    assert told == {"sum dp": ("reduce_scatter", "all_reduce"), "route dp": ("ring", "tree")}
    for change in changes[Table.GRADS]:
        assert all(name.startswith("layers.2.") for name in change.rows)
        assert change.num_rows == 16


def test_the_same_decision_by_another_line_is_no_change(plan_of: PlanOf) -> None:
    """A comment above a line moves it and changes nothing."""
    assert decision_changes(compiled(plan_of, TEXT), compiled(plan_of, f"-- a comment\n{TEXT}")) == {}
