import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.runtime.data.errors import DataError
from trimtab.runtime.data.split import split_documents

NAMES = [f"folder/{number}.txt" for number in range(2000)]


def held_out(names, fraction=0.05, seed=0):
    split = split_documents(names, fraction=fraction, seed=seed)
    return {name for name in names if split.is_held_out(name)}


def test_fraction_is_about_what_was_asked():
    """2000 documents at 5 %: 100 expected, standard deviation 9.7; four of them allowed."""
    assert 60 < len(held_out(NAMES)) < 140


def test_order_and_size_do_not_matter():
    """A document that was held out must not be trained on because others were added."""
    assert held_out(NAMES[::-1]) == held_out(NAMES)
    assert held_out(NAMES[:1000]) == held_out(NAMES) & set(NAMES[:1000])


def test_seed_matters():
    """Other seeds hold out other documents."""
    assert held_out(NAMES, seed=1) != held_out(NAMES, seed=2)


@given(st.sets(st.text(), min_size=2, max_size=20), st.floats(1e-6, 0.999), st.integers())
def test_both_sides_get_a_document(names, fraction, seed):
    """Among few documents chance leaves a side empty; the run would evaluate, or train, on nothing."""
    assert 0 < len(held_out(sorted(names), fraction, seed)) < len(names)


def test_names_are_read_only_as_far_as_needed():
    """Reading every document twice would double the time to start."""
    read = []
    split_documents((read.append(name) or name for name in NAMES), fraction=0.5, seed=0)
    assert len(read) < 50


def test_nothing_is_held_out_if_asked():
    """held_out: 0 is a choice."""
    assert held_out(NAMES, fraction=0.0) == set()
    assert held_out(["one"], fraction=0.0) == set()


@pytest.mark.parametrize(
    ("names", "fraction", "message"),
    [
        (["one"], 0.05, r"gives 1 document\(s\) and both sides need one.*or write held_out: 0"),
        ([], 0.05, r"gives 0 document\(s\)"),
        (NAMES, 1.0, "1.0 is not a fraction"),
        (NAMES, -0.1, "-0.1 is not a fraction"),
    ],
)
def test_what_cannot_be_split(names, fraction, message):
    """The message says what to do."""
    with pytest.raises(DataError, match=message):
        split_documents(names, fraction=fraction, seed=0)
