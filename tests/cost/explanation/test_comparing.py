from tests.cost.explanation.conftest import Explain
from trimtab.cost.explanation.comparing import Comparison, Explained, comparison
from trimtab.plan.tables import Table
from trimtab.spec import parse_strategy

BASE = (
    "MESH dp 2, tp 2\nSPLIT batch OVER dp\nSPLIT heads, mlp, vocab OVER tp\nREDUCE grads OVER dp USING ring"
)


def compared(explain: Explain, before: str, after: str, **options: object) -> Comparison:
    first, second = (
        Explained(program=parse_strategy(text, source="run.trim"), plan=plan, explanation=found)
        for text, (plan, found) in ((before, explain(before)), (after, explain(after, **options)))
    )
    return comparison(first, second)


def test_a_plan_is_the_same_as_itself(explain: Explain) -> None:
    """A comment and another order of clauses change nothing."""
    found = compared(explain, BASE, f"-- a comment\n{BASE}")
    assert found.is_same
    assert (found.removed, found.added, found.rows, found.figures, found.groups) == ((), (), (), (), ())


def test_one_line_with_its_places_and_its_price(explain: Explain) -> None:
    """What was decided, what is, and where each is written; what that does to each rank."""
    found = compared(explain, BASE, f"{BASE}\nSTORE states OVER dp")
    assert not found.is_same
    assert [formula.text for formula in found.added] == ["STORE states OVER dp"]
    assert found.removed == ()
    rows = {(row.table, row.property): row for row in found.rows}
    stored = rows[Table.STATES, "store dp"]
    assert (stored.before, stored.after) == ("", "pieces")
    assert (stored.before_at, stored.after_at) == ("", "run.trim:5")
    summed = rows[Table.GRADS, "sum dp"]
    assert (summed.before, summed.after) == ("all_reduce", "reduce_scatter")
    assert len(rows) == len(found.rows) == 2
    (group,) = found.groups
    changes = {figure.subject: (figure.before, figure.after) for figure in group.figures}
    before, after = changes["states"]
    assert before is not None
    assert after is not None
    assert after < 0.51 * before


def test_a_route_changes_neither_memory_nor_result(explain: Explain) -> None:
    """Only what travels, and how long."""
    found = compared(explain, BASE, BASE.replace("ring", "tree"))
    (row,) = found.rows
    assert (row.property, row.before, row.after) == ("route dp", "ring", "tree")
    assert found.facts == ()
    assert {figure.subject for group in found.groups for figure in group.figures} <= {
        "sent in nodes",
        "communication",
    }


def test_groups_that_only_one_has(explain: Explain) -> None:
    """A pipeline makes groups that were not there."""
    text = "MESH pp 2, dp 2\nSPLIT batch OVER dp\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 4"
    found = compared(explain, BASE, text)
    assert [(group.before.partition(",")[0], group.after.partition(",")[0]) for group in found.groups] == [
        ("A: all ranks", "A: pp 0"),
        ("", "B: pp 1"),
    ]
    assert [change.subject for change in found.facts] == ["mesh", "microbatch", "pipeline"]
