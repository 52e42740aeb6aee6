"""Which policy is better, and how sure is that? Several policies under the same faults, over many seeds."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from trimtab.catalog.failures import FailureMixture
from trimtab.sim.cadences import Cadence
from trimtab.sim.faults import draw_faults
from trimtab.sim.goodput import Outcome, SimulatedRun, simulate

_RESAMPLES = 2_000
"""Of a bootstrap: its bounds vary by less than the figures that are printed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A way to run, and when it saves."""

    run: SimulatedRun
    cadence: Cadence


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Figures of many seeds.

    Args:
        low: A twentieth lies below.
        median: Half does.
        high: A twentieth lies above.
    """

    low: float
    median: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The mean of paired differences, and where it lies with 95 % confidence."""

    low: float
    mean: float
    high: float


def try_policies(
    policies: Mapping[str, Policy],
    mixture: FailureMixture,
    *,
    horizon_s: float,
    seeds: Sequence[int],
    on_trial: Callable[[], None] = lambda: None,
) -> dict[str, list[Outcome]]:
    """What becomes of every policy under the faults of every seed, which are the same for all of them.

    Args:
        policies: By name; all of one cluster.
        mixture: What fails how often.
        horizon_s: Seconds to train.
        seeds: One set of faults each.
        on_trial: Called after each simulated run.

    Returns: Outcomes in order of the seeds, by name.
    """
    sizes = {(policy.run.num_nodes, policy.run.num_spares) for policy in policies.values()}
    assert len(sizes) == 1, "policies are compared on one cluster"
    ((num_nodes, num_spares),) = sizes
    found: dict[str, list[Outcome]] = {name: [] for name in policies}
    for seed in seeds:
        faults = draw_faults(mixture, num_nodes=num_nodes + num_spares, horizon_s=horizon_s, seed=seed)
        for name, policy in policies.items():
            found[name].append(simulate(policy.run, faults, policy.cadence, horizon_s=horizon_s))
            on_trial()
    return found


def spread(values: Sequence[float]) -> Spread:
    """The middle of figures, and what nine of ten lie between.

    >>> spread([3.0, 1.0, 2.0])
    Spread(low=1.0, median=2.0, high=3.0)
    """
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(
        low=ordered[round(0.05 * last)],
        median=statistics.median(ordered),
        high=ordered[round(0.95 * last)],
    )


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """How much ours is above theirs, seed by seed; a percentile bootstrap with a fixed seed of its own.

    Source: Efron 1979, Bootstrap methods: another look at the jackknife.
    """
    differences = [our - their for our, their in zip(ours, theirs, strict=True)]
    random = Random(0)  # noqa: S311 - resamples, no secrets
    means = sorted(
        statistics.fmean(random.choices(differences, k=len(differences))) for _ in range(_RESAMPLES)
    )
    return Difference(
        low=means[round(0.025 * (_RESAMPLES - 1))],
        mean=statistics.fmean(differences),
        high=means[round(0.975 * (_RESAMPLES - 1))],
    )
