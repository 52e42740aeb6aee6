import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.ledger.series import Metric, all_points, default_series


def commit(book, steps, *, loss):
    """The lead commits some steps, one a ns."""
    for step in steps:
        book.now += 1
        book.tell(0, "commit", step=step, loss=loss + step / 1000, lr=1e-3)


@pytest.fixture
def resumed(book):
    """A crash at 112; the second attempt goes on from the checkpoint at 100."""
    book.begin([0])
    commit(book, range(1, 113), loss=1.0)
    book.exit(0, code=1)
    book.begin([0])
    book.say("rollback", to_step=100)
    commit(book, range(101, 131), loss=2.0)
    return book


def test_a_resumed_attempt_supersedes_the_steps_that_it_repeats(resumed):
    """A curve that goes back, or has two values for a step, cannot be read."""
    series = default_series(resumed.records(), Metric.LOSS)
    assert [point.step for point in series] == list(range(1, 131))
    assert [point.attempt for point in series] == [1] * 100 + [2] * 30
    assert series[100].value == 2.101


def test_superseded_values_are_kept_with_their_attempt(resumed):
    """Who wants to know what the crashed attempt saw can look."""
    points = all_points(resumed.records(), Metric.LOSS)
    assert [point.step for point in points if point.attempt == 1] == list(range(1, 113))
    assert len(points) == 142


def test_steps_that_the_new_attempt_has_not_reached_are_superseded_too(book):
    """What was rolled back is gone, even before it is done again."""
    book.begin([0])
    commit(book, range(1, 113), loss=1.0)
    book.begin([0])
    commit(book, range(101, 104), loss=2.0)
    assert [point.step for point in default_series(book.records(), Metric.LR)][-1] == 103


def test_attempts_that_do_nothing_change_nothing(resumed):
    """Opening and closing a run five times must not shift its steps."""
    before = default_series(resumed.records(), Metric.LOSS)
    for _ in range(5):
        resumed.begin([0])
        resumed.say("rollback", to_step=130)
        resumed.end([0])
    assert default_series(resumed.records(), Metric.LOSS) == before


def test_evaluations_of_superseded_steps_are_superseded(book):
    """An evaluation of weights that were thrown away must not stay in the curve."""
    book.begin([0])
    for step in range(1, 8):
        commit(book, [step], loss=1.0)
        if step % 3 == 0:
            book.tell(0, "evaluation", step=step, loss=float(step), targets=9)
    book.begin([0])
    commit(book, [5, 6], loss=2.0)
    assert [(point.step, point.value) for point in default_series(book.records(), Metric.EVAL_LOSS)] == [
        (3, 3.0)
    ]


def test_a_new_lead_that_repeats_a_commit_leaves_one_value(book):
    """The lead may die after it has committed; its successor says the step again."""
    book.begin([0, 1])
    commit(book, [1, 2], loss=1.0)
    book.now += 1
    book.tell(1, "commit", step=2, loss=9.0)
    assert [point.value for point in default_series(book.records(), Metric.LOSS)] == [1.001, 9.0]


def test_a_commit_that_is_told_again_late_changes_nothing(book):
    """Nor the evaluation behind it; where nobody had told it, it counts."""
    book.begin([0, 1])
    commit(book, [1, 2], loss=1.0)
    book.tell(0, "evaluation", step=2, loss=0.5, targets=9)
    book.now += 1
    book.tell(1, "commit", step=2, loss=1.002, is_late=True)
    book.tell(1, "commit", step=3, loss=1.003, is_late=True)
    records = book.records()
    assert [(point.step, point.value) for point in all_points(records, Metric.LOSS)] == [
        (1, 1.001),
        (2, 1.002),
        (3, 1.003),
    ]
    assert [point.step for point in default_series(records, Metric.LOSS)] == [1, 2, 3]
    assert [point.value for point in default_series(records, Metric.EVAL_LOSS)] == [0.5]


def test_a_gap_says_what_stood_there(book):
    """A NaN is drawn as a gap with a flag, not as zero and not as an error."""
    book.begin([0])
    commit(book, [1], loss=float("nan"))
    (point,) = default_series(book.records(), Metric.LOSS)
    assert (point.value, point.nonfinite) == (None, "nan")


@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=4))
def test_steps_always_increase(new_book, attempts):
    """Whatever was rolled back and repeated, the default view is a function of the step."""
    book = new_book()
    for steps in attempts:
        book.begin([0])
        commit(book, steps, loss=0.0)
    steps = [point.step for point in default_series(book.records(), Metric.LOSS)]
    assert steps == sorted(set(steps))
    committed = [step for steps in attempts for step in steps]
    assert steps[-1:] == committed[-1:]
