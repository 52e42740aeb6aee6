import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.runtime.lr_schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Restarts,
    Step,
    learning_rate,
)

EXAMPLES = [
    Constant(warmup=3),
    Linear(warmup=3, floor=0.2),
    Cosine(warmup=3, floor=0.2),
    Step(warmup=3, every=4, factor=0.5),
    InverseSqrt(warmup=3),
    Restarts(warmup=3, period=4, floor=0.2),
]


def rates(schedule, steps, num_steps=11, peak=2.0):
    return [learning_rate(schedule, step=step, num_steps=num_steps, peak=peak) for step in steps]


@pytest.mark.parametrize("schedule", EXAMPLES)
def test_warmup_is_a_line_that_ends_at_the_peak(schedule):
    """A first step at rate 0 is wasted; a jump at the end of the warmup is a spike in the loss."""
    assert rates(schedule, range(4)) == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("schedule", "steps", "expected"),
    [
        (EXAMPLES[0], [4, 10, 11, 99], [2.0, 2.0, 2.0, 2.0]),
        (EXAMPLES[1], [5, 7, 11, 99], [1.6, 1.2, 0.4, 0.4]),
        (EXAMPLES[2], [5, 7, 9, 11, 99], [0.4 + 0.8 * (1 + math.sqrt(0.5)), 1.2, 0.4 + 0.8 * (1 - math.sqrt(0.5)), 0.4, 0.4]),
        (EXAMPLES[3], [6, 7, 10, 11], [2.0, 1.0, 1.0, 0.5]),
        (EXAMPLES[4], [15, 63], [1.0, 0.5]),
        (EXAMPLES[5], [5, 6, 7, 9], [1.2, 0.4 + 0.8 * (1 - math.sqrt(0.5)), 2.0, 1.2]),
    ],
)  # fmt: skip
def test_values_are_those_of_the_formula(schedule, steps, expected):
    """Another rate trains another model than the one that the user compared with."""
    assert rates(schedule, steps) == pytest.approx(expected)


@given(
    schedule=st.sampled_from(EXAMPLES + [type(s)(**{"every": 2} if isinstance(s, Step) else {"period": 2} if isinstance(s, Restarts) else {}) for s in EXAMPLES]),
    step=st.integers(0, 50),
    num_steps=st.integers(1, 50),
)  # fmt: skip
def test_a_rate_is_positive_and_at_most_the_peak(schedule, step, num_steps):
    """A rate above the peak diverges; runs shorter than their warmup must work too."""
    assert 0 < learning_rate(schedule, step=step, num_steps=num_steps, peak=3.0) <= 3.0


def test_every_schedule_has_the_job_files_name():
    """A name that the job file accepts and nothing reads would fail after the launch."""
    assert set(SCHEDULES.values()) == {type(schedule) for schedule in EXAMPLES}
