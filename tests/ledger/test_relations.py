"""The relations of a run, against the report that the same records give."""

from collections import Counter
from math import fsum
from pathlib import Path

import pytest

from trimtab.ledger.accounts import account
from trimtab.ledger.checkpoint_folders import FoundCheckpoint
from trimtab.ledger.events import RunRecords
from trimtab.ledger.manifests import CheckpointError
from trimtab.ledger.recoveries import recoveries_of
from trimtab.ledger.relations import RUN_SCHEMAS, run_relations
from trimtab.ledger.series import Metric, default_series
from trimtab.terms import Clock, ColumnType

GOLDEN = Path(__file__).parents[1] / "golden" / "ledger"
MS = 10**6


def table(records, name, checkpoints=()):
    relation = next(found for found in run_relations(records, checkpoints) if found.name == name)
    names = [column.name for column in relation.columns]
    return [dict(zip(names, row, strict=True)) for row in relation.rows()]


_PYTHON = {
    ColumnType.TEXT: str,
    ColumnType.INTEGER: int,
    ColumnType.BIG_INTEGER: int,
    ColumnType.REAL: float,
    ColumnType.BOOLEAN: bool,
}


def test_every_cell_has_the_type_of_its_column(eventful):
    """A text among numbers would end a question in the middle."""
    for relation in run_relations(eventful.records(), ()):
        for row in relation.rows():
            for column, cell in zip(relation.columns, row, strict=True):
                assert cell is None or type(cell) is _PYTHON[column.type], (relation.name, column.name, cell)


def test_the_columns_of_every_relation(matches_golden):
    """Saved queries name them."""
    lines = []
    for schema in RUN_SCHEMAS:
        lines.append(f"{schema.name}: {schema.meaning}")
        lines += [f"  {column.name} ({column.type}): {column.meaning}" for column in schema.columns]
    matches_golden("relations.txt", "\n".join(lines) + "\n")


def test_the_ledger_adds_up_to_the_account(eventful):
    """Two sums that differ by a nanosecond are two ledgers."""
    records = eventful.records()
    rows, expected = table(records, "ledger"), account(records)
    assert sum(row["ns"] for row in rows) == expected.allocated_ns
    lines, layers = Counter(), Counter()
    for row in rows:
        lines[row["line"]] += row["ns"]
        layers[row["layer"]] += row["ns"]
    assert lines == {entry.value: ns for entry, ns in expected.entries().items() if ns}
    assert layers == {layer.value: ns for layer, ns in expected.layers().items() if ns}
    assert fsum(row["usd"] for row in rows) == pytest.approx(expected.cost_usd)
    assert {(row["device"], row["rank"]) for row in rows} == {("d0", 0), ("d1", 1), ("d2", 2)}


def test_a_device_without_a_price_has_no_dollars(book):
    """Zero dollars would be a claim."""
    book.begin([0])
    book.now += 100
    book.end([0])
    assert {row["usd"] for row in table(book.records(), "ledger")} == {None}


def test_each_step_stands_once_and_as_it_counts_now(eventful):
    """A curve with two values for a step cannot be read."""
    records = eventful.records()
    rows = table(records, "steps")
    points = default_series(records, Metric.LOSS)
    assert [(row["step"], row["attempt"], row["loss"]) for row in rows] == [
        (point.step, point.attempt, point.value) for point in points
    ]
    assert {row["attempt"] for row in rows} == {1, 2}


def test_a_step_lasts_from_the_first_start_to_the_last_end(book):
    """The slowest rank is what everybody waited for; a try that was given up is not the step."""
    book.begin([0, 1])
    book.now += 5 * MS
    book.step(0, 1, kind="aborted")
    book.step(1, 1, kind="aborted")
    book.now += 10 * MS
    book.step(0, 1, epoch=1, start_ns=book.now - 10 * MS)
    book.now += 3 * MS
    book.step(1, 1, epoch=1, start_ns=book.now - 12 * MS)
    book.tell(0, "commit", step=1, loss=2.0, lr=1e-3)
    book.now += 40 * MS
    book.step(1, 1, kind="aborted", epoch=1)
    (row,) = table(book.records(), "steps")
    assert row["duration_s"] == pytest.approx(0.013)
    laps = table(book.records(), "laps")
    assert [(row["rank"], row["aborted"], row["epoch"]) for row in laps] == [
        (0, True, 0),
        (0, False, 1),
        (1, True, 0),
        (1, False, 1),
        (1, True, 1),
    ]
    assert [row["compute_ns"] for row in laps] == [5 * MS, 10 * MS, 5 * MS, 13 * MS, 40 * MS]


