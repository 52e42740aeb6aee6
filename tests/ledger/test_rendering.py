from dataclasses import replace

import pytest

from trimtab.ledger.accounts import ENTRIES
from trimtab.ledger.advice import ADVICE, biggest_leak
from trimtab.ledger.rendering import MIN_WIDTH, render_report
from trimtab.ledger.report import run_report
from trimtab.terms import LedgerClass


@pytest.fixture
def report(eventful):
    return run_report(eventful.records(), directory="runs/quickstart-7")


@pytest.mark.parametrize("width", [80, 40])
def test_a_report_is_readable(report, width, matches_golden):
    """What a user reads at the end of every run."""
    matches_golden(f"eventful-{width}.txt", render_report(report, width=width))


@pytest.mark.parametrize("width", [1, MIN_WIDTH, 52, 60, 100])
def test_no_line_is_wider_than_the_terminal(report, width):
    """Wrapped tables are unreadable."""
    report = replace(report, error="x" * 300 + "\nsecond line")
    lines = render_report(report, width=width).splitlines()
    assert max(map(len, lines)) <= max(width, MIN_WIDTH)


def test_an_empty_run_renders(book):
    """Nothing was held: no leak, no division by zero."""
    text = render_report(run_report(book.records(), directory="r"))
    assert "biggest leak" not in text
    assert "all device time" in text


def test_an_error_cannot_steer_the_terminal(report):
    """Error texts come from anywhere; escape sequences stay out."""
    text = render_report(replace(report, error="bad\x1b[2Jthing\r"))
    assert text.replace("\n", "").isprintable()


def test_every_leak_has_advice():
    """A leak without a remedy is a complaint."""
    assert set(ADVICE) == set(ENTRIES) - {LedgerClass.USEFUL}


def test_the_biggest_leak_is_by_dollars_where_prices_are_known(new_book):
    """An hour of a cheap card may leak less than a minute of a dear one."""

    def leak(prices):
        book = new_book(price_usd_per_hour=prices)
        book.attempt(["d0", "d1"])
        book.say("allocated", device="d0")
        book.now = 100
        book.say("allocated", device="d1")
        book.spawn(1)
        book.now = 150
        book.exit(1)
        book.say("released", device="d0")
        book.say("released", device="d1")
        return biggest_leak(run_report(book.records(), directory="r").account)

    assert leak(None) is LedgerClass.QUEUE_IDLE
    assert leak({"d0": 1.0, "d1": 9.0}) is LedgerClass.RESTART


def test_without_prices_there_is_no_column_of_dollars(book):
    """A column of dashes says nothing."""
    book.begin([0])
    book.now = 100
    book.end([0])
    text = render_report(run_report(book.records(), directory="r"))
    assert "dollars" not in text
    assert "$" not in text
