"""What checkpoints cost beside devices, from journals written by hand and a wall clock that the test sets."""

import doctest
import json
from dataclasses import replace

import pytest

from trimtab.ledger import storage as module
from trimtab.ledger.accounts import account
from trimtab.ledger.errors import JournalError
from trimtab.ledger.relations import run_relations
from trimtab.ledger.rendering import render_report
from trimtab.ledger.report import run_report
from trimtab.ledger.storage import HOURS_PER_MONTH, storage_of

GB = 10**9
HOUR = 3600 * 10**9
MONTH = HOURS_PER_MONTH * HOUR
START = 1_793_448_000 * 10**9
"""The wall clock when the run begins, ns."""


def saved(book, step, *, after=0, size_bytes=GB):
    book.tell(0, "checkpoint", step=step, state="saved", seconds=0.1, bytes=size_bytes, unix_ns=START + after)


def pruned(book, step, *, after):
    book.tell(0, "pruned", step=step, unix_ns=START + after)


def storage(book, *, after, price=0.02, present=None):
    return storage_of(book.records(), now_unix_ns=START + after, usd_per_gb_month=price, present=present)


@pytest.fixture
def stopped(new_book):
    """A run of ten minutes at six dollars an hour, with one checkpoint of a GB; it is stopped."""
    book = new_book(price_usd_per_hour=6.0)
    book.begin([0])
    book.now = 10 * 60 * 10**9
    saved(book, 10)
    book.end([0], state="stopped")
    return book


def test_storage_grows_while_the_run_is_stopped_and_devices_do_not(stopped):
    """Both are seen in one bill: what was given back stops costing, what is kept goes on."""
    device_usd = account(stopped.records()).cost_usd
    for months, expected in ((1, 0.02), (2, 0.04), (12, 0.24)):
        assert storage(stopped, after=months * MONTH).cost_usd == pytest.approx(expected, rel=1e-12)
        assert account(stopped.records()).cost_usd == device_usd == pytest.approx(1.0)


def test_what_was_removed_stops_costing(stopped):
    """Its closed interval counts, and no more."""
    pruned(stopped, 10, after=3 * MONTH)
    found = [storage(stopped, after=months * MONTH) for months in (3, 9)]
    assert [one.cost_usd for one in found] == [pytest.approx(0.06)] * 2
    assert [(one.kept_bytes, len(one.kept)) for one in found] == [(0, 0)] * 2


def test_bytes_times_time_are_exact(book):
    """Sizes that no float holds must not lose their last byte."""
    book.begin([0])
    saved(book, 1, size_bytes=2**60 + 1)
    saved(book, 2, size_bytes=3, after=5)
    found = storage(book, after=7)
    assert sum(map(found.byte_ns, found.checkpoints)) == 7 * (2**60 + 1) + 2 * 3


def test_storage_is_no_device_time(stopped):
    """The classes add up to the allocated time, whatever is kept beside."""
    report = run_report(stopped.records(), directory="r", storage=storage(stopped, after=MONTH))
    document = report.document()
    assert sum(document["ledger"]["classes"].values()) == document["ledger"]["allocated_ns"]
    assert document["cost_usd"] == pytest.approx(1.0)
    assert document["storage"] == {
        "as_of": "2026-11-30T22:00:00Z",
        "checkpoints": 1,
        "bytes": GB,
        "gb_months": 1.0,
        "usd_per_gb_month": 0.02,
        "cost_usd": 0.02,
        "untimed": 0,
    }
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (0.02, "$0.0200 at $0.02 for a GB and month"),
        (0.0, "$0.00 at $0 for a GB and month"),
        (None, "no price known, see orchestration.storage_usd_per_gb_month"),
    ],
)
def test_the_line_is_there_at_any_price(stopped, price, said):
    """A disk that is said to be free, and one that nobody has priced, are two things; neither is left out."""
    found = storage(stopped, after=MONTH, price=price)
    text = render_report(run_report(stopped.records(), directory="r", storage=found), width=200)
    assert f"storage: 1 checkpoint of 1 GB kept, 1 GB months by 2026-11-30T22:00:00Z, {said}" in text
    assert ("devices and storage together: $1.0" in text) is (price is not None)
    assert found.cost_usd == price


