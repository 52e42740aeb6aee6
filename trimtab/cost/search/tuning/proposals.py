"""What the next trial should be, as a function of what all trials before it were and said.

The surrogate is Optuna's tree-structured Parzen estimator (Bergstra et al. 2011; multi-objective: Ozaki et al. 2020;
constraints: Watanabe and Hutter 2023). Nothing is kept between two calls: the same trials, seed and number give the
same proposal, in whatever process.
"""

import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import optuna

from trimtab.cost.search.tuning.knobs import Category, Knob, Numbers, Range, Space, Value

_NUM_RANDOM = 8
"""Trials that are drawn at random before anything is learned; seeds count among them."""

_GOOD_SHARE = 0.25
"""Of the trials, those that count as good. A tenth, the library's choice, is one to three of the thirty that a budget of
real runs allows. `bench/tuning.py` shows both on tables of real runs: regret 0.064 and 0.000 of that of random search."""

_MOST_LISTED = 20_000
"""Points of a space that are looked at one by one."""

_TRIES = 64
"""Draws in a space too large to list, before it counts as seen."""


class Seen(StrEnum):
    """How far a trial has come, as far as the next proposal cares."""

    RUNNING = "running"
    DONE = "done"
    CUT_SHORT = "cut short"
    """It was behind the others; the values are those at which it was ended."""
    IMPOSSIBLE = "impossible"
    """It ran out of memory, or could not run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A trial before the next one.

    Args:
        params: Its values, one a knob.
        seen: How far it has come.
        values: Of the objectives, each the smaller the better; empty unless it was measured.
        step: At which it was cut short.
        excess: By what share of the limit it exceeded the memory, if it did: what is nearer to fitting is better.
    """

    params: Mapping[str, Value]
    seen: Seen
    values: tuple[float, ...] = ()
    step: int = 0
    excess: float = 0.0


def propose(
    space: Space,
    told: Sequence[Told],
    *,
    num_objectives: int,
    seed: int,
    allowed: Callable[[Mapping[str, Value]], bool] = lambda params: True,
) -> dict[str, Value] | None:
    """The values of the next trial; None if every trial that is allowed was made.

    No trial is proposed twice. In a space of lists the proposal is the point nearest to what the estimator draws that
    was not tried and is allowed.

    Args:
        space: What may vary, and with what to begin.
        told: All trials so far, in order, running ones too.
        num_objectives: How many values a measured trial has.
        seed: Of every draw.
        allowed: Whether a trial can be made at all; asked as few times as possible.
    """
    tried = {_key(trial.params) for trial in told}
    for params in space.seeds:
        if _key(params) not in tried and allowed(params):
            return dict(params)
    study = _study(space, told, num_objectives=num_objectives, seed=_mixed(seed, len(told)))
    count = space.num_points
    if count is not None and count <= _MOST_LISTED:
        wanted = _drawn(space, study)
        unseen = [point for point in space.points() if _key(point) not in tried]
        unseen.sort(key=lambda point: space.distance(point, wanted))
        return next((point for point in unseen if allowed(point)), None)
    for _ in range(_TRIES):
        params = _drawn(space, study)
        if _key(params) not in tried and allowed(params):
            return params
    return None


def _study(space: Space, told: Sequence[Told], *, num_objectives: int, seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        # It says that gamma goes with Optuna 6, which the project does not take; there is no other way to say it yet.
        warnings.simplefilter("ignore", FutureWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=_NUM_RANDOM,
            multivariate=True,
            gamma=lambda count: max(1, int(_GOOD_SHARE * count)),
        )
    study = optuna.create_study(sampler=sampler, directions=["minimize"] * num_objectives)
    distributions = {name: _distribution(knob) for name, knob in space.knobs.items()}
    for trial in told:
        study.add_trial(_frozen(trial, told, distributions, num_objectives))
    return study


def _frozen(
    trial: Told,
    told: Sequence[Told],
    distributions: dict[str, optuna.distributions.BaseDistribution],
    num_objectives: int,
) -> optuna.trial.FrozenTrial:
    is_single = num_objectives == 1
    params = dict(trial.params)
    match trial.seen:
        case Seen.RUNNING:
            # With a value it would count as measured; without, the estimator keeps away from where somebody is at work.
            return optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING, params=params, distributions=distributions
            )
        case Seen.CUT_SHORT if is_single:
            return optuna.trial.create_trial(
                state=optuna.trial.TrialState.PRUNED,
                params=params,
                distributions=distributions,
                intermediate_values={trial.step: trial.values[0]},
                constraints={"memory": 0.0},
            )
        case Seen.IMPOSSIBLE:
            worst = [
                max((other.values[number] for other in told if other.values), default=0.0)
                for number in range(num_objectives)
            ]
            return optuna.trial.create_trial(
                values=worst,
                params=params,
                distributions=distributions,
                constraints={"memory": max(trial.excess, 1e-6)},
            )
        case _:
            return optuna.trial.create_trial(
                values=list(trial.values),
                params=params,
                distributions=distributions,
                constraints={"memory": 0.0},
            )


def _drawn(space: Space, study: optuna.Study) -> dict[str, Value]:
    trial = study.ask({name: _distribution(knob) for name, knob in space.knobs.items()})
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return {
        name: knob.nearest(trial.params[name]) if not isinstance(knob, Category) else trial.params[name]
        for name, knob in space.knobs.items()
    }


def _distribution(knob: Knob) -> optuna.distributions.BaseDistribution:
    match knob:
        case Range(is_whole=True):
            return optuna.distributions.IntDistribution(int(knob.low), int(knob.high), log=knob.is_log)
        case Range():
            return optuna.distributions.FloatDistribution(knob.low, knob.high, log=knob.is_log)
        case Numbers():
            return optuna.distributions.FloatDistribution(knob.values[0], knob.values[-1], log=knob.is_log)
        case Category():
            return optuna.distributions.CategoricalDistribution(knob.values)


def _key(params: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(params.items()))


def _mixed(seed: int, number: int) -> int:
    """A seed of its own for every number, the same in every process."""
    return zlib.crc32(f"{seed}:{number}".encode())
