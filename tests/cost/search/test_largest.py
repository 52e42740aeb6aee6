"""The largest that fits, and that the next larger one does not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from trimtab.catalog import cluster
from trimtab.cost.closed_form import Values
from trimtab.cost.search import Growing, Limits, Question, Scales, Verdict, find, largest

QuestionMaker = Callable[..., Question]
Constants = tuple[Values, Values]


def scales() -> Scales:
    """Where every replica gets a share."""
    return Scales(cluster("64xA100"), shares=lambda layout: layout.data)


@pytest.mark.slow
@pytest.mark.parametrize("what", [Growing.LAYERS, Growing.SEQUENCE])
def test_what_is_said_fits_and_the_next_one_does_not(
    question: QuestionMaker, values: Constants, what: Growing
) -> None:
    asked = question(network="llama2-13b", batch=16)
    weigh = scales()
    found = largest(asked, Limits(), time=values[0], memory=values[1], what=what, scales=weigh)
    assert found.candidate is not None
    assert found.candidate.verdict is Verdict.FEASIBLE
    assert found.candidate.is_weighed
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
    nearest = find(larger, Limits(), time=values[0], memory=values[1], keep=8).smallest
    lacking = [weigh.weighed(larger, Limits(), one).shortfall_bytes for one in nearest]
    assert 0 < found.next_lacks_bytes <= min(lacking) * 1.5


def test_the_largest_microbatch_is_the_largest_of_all_that_fit(
    question: QuestionMaker, values: Constants
) -> None:
    asked = question(batch=64)
    found = largest(
        asked, Limits(), time=values[0], memory=values[1], what=Growing.MICROBATCH, scales=scales()
    )
    assert found.candidate is not None
    assert found.candidate.layout.microbatch == found.value
    assert found.candidate.shortfall_bytes == 0
    assert found.next_lacks_bytes > 0 or found.next_value == found.value


def test_where_nothing_fits_the_answer_is_nothing(question: QuestionMaker, values: Constants) -> None:
    asked = question(network="llama2-70b", batch=8)
    for what in Growing:
        found = largest(asked, Limits(), time=values[0], memory=values[1], what=what, scales=scales())
        assert (found.value, found.candidate) == (0, None)
        assert found.next_lacks_bytes > 0


@pytest.mark.slow
def test_more_memory_holds_more(question: QuestionMaker, values: Constants) -> None:
    asked = question(batch=16)
    double = replace(asked, fabric=replace(asked.fabric, memory_bytes=2 * asked.fabric.memory_bytes))
    one, two = (
        largest(each, Limits(), time=values[0], memory=values[1], what=Growing.SEQUENCE, scales=scales())
        for each in (asked, double)
    )
    assert two.value > one.value
