"""Is a trial so far behind the others that the rest of it is not worth its price?

Optuna's median rule (Golovin et al. 2017, section 3.2.2): the best value of the trial so far against the median of what
the finished ones had at that step.
"""

from collections.abc import Mapping, Sequence

import optuna

Curve = Mapping[int, float]
"""Of one objective, the smaller the better, by step."""


def is_behind(
    curve: Curve, finished: Sequence[Curve], *, after_steps: int, after_trials: int, percentile: float = 50.0
) -> bool:
    """Whether a trial should be ended.

    Args:
        curve: Of the trial so far.
        finished: Of those that ran to their end; one that has no value at the step does not count.
        after_steps: Steps before which nothing is judged.
        after_trials: Finished trials before which nothing is judged.
        percentile: Of the finished ones, the best, that a trial must reach.
    """
    if not curve:
        return False
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    for other in finished:
        if other:
            study.add_trial(
                optuna.trial.create_trial(value=other[max(other)], intermediate_values=dict(other))
            )
    pruner = optuna.pruners.PercentilePruner(
        percentile, n_startup_trials=after_trials, n_warmup_steps=after_steps, n_min_trials=1
    )
    trial = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, intermediate_values=dict(curve))
    return bool(pruner.prune(study, trial))
