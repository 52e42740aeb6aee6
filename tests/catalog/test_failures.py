import math

import pytest

from trimtab.catalog import FailuresError, UnknownNameError
from trimtab.catalog.failures import failure_mixture, failure_mixture_names, mixture_of

STATED = {"source": "a logbook", "covers": "crashes", "per_1000_node_days": 4.0}


@pytest.mark.parametrize("name", failure_mixture_names())
def test_every_mixture_of_the_catalog_is_one(name):
    """And states its source."""
    found = failure_mixture(name)
    assert found.source
    assert 2 < found.per_1000_node_days < 25


def test_llama3_is_interrupted_as_often_as_published():
    """One unexpected interruption in 3.09 hours on 2,048 nodes: 419 in 54 days."""
    assert failure_mixture("llama3").mean_gap_s(2_048) / 3_600 == pytest.approx(3.09, abs=0.005)


def test_1024_devices_fail_as_often_as_measured():
    """A mean time between failures of 7.9 hours on 128 nodes."""
    assert failure_mixture("all-causes").mean_gap_s(128) / 3_600 == pytest.approx(7.9, abs=0.02)


def test_a_name_that_there_is_not_is_answered_with_those_that_there_are():
    """And with the nearest."""
    with pytest.raises(
        UnknownNameError, match=r"(?s)unknown failures 'lama3'.*all-causes.*Did you mean 'llama3'"
    ):
        failure_mixture("lama3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hang": 0.1}, "unknown key 'hang'.*Did you mean 'hangs'"),
        ({"hangs": "many"}, "hangs is 'many'; it takes a number"),
        ({"hangs": True}, "hangs is True; it takes a number"),
        ({"source": 3}, "source is 3; it takes text"),
        ({"hangs": 1.5}, "hangs is 1.5; it takes a part, from 0 to 1"),
        ({"hangs": 0.6, "corruption": 0.5}, "come to 1.11; they may come to 1"),
        ({"per_1000_node_days": -1.0}, "per_1000_node_days is -1; it takes 0 to 100000"),
        ({"per_1000_node_days": math.inf}, "per_1000_node_days is inf; it takes 0 to 100000"),
        ({"per_1000_node_days": math.nan}, "per_1000_node_days is nan; it takes 0 to 100000"),
        ({"shape": 0.0}, "shape is 0; it takes 0.1 to 10"),
        ({"shape": math.inf}, "shape is inf; it takes 0.1 to 10"),
        ({"burst_nodes": 1}, "burst_nodes is 1; it takes 2 or more"),
    ],
)
def test_what_is_no_mixture_is_refused_with_the_reason(changes, message):
    """A mixture that somebody wrote by hand is checked as the catalog's are."""
    with pytest.raises(FailuresError, match=message):
        mixture_of("mine", {**STATED, **changes})


@pytest.mark.parametrize("key", STATED)
def test_what_must_be_stated_is_asked_for(key):
    """A rate without its source cannot be judged."""
    table = {known: value for known, value in STATED.items() if known != key}
    with pytest.raises(FailuresError, match=f"mine: {key} is missing"):
        mixture_of("mine", table)


def test_what_is_not_stated_is_the_catalogs_judgement():
    """A user who knows one rate writes three lines."""
    found = mixture_of("mine", STATED)
    assert (found.shape, found.lemon_part, found.storage) == (0.7, 0.5, 0.01)
