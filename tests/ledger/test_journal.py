import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.ledger.errors import JournalError
from trimtab.ledger.journal import Event, encode_event, read_events, read_journal

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)


def _refuse(name):
    raise AssertionError(f"{name} is not strict JSON")


def test_an_event_comes_back_as_it_was_written():
    """A report built from the journal must see what the rank saw."""
    line = encode_event("step", 12, step=3, clocks={"comm": 5}, comm=[["grads", 5]])
    assert line.endswith(b"\n")
    assert read_events(line) == [
        Event(kind="step", t_ns=12, fields={"step": 3, "clocks": {"comm": 5}, "comm": [["grads", 5]]})
    ]


@pytest.mark.parametrize(
    ("number", "name"),
    [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf"), (-1.8e309, "-inf")],
)
def test_numbers_that_json_lacks_become_flagged_gaps(number, name):
    """A loss of NaN must not make every later reader of the journal fail."""
    line = encode_event("commit", 1, loss=number, lr=1e308)
    json.loads(line, parse_constant=_refuse)
    (event,) = read_events(line)
    assert event.number("loss") is None
    assert event.number("lr") == 1e308
    assert event.nonfinite == {"loss": name}


def test_nested_gaps_are_flagged_by_their_path():
    """Who sees a null in a list must be able to tell which number it was."""
    (event,) = read_events(encode_event("x", 1, a={"b": [1.0, float("nan")]}))
    assert event.fields["a"] == {"b": [1.0, None]}
    assert event.nonfinite == {"a.b.1": "nan"}


@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda name: name not in ("event", "t_ns", "nonfinite")), json_values
    )
)
def test_every_line_is_one_line_of_strict_json(fields):
    """Whatever a user's metric or error text holds, the journal stays readable line by line."""
    line = encode_event("x", 1, **fields)
    assert line.count(b"\n") == 1
    json.loads(line, parse_constant=_refuse)


@given(st.integers(min_value=0))
def test_a_kill_while_writing_costs_at_most_the_last_line(cut):
    """After `kill -9` the report must come up with everything that was written before."""
    lines = [encode_event("step", t, step=t, name="äß\n") for t in range(4)]
    data = b"".join(lines)
    data = data[: cut % (len(data) + 1)]
    journal = read_journal(data)
    whole = sum(len(b"".join(lines[: n + 1])) - 1 <= len(data) for n in range(4))
    assert [event.t_ns for event in journal.events] == list(range(whole))
    assert journal.num_problems == 0


def test_a_torn_line_in_the_middle_is_counted_and_the_line_behind_it_is_saved():
    """A disk that was full for a moment must not swallow the event written after it."""
    data = encode_event("a", 1) + encode_event("step", 2, step=7)[:20] + encode_event("b", 3) + b"junk\n\n"
    journal = read_journal(data)
    assert [event.kind for event in journal.events] == ["a", "b"]
    assert journal.num_problems == 2
    assert not journal.is_torn


def test_a_journal_in_writing_is_torn_but_has_no_problems():
    """`top` reads journals that are being written: a half line is normal there."""
    journal = read_journal([encode_event("a", 1), b'{"event":"b","t'])
    assert (len(journal.events), journal.num_problems, journal.is_torn) == (1, 0, True)


@pytest.mark.parametrize(
    "line", [b"7\n", b"[]\n", b'{"event":1,"t_ns":2}\n', b'{"event":"a","t_ns":NaN}\n', b"\xff\n"]
)
def test_lines_that_are_no_events_are_problems(line):
    """Foreign lines must be counted, not crash the report."""
    assert read_journal(line).num_problems == 1


def test_an_event_without_a_field_that_it_needs_is_named():
    """A journal of a broken writer must be diagnosable from the message."""
    with pytest.raises(JournalError, match="'fault' at t_ns 5: rank is None"):
        Event(kind="fault", t_ns=5).integer("rank")
