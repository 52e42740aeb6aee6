"""What a trial's run is worth."""

import pytest

from trimtab.app.tuning.measures import Facts, value_of
from trimtab.ledger import Event, EventKind, Incarnation, RunRecords
from trimtab.spec.tunings import TuningObjective

FACTS = Facts(skip=2, devices=2, usd_per_device_hour=3.6)


def records(*losses: float | None) -> RunRecords:
    """A run that commits a step of 100 tokens each half second."""
    start = Event(kind=EventKind.RUN, t_ns=0, fields={"run": "t", "attempt": 1, "devices": [0, 1]})
    commits = [
        Event(
            kind=EventKind.COMMIT,
            t_ns=number * 500_000_000,
            fields={"step": number, "loss": loss, "grad_norm": 1.0, "lr": 1.0, "tokens": 100, "targets": 100},
        )
        for number, loss in enumerate(losses, 1)
    ]
    return RunRecords(agents=[[start]], ranks={Incarnation(0, 0): commits}, clocks={})


def test_rates_and_dollars_are_of_the_steps_behind_the_first_ones() -> None:
    run = records(5.0, 4.0, 3.0, 2.0)
    assert value_of(TuningObjective.TOKENS_PER_S, run, FACTS) == pytest.approx(200.0)
    # Two devices at a tenth of a cent a second: 0.002 dollars for 200 tokens.
    assert value_of(TuningObjective.USD_PER_MILLION_TOKENS, run, FACTS) == pytest.approx(10.0)
    assert value_of(TuningObjective.LOSS, run, FACTS) == 2.0


def test_a_run_that_ends_without_a_finite_loss_has_none() -> None:
    """A rate that is too high would win by the losses before it diverged."""
    assert value_of(TuningObjective.LOSS, records(5.0, 1.0, None), FACTS) is None
    assert value_of(TuningObjective.LOSS, records(5.0, None, 4.0), FACTS) == 4.0
