"""Curves and counts of a run that was broken in every way are those of a run that was not."""

import pytest

from tests.conftest import Ran, Trimtab
from trimtab.app.run_records import read_records
from trimtab.ledger.series import Metric, all_points, default_series

pytestmark = [pytest.mark.process, pytest.mark.slow]

KEEPING = (
    *("--set", "orchestration.devices=3", "--set", "fault_tolerance.checkpoint.every=2"),
    *("--set", "train.on_nonfinite=rollback", "--set", "fault_tolerance.restarts.node_loss=1"),
    *("--set", "train.evaluate.every=4"),
)


def curve(ran: Ran, metric: Metric) -> dict[int, float | None]:
    """What is shown: one value a step."""
    points = default_series(read_records(ran.folder), metric)
    steps = [point.step for point in points]
    assert steps == sorted(set(steps)), "no step goes back, none has two values"
    return {point.step: point.value for point in points}


def test_no_step_goes_back_and_nothing_is_counted_twice(trimtab: Trimtab) -> None:
    """S-OBS-01, S-OBS-02, S-FT-06: a replica that leaves, a rollback and a crash change no value and no sum.

    A sum over living replicas would jump when one leaves, and tokens of steps that were done twice would count twice.
    """
    calm = trimtab("run", "tiny.yaml", "--json", *KEEPING)
    broken = trimtab(
        "run", "tiny.yaml", "--json", *KEEPING, "--inject", "kill:rank=2,step=3,phase=reduce", "--inject",
        "nan:rank=1,step=7", "--inject", "kill:rank=0,step=10", check=1,
    )  # fmt: skip
    assert broken.document["state"] == "failed"
    assert max(curve(broken, Metric.LOSS)) == 10
    ended = trimtab("resume", broken.folder.name, "--json")
    assert ended.document["weights_sha256"] == calm.document["weights_sha256"]
    for metric in Metric:
        assert curve(ended, metric) == curve(calm, metric), metric
    assert ended.document["tokens"] == calm.document["tokens"] == 12 * 8 * 32
    seen = all_points(read_records(ended.folder), Metric.LOSS)
    assert {point.attempt for point in seen} == {1, 2}, "what was superseded is kept, with its attempt"
    assert len(seen) > 12
    shown = default_series(read_records(ended.folder), Metric.LOSS)
    assert {point.attempt for point in shown if point.step > 10} == {2}
    members = [event["members"] for event in ended.events("formed", "agent-1")]
    assert members == [[0, 1, 2], [0, 1]], "who took part is on record"
