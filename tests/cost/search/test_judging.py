"""Closed forms of pipelines against their actions, one by one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trimtab.cost.calibration import calibrate, published_fits, step_seconds
from trimtab.cost.closed_form import Values
from trimtab.cost.search import (
    Candidate,
    Layout,
    Limits,
    Question,
    compare,
    judged_step_s,
    price_of_layout,
    priced_cases,
)
from trimtab.plan.pipelines import StageSchedule

QuestionMaker = Callable[..., Question]
Constants = tuple[Values, Values]


@pytest.mark.parametrize(
    ("schedule", "pieces", "within"),
    [
        (StageSchedule.GPIPE, 1, 0.02),
        (StageSchedule.ONE_F_ONE_B, 1, 0.02),
        (StageSchedule.INTERLEAVED_1F1B, 2, 0.02),
        (StageSchedule.INTERLEAVED_1F1B, 4, 0.02),
        (StageSchedule.LOOPED_BFS, 2, 0.02),
        (StageSchedule.INTERLEAVED_ZERO_BUBBLE, 2, 0.02),
        (StageSchedule.ZBV, 2, 0.03),
        (StageSchedule.DUALPIPEV, 2, 0.03),
    ],
)
@pytest.mark.parametrize("runs", [8, 32])
def test_the_filter_is_near_the_judge(
    question: QuestionMaker, values: Constants, schedule: StageSchedule, pieces: int, within: float, runs: int
) -> None:
    asked = question(batch=2 * runs, devices=(8,))
    layout = Layout(devices=8, tensor=1, pipeline=4, schedule=schedule, pieces=pieces)
    closed = price_of_layout(asked, Limits(), layout, time=values[0], memory=values[1]).step_s
    assert judged_step_s(asked, layout, values[0]) == pytest.approx(closed, rel=within)


def test_without_a_pipeline_there_is_nothing_to_judge(question: QuestionMaker, values: Constants) -> None:
    layout = Layout(devices=8, tensor=2)
    closed = price_of_layout(question(), Limits(), layout, time=values[0], memory=values[1]).step_s
    assert judged_step_s(question(), layout, values[0]) == closed


def test_an_uneven_last_stage_costs_every_microbatch(question: QuestionMaker, values: Constants) -> None:
    """A vocabulary of 250,000 on the last of 8 stages: BLOOM gave it a layer's place for that reason."""
    asked = question(batch=64, devices=(8,))
    layout = Layout(devices=8, pipeline=8)
    light = judged_step_s(asked, layout, values[0])
    heavy = judged_step_s(replace(asked, network=replace(asked.network, vocab=250_880)), layout, values[0])
    assert heavy > 1.15 * light


def test_what_two_layouts_share_cancels_in_their_ratio(question: QuestionMaker, values: Constants) -> None:
    """The time of one may be off by a third, and still nobody doubts which of the two is faster."""
    belief = published_fits().time_belief()
    time = calibrate(step_seconds, [], np.zeros(0), belief)
    asked = question(batch=64)

    def priced(**layout: Any) -> Candidate:
        return price_of_layout(asked, Limits(), Layout(devices=8, **layout), time=values[0], memory=values[1])

    better, worse = priced(store=3), priced(store=3, recompute_quarters=4)
    found = compare(asked, better, worse, belief=belief, fitted=time.fitted)
    assert 1.15 < found.low < found.ratio < found.high < 1.45
    assert not found.is_equal
    assert found.longer[0][0] == "recompute_s"
    itself = compare(asked, better, better, belief=belief, fitted=time.fitted)
    assert (itself.low, itself.ratio, itself.high) == (1, 1, 1)
    assert time.factor_of(priced_cases(asked, better.layout)) > 1.15
