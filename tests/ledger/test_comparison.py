import json
from dataclasses import replace

import pytest

from trimtab.ledger.comparison import UNSET, Outcome, compare
from trimtab.ledger.rendering import MIN_WIDTH, render_comparison
from trimtab.ledger.report import run_report
from trimtab.terms import Clock

BEFORE = {
    "run": "quickstart",
    "train": {"steps": 6, "batch": 32, "clip": 1.0, "optimizer": {"adamw": {"betas": [0.9, 0.95]}}},
    "parallelism": "MESH dp 3\nSPLIT batch OVER dp\n",
    "orchestration": {"environment": {}},
}
AFTER = {
    "run": "quickstart",
    "train": {"steps": 6, "batch": 32, "clip": 1.0, "optimizer": {"sgd": {"lr": 0.1}}},
    "parallelism": "MESH dp 1\nSPLIT batch OVER dp\n",
    "orchestration": {"environment": {}},
}


@pytest.fixture
def comparison(eventful, book):
    book.begin([0])
    for step in range(1, 7):
        book.spend([0], Clock.COMPUTE, 90 * 10**6)
        book.step(0, step)
        book.tell(0, "commit", step=step, loss=1.0 + 1 / step, tokens=512)
    book.end([0])
    first = run_report(eventful.records(), directory="runs/quickstart-7")
    second = run_report(book.records(), directory="runs/quickstart-8")
    return compare(first, second, first_settings=BEFORE, second_settings=AFTER)


def test_only_settings_that_differ_are_listed(comparison):
    """The answer to "what did I change?" must not be hidden among what I did not."""
    assert [(setting.key, setting.first, setting.second) for setting in comparison.settings] == [
        ("parallelism", BEFORE["parallelism"], AFTER["parallelism"]),
        ("train.optimizer.adamw.betas", [0.9, 0.95], UNSET),
        ("train.optimizer.sgd.lr", UNSET, 0.1),
    ]


def test_true_and_one_differ(comparison, eventful):
    """Python's 1 == True must not hide a changed answer."""
    report = run_report(eventful.records(), directory="r")
    pair = compare(report, report, first_settings={"a": 1, "b": 1}, second_settings={"a": True, "b": 1})
    assert [setting.key for setting in pair.settings] == ["a"]


def test_a_run_compared_with_itself_shows_no_change(eventful):
    """No difference where there is none."""
    report = run_report(eventful.records(), directory="r")
    same = compare(report, report, first_settings=BEFORE, second_settings=BEFORE)
    assert not same.settings
    assert {outcome.change for outcome in same.outcomes if outcome.first} == {0.0}
    assert all(outcome.first == outcome.second for outcome in same.outcomes)
    assert "no setting differs" in render_comparison(same)


@pytest.mark.parametrize("pair", [(None, 1.0), (1.0, None), (0, 5)])
def test_a_change_from_nothing_has_no_size(pair):
    """No division by zero, no percentage out of thin air."""
    assert Outcome(name="loss", first=pair[0], second=pair[1]).change is None


def test_the_document_is_strict_json(comparison, matches_golden):
    """What `compare --json` prints."""
    matches_golden("comparison.json", json.dumps(comparison.document(), indent=2, allow_nan=False) + "\n")


@pytest.mark.parametrize("width", [80, 40])
def test_a_comparison_is_readable(comparison, width, matches_golden):
    """What a user reads after trying something."""
    matches_golden(f"comparison-{width}.txt", render_comparison(comparison, width=width))


def test_no_line_is_wider_than_the_terminal(comparison):
    """Also where names are long."""
    wide = replace(comparison, first="runs/" + "long" * 40)
    assert max(map(len, render_comparison(wide, width=0).splitlines())) <= MIN_WIDTH


def test_figures_too_wide_for_the_terminal_get_lines_of_their_own(comparison):
    """Months of device time on a phone."""
    ledger = [replace(pair, first_ns=10**18, second_ns=2 * 10**18) for pair in comparison.ledger]
    lines = render_comparison(replace(comparison, ledger=ledger), width=40).splitlines()
    position = lines.index("checkpoint_stall")
    assert lines[position + 1 : position + 3] == ["    first 277777 h 46 min", "    second 555555 h 33 min"]
    assert max(map(len, lines)) <= 40