def test_a_loss_that_is_not_finite_is_null_and_named(book):
    """NaN in a column of numbers would poison every mean."""
    book.begin([0])
    book.tell(0, "commit", step=1, loss=float("nan"), lr=1e-3, grad_norm=float("inf"))
    (row,) = table(book.records(), "steps")
    assert (row["loss"], row["grad_norm"]) == (None, None)
    assert row["nonfinite"] == "loss nan, grad_norm inf"


def test_an_evaluation_belongs_to_its_step(book):
    """The held-out loss beside the loss is the first thing that anybody plots."""
    book.begin([0])
    for step in (1, 2):
        book.now += 1
        book.tell(0, "commit", step=step, loss=2.0, lr=1e-3)
    book.tell(0, "evaluation", step=2, loss=1.5, targets=10)
    assert [row["eval_loss"] for row in table(book.records(), "steps")] == [None, 1.5]


def test_events_of_all_journals_in_order_of_time(eventful):
    """Who looks for the cause reads what came before."""
    records = eventful.records()
    rows = table(records, "events")
    journals = [*records.agents, *records.ranks.values()]
    assert len(rows) == sum(len(journal) for journal in journals)
    assert [(row["attempt"], row["t_ns"]) for row in rows] == sorted(
        (row["attempt"], row["t_ns"]) for row in rows
    )
    assert min(row["t_s"] for row in rows) == 0
    fault = next(row for row in rows if row["kind"] == "fault")
    assert (fault["source"], fault["rank"], fault["step"]) == ("agent", 2, 4)
    assert '"cause": "killed"' in fault["fields"]


def test_attempts_with_what_became_of_them(eventful):
    """Which attempt failed, how far it came."""
    rows = table(eventful.records(), "attempts")
    assert [row["attempt"] for row in rows] == [1, 2]
    assert (rows[0]["state"], rows[0]["error"]) == ("failed", "rank 0: out of memory")
    assert (rows[0]["first_step"], rows[0]["last_step"], rows[0]["commits"]) == (1, 5, 5)
    assert rows[0]["processes"] == 3
    assert rows[0]["duration_s"] > 0


def test_an_attempt_that_goes_on_has_no_state(book):
    """A question beside a running run must not call it done."""
    book.begin([0])
    (row,) = table(book.records(), "attempts")
    assert (row["state"], row["error"], row["first_step"]) == (None, None, None)


def test_recoveries_are_those_of_the_report(eventful):
    """One count of failures."""
    records = eventful.records()
    rows = table(records, "recoveries")
    assert [(row["step"], row["rank"], row["cause"], row["steps_lost"]) for row in rows] == [
        (found.step, found.rank, found.cause, found.steps_lost) for found in recoveries_of(records)
    ]


def test_checkpoints_with_the_reason_of_those_that_are_not_whole(book):
    """A folder that is torn is not what to go back to."""
    torn = FoundCheckpoint(step=4, name="step-4", error=CheckpointError("step-4 has no manifest"))
    rows = table(book.records(), "checkpoints", [torn])
    assert rows == [
        {"step": 4, "name": "step-4", "bytes": None, "complete": False, "error": "step-4 has no manifest"}
    ]


def test_a_run_without_an_agents_journal_is_one_attempt(book):
    """Another launcher starts ranks without an agent; what they wrote can be asked all the same."""
    book.begin([0])
    book.switch(0, Clock.COMPUTE)
    book.now += 7
    book.step(0, 1)
    book.tell(0, "commit", step=1, loss=2.0, lr=1e-3)
    told = book.records()
    alone = RunRecords(agents=[], ranks=told.ranks, clocks=told.clocks)
    (step,) = table(alone, "steps")
    (lap,) = table(alone, "laps")
    assert (step["attempt"], lap["attempt"]) == (1, 1)
    assert step["duration_s"] == pytest.approx(7e-9)
    assert table(alone, "attempts") == []
    assert {row["attempt"] for row in table(alone, "events")} == {1}
