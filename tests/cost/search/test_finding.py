"""The search against its own space, priced one by one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from trimtab.catalog import cluster, network
from trimtab.cost.closed_form import Values
from trimtab.cost.search import (
    Candidate,
    Limits,
    Objective,
    Question,
    Verdict,
    fabric_of,
    find,
    price_of_layout,
)
from trimtab.cost.search.space import layout_at, layouts

QuestionMaker = Callable[..., Question]
Constants = tuple[Values, Values]

LIMITS = Limits(usd_per_device_hour=2.0, steps=1000)


def all_of(question: Question, limits: Limits, values: Constants) -> list[Candidate]:
    """Every layout, alone."""
    time, memory = values
    return [
        price_of_layout(question, limits, layout_at(columns, index), time=time, memory=memory)
        for columns in layouts(question)
        for index in range(len(columns["devices"]))
    ]


@pytest.fixture(scope="module")
def small(values: Constants) -> tuple[Question, list[Candidate]]:
    """A space of some hundred layouts on two and four devices, and all of it."""
    question = Question(
        network=replace(network("llama2-7b"), layers=8, heads=4, kv_heads=2, head_size=128),
        sequence=1024,
        batch=8,
        fabric=fabric_of(cluster("64xA100"), "bf16"),
        devices=(2, 4),
        compute="bf16",
        shares=None,
    )
    return question, all_of(question, LIMITS, values)


def test_the_best_is_the_best_of_all(small: tuple[Question, list[Candidate]], values: Constants) -> None:
    question, every = small
    found = find(question, LIMITS, time=values[0], memory=values[1], keep=5)
    fitting = sorted(one.step_s for one in every if one.verdict is Verdict.FEASIBLE)
    assert found.evaluated == len(every) > 200
    assert [one.step_s for one in found.best] == pytest.approx(fitting[:5])
    assert found.verdicts[Verdict.FEASIBLE] == len(fitting)


def test_dollars_are_another_order(small: tuple[Question, list[Candidate]], values: Constants) -> None:
    question, every = small
    found = find(question, LIMITS, time=values[0], memory=values[1], objective=Objective.DOLLARS, keep=1)
    cheapest = min(one.usd_per_step or 0 for one in every if one.verdict is Verdict.FEASIBLE)
    assert found.best[0].usd_per_step == pytest.approx(cheapest)
    assert found.best[0].layout.devices == 2
    fastest = find(question, LIMITS, time=values[0], memory=values[1], keep=1).best[0]
    assert fastest.layout.devices == 4


def test_nothing_on_the_front_is_beaten_and_everything_else_is(
    small: tuple[Question, list[Candidate]], values: Constants
) -> None:
    question, every = small
    front = find(question, LIMITS, time=values[0], memory=values[1]).front

    def point(one: Candidate) -> tuple[float, ...]:
        return (one.step_s, one.usd_per_step or 0, one.memory_bytes, one.layout.devices)

    def beats(one: Candidate, other: Candidate) -> bool:
        mine, theirs = np.asarray(point(one)), np.asarray(point(other))
        return bool(np.all(mine <= theirs * (1 + 1e-12)) and np.any(mine < theirs * (1 - 1e-12)))

    assert len(front) > 2
    assert not any(beats(one, other) for one in front for other in front)
    fitting = [one for one in every if one.verdict is Verdict.FEASIBLE]
    layouts_on_front = {one.layout for one in front}
    for one in fitting:
        if one.layout not in layouts_on_front:
            assert any(beats(other, one) or point(other) == pytest.approx(point(one)) for other in front)


def test_the_curve_has_the_best_for_each_number_of_devices(
    small: tuple[Question, list[Candidate]], values: Constants
) -> None:
    question, every = small
    curve = find(question, LIMITS, time=values[0], memory=values[1]).curve
    assert [one.layout.devices for one in curve] == [2, 4]
    for one in curve:
        own = [
            other.step_s
            for other in every
            if other.layout.devices == one.layout.devices and other.verdict is Verdict.FEASIBLE
        ]
        assert one.step_s == pytest.approx(min(own))


def test_limits_are_kept_and_counted(small: tuple[Question, list[Candidate]], values: Constants) -> None:
    question, every = small
    times = sorted(one.step_s for one in every)
    middle = times[len(times) // 2]
    limits = replace(LIMITS, deadline_s=middle * 1000)
    found = find(question, limits, time=values[0], memory=values[1], keep=1000)
    assert found.verdicts[Verdict.DEADLINE] > 0
    assert max(one.step_s for one in found.best) <= middle
    poor = replace(LIMITS, budget_usd=min(one.usd_per_step or 0 for one in every) * 1000 * 1.2)
    found = find(question, poor, time=values[0], memory=values[1], keep=1000)
    assert found.verdicts[Verdict.BUDGET] > 0
    assert all((one.usd_per_step or 0) * 1000 <= (poor.budget_usd or 0) for one in found.best)


def test_where_nothing_fits_the_nearest_is_told_with_what_it_lacks(
    question: QuestionMaker, values: Constants
) -> None:
    """405B on eight devices: the smallest need of all is really the smallest."""
    asked = question(network="llama3-405b", batch=2)
    found = find(asked, Limits(), time=values[0], memory=values[1], keep=8, keep_others=10**6)
    assert found.best == found.front == found.curve == ()
    assert found.verdicts[Verdict.MEMORY] == found.evaluated == len(found.nearest)
    lacking = [one.shortfall_bytes for one in found.nearest]
    assert lacking == sorted(lacking)
    assert lacking[0] > 0
    room = asked.fabric.memory_bytes * (1 - Limits().headroom)
    for one in found.nearest[:50]:
        assert one.shortfall_bytes == pytest.approx(one.memory_bytes - room)


def test_parts_of_a_candidate_add_up(question: QuestionMaker, values: Constants) -> None:
    best = find(question(), LIMITS, time=values[0], memory=values[1], keep=1).best[0]
    assert sum(best.parts.values()) == pytest.approx(best.step_s)
    assert sum(best.memory_parts.values()) == pytest.approx(best.memory_bytes)


def test_uninterrupted_devices_are_not_free(question: QuestionMaker, values: Constants) -> None:
    """Dollars of a step are devices, seconds and the price of an hour."""
    best = find(question(), LIMITS, time=values[0], memory=values[1], keep=1).best[0]
    assert best.usd_per_step == pytest.approx(best.step_s * 8 * 2.0 / 3600)
    unpriced = find(question(), Limits(), time=values[0], memory=values[1], keep=1).best[0]
    assert unpriced.usd_per_step is None
