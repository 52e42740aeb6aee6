"""The largest that fits, and that the next larger one does not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from trimtab.cost.closed_form import Values
from trimtab.cost.search import Growing, Limits, Question, Verdict, find, largest

QuestionMaker = Callable[..., Question]
Constants = tuple[Values, Values]


@pytest.mark.parametrize("what", [Growing.SEQUENCE, Growing.LAYERS])
def test_what_is_said_fits_and_the_next_one_does_not(
    question: QuestionMaker, values: Constants, what: Growing
) -> None:
    asked = question(batch=16)
    found = largest(asked, Limits(), time=values[0], memory=values[1], what=what)
    assert found.candidate is not None
    assert found.candidate.verdict is Verdict.FEASIBLE
    assert found.candidate.memory_bytes <= asked.fabric.memory_bytes * (1 - Limits().headroom)
    own = asked.sequence if what is Growing.SEQUENCE else asked.network.layers
    assert found.value > own
    assert found.value < found.next_value <= found.value + max(found.value // 8, 1) + own
    if what is Growing.LAYERS:
        larger = replace(asked, network=replace(asked.network, layers=found.next_value))
    else:
        larger = replace(
            asked, sequence=found.next_value, network=replace(asked.network, context=found.next_value)
        )
    assert not find(larger, Limits(), time=values[0], memory=values[1], keep=1).best
    assert found.next_lacks_bytes > 0


def test_the_largest_microbatch_is_the_largest_of_all_that_fit(
    question: QuestionMaker, values: Constants
) -> None:
    asked = question(batch=8)
    found = largest(asked, Limits(), time=values[0], memory=values[1], what=Growing.MICROBATCH)
    every = find(asked, Limits(), time=values[0], memory=values[1], keep=10**6).best
    assert found.value == max(candidate.layout.microbatch for candidate in every)
    assert found.candidate is not None
    assert found.candidate.layout.microbatch == found.value


def test_where_nothing_fits_the_answer_is_nothing(question: QuestionMaker, values: Constants) -> None:
    asked = question(network="llama3-405b", batch=8)
    for what in Growing:
        found = largest(asked, Limits(), time=values[0], memory=values[1], what=what)
        assert (found.value, found.candidate) == (0, None)
        assert found.next_lacks_bytes > 0


def test_more_memory_holds_more(question: QuestionMaker, values: Constants) -> None:
    asked = question(batch=16)
    double = replace(asked, fabric=replace(asked.fabric, memory_bytes=2 * asked.fabric.memory_bytes))
    for what in Growing:
        one, two = (
            largest(each, Limits(), time=values[0], memory=values[1], what=what) for each in (asked, double)
        )
        assert two.value >= one.value