def test_a_checkpoint_that_is_saved_again_is_one(book):
    """After a crash the same step is saved a second time, over the first."""
    book.begin([0])
    saved(book, 10)
    saved(book, 10, after=HOUR)
    found = storage(book, after=3 * HOUR)
    assert [one.gone_unix_ns for one in found.checkpoints] == [START + HOUR, None]
    assert found.kept_bytes == GB


def test_what_a_rollback_set_aside_is_kept_beside_its_successor(book):
    """Nothing was deleted, so both are paid for."""
    book.begin([0])
    saved(book, 10)
    saved(book, 10, after=HOUR)
    found = storage(book, after=3 * HOUR, present={10: 2})
    assert (len(found.kept), sum(map(found.byte_ns, found.checkpoints))) == (2, 5 * HOUR * GB)


def test_what_a_user_has_removed_by_hand_does_not_cost_on(book):
    """Nobody wrote down when: it counts until the last word about any checkpoint."""
    book.begin([0])
    saved(book, 10)
    saved(book, 20, after=2 * HOUR)
    found = storage(book, after=500 * HOUR, present={})
    assert [one.gone_unix_ns for one in found.checkpoints] == [START + 2 * HOUR] * 2
    assert storage(book, after=9000 * HOUR, present={}).gb_months == found.gb_months


def test_attempts_on_two_boots_are_one_story(new_book):
    """Monotonic clocks begin anew; the wall clock goes on."""
    book = new_book()
    book.begin([0], boot="a")
    book.now = 100
    saved(book, 10)
    book.end([0])
    book.now = 0
    book.begin([0], boot="b")
    book.now = 50
    pruned(book, 10, after=HOUR)
    saved(book, 20, after=HOUR)
    book.end([0])
    found = storage(book, after=2 * HOUR)
    assert [(one.step, one.gone_unix_ns) for one in found.checkpoints] == [(10, START + HOUR), (20, None)]


def test_a_wall_clock_that_was_set_back_creates_no_negative_time(stopped):
    """A bill below zero would pay for something else."""
    assert storage(stopped, after=-HOUR).cost_usd == 0.0


def test_saves_without_a_moment_are_counted_as_such(stopped):
    """Journals of an earlier release lack it: the line says that something is missing."""
    stopped.tell(0, "checkpoint", step=20, state="saved", bytes=GB)
    stopped.tell(0, "checkpoint", step=30, state="failed", reason="disk full")
    found = storage(stopped, after=MONTH)
    assert (found.num_untimed, len(found.checkpoints)) == (1, 1)
    report = run_report(stopped.records(), directory="r", storage=found)
    assert "1 checkpoint of an earlier release not counted" in render_report(report, width=200)
    lines = render_report(report, width=40).splitlines()
    assert max(map(len, lines)) <= 40


def test_a_run_that_saved_nothing_has_no_line(book):
    """A line of zeros would be noise."""
    book.begin([0])
    found = storage(book, after=MONTH)
    assert "storage" not in render_report(run_report(book.records(), directory="r", storage=found))
    assert replace(found, usd_per_gb_month=None).cost_usd is None


def test_rows_add_up_to_the_line(stopped):
    """Whoever asks in SQL must come to the same bill."""
    saved(stopped, 20, after=HOUR)
    pruned(stopped, 10, after=2 * HOUR)
    found = storage(stopped, after=MONTH)
    (relation,) = (one for one in run_relations(stopped.records(), (), found) if one.name == "storage")
    rows = [
        dict(zip([column.name for column in relation.columns], row, strict=True)) for row in relation.rows()
    ]
    assert [(row["step"], row["bytes"], row["gone"]) for row in rows] == [
        (10, GB, "2026-10-31T14:00:00Z"),
        (20, GB, None),
    ]
    assert sum(row["usd"] for row in rows) == pytest.approx(found.cost_usd)
    assert sum(row["gb_months"] for row in rows) == pytest.approx(found.gb_months)


def test_a_save_without_its_size_is_named(book):
    """A journal that nobody can read must not become a bill of zero."""
    book.begin([0])
    book.tell(0, "checkpoint", step=1, state="saved", unix_ns=START)
    with pytest.raises(JournalError, match="bytes is None"):
        storage(book, after=1)


def test_the_examples_hold():
    """An example that is wrong teaches the wrong thing."""
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
