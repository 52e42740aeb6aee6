"""What is the learning rate of a step?

Steps count from 0. During the first ``warmup`` steps the rate rises in a line and reaches the peak at step
``warmup``: peak (step + 1) / (warmup + 1), so that no step is wasted at rate 0 (as nanoGPT does). After
that the schedule's own formula holds, written with

    done  = step - warmup                             steps since the warmup
    p     = done / (num_steps - warmup), at most 1    progress from the peak to the end of the run
    floor = a fraction of the peak

A schedule is a function of the step alone: a resumed run goes on where it was.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """The peak after the warmup."""

    warmup: int = 0

    def fraction(self, done: int, num_decay_steps: int) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """A line from the peak to the floor, which it reaches at the end of the run."""

    warmup: int = 0
    floor: float = 0.1

    def fraction(self, done: int, num_decay_steps: int) -> float:
        """1 - (1 - floor) p."""
        return 1.0 - (1.0 - self.floor) * _progress(done, num_decay_steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cosine:
    """Half a cosine from the peak to the floor (Loshchilov and Hutter 2017, without restarts)."""

    warmup: int = 0
    floor: float = 0.1

    def fraction(self, done: int, num_decay_steps: int) -> float:
        """The floor + (1 - floor) (1 + cos(pi p)) / 2."""
        return _half_cosine(_progress(done, num_decay_steps), self.floor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The peak, multiplied by ``factor`` after every ``every`` steps."""

    every: int
    warmup: int = 0
    factor: float = 0.1

    def fraction(self, done: int, num_decay_steps: int) -> float:
        """The factor to the power of floor(done / every)."""
        return self.factor ** (done // self.every)


@dataclass(frozen=True, kw_only=True, slots=True)
class InverseSqrt:
    """Falls with the root of the step (Vaswani et al. 2017); needs no number of steps."""

    warmup: int = 0

    def fraction(self, done: int, num_decay_steps: int) -> float:
        """The root of (warmup + 1) / (step + 1)."""
        return math.sqrt((self.warmup + 1) / (self.warmup + done + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Restarts:
    """Half a cosine again every ``period`` steps (SGDR, Loshchilov and Hutter 2017)."""

    period: int
    warmup: int = 0
    floor: float = 0.1

    def fraction(self, done: int, num_decay_steps: int) -> float:
        """As Cosine, with p = (done mod period) / period."""
        return _half_cosine(done % self.period / self.period, self.floor)


Schedule = Constant | Linear | Cosine | Step | InverseSqrt | Restarts

SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "step": Step,
    "inverse_sqrt": InverseSqrt,
    "restarts": Restarts,
}
"""Schedules by the name that a job file uses; the fields are the job file's too."""


def learning_rate(schedule: Schedule, *, step: int, num_steps: int, peak: float) -> float:
    """The rate to apply in ``step`` of a run of ``num_steps``; past the end, the rate of the end."""
    if step < schedule.warmup:
        return peak * (step + 1) / (schedule.warmup + 1)
    return peak * schedule.fraction(step - schedule.warmup, num_steps - schedule.warmup)


def _progress(done: int, num_decay_steps: int) -> float:
    return 1.0 if done >= num_decay_steps else done / num_decay_steps


def _half_cosine(progress: float, floor: float) -> float:
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
