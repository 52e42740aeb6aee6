import json
from pathlib import Path

import pytest

from trimtab.app.launching import build_launch, device_price
from trimtab.app.machines import MachineFacts
from trimtab.catalog import UnknownNameError
from trimtab.spec import Job, load_job
from trimtab.spec.injections import parse_injections
from trimtab.terms import OnLoss, Phase

JOB = """\
run: quick
model: {preset: gpt-3m}
data: {text: python-stdlib}
train: {steps: 6}
orchestration:
  devices: 4
  environment: {pass: [MY_FLAG], set: {API_TOKEN: canary, MODE: fast}}
fault_tolerance:
  detection: {heartbeat: 4s, progress: 50s, save: 70s, evaluation: 80s, first_step: 90s, start: 95s, park: 9s, step: 1000s}
  restarts: {node_loss: 3}
"""


def job(*overrides):
    return load_job(JOB, source="q.yaml", overrides=overrides, read=lambda path: "").job


def launch(of=None, **changes):
    values = {
        "folder": Path("/runs/quick-3"),
        "attempt": 2,
        "first_incarnation": 5,
        "injections": parse_injections(["kill:rank=1,step=5"], devices=4),
        "is_resumed": True,
        "inherited": {"PATH": "/bin", "MY_FLAG": "1", "RANK": "7", "API_KEY": "canary"},
        "working_folder": Path("/desk"),
        "machine": MachineFacts(cores=8, memory_bytes=2**34, has_accelerator=False),
    }
    return build_launch(of or job(), **(values | changes))


def test_what_a_rank_is_told_reads_back_as_the_job():
    """The settings travel as JSON: a rank must come to the same job, to the last number."""
    told = json.loads(json.dumps(launch().rank_settings))
    read = Job.model_validate(told["job"])
    assert read.train == job().train
    assert read.fault_tolerance == job().fault_tolerance
    assert told["injections"][0]["kind"] == "kill"
    assert told["resume"] is True
    assert told["working_folder"] == "/desk"


def test_who_of_the_living_can_go_on_follows_from_the_layout():
    """Survivors that trained on would train another model; where fewer can hold all of it, they may go on."""
    piped = launch(
        job("train.microbatch=1", 'parallelism="MESH pp 2, dp 2; SPLIT layers OVER pp; SPLIT batch OVER dp"')
    )
    assert [piped.seating.num_seats(living) for living in (4, 3, 2, 1)] == [4, 2, 2, 0]
    stored = launch(job('parallelism="MESH dp 4; STORE params, grads, states OVER dp"'))
    assert [stored.seating.num_seats(living) for living in (4, 3, 2, 1)] == [4, 3, 2, 1]
    tensors = launch(job('parallelism="MESH tp 4; SPLIT heads, mlp OVER tp"'))
    assert [tensors.seating.num_seats(living) for living in (4, 3)] == [4, 0]
    whole = launch(job('parallelism="MESH dp 4"'))
    assert whole.seating.fewest() == 1


def test_four_beats_fit_into_the_silence_that_is_tolerated():
    """One late heartbeat must not cost a healthy rank its life."""
    assert launch().rank_settings["beat_s"] == 1.0


def test_secrets_go_into_the_environment_and_nowhere_else():
    """A ticket may end up in a log; an environment does not."""
    made = launch()
    assert made.environment["API_TOKEN"] == "canary"
    assert "canary" not in json.dumps(made.rank_settings)


def test_the_environment_is_an_allow_list():
    """Rank numbers of an outer launcher would make a rank believe that it is somebody else."""
    environment = launch().environment
    assert environment["MY_FLAG"] == "1"
    assert environment["MODE"] == "fast"
    assert environment["TRIMTAB_RUN"] == "quick-3"
    assert "RANK" not in environment
    assert "API_KEY" not in environment


def test_deadlines_are_those_of_the_detection_card():
    """Each phase is watched by its own limit."""
    limits = launch().limits
    assert (limits.heartbeat_s, limits.start_s, limits.budget.node_losses) == (4.0, 95.0, 3)
    assert (limits.park_s, limits.step_s) == (9.0, 1000.0)
    assert limits.progress_in(Phase.COMPUTE) == 50.0
    assert limits.progress_in(Phase.CHECKPOINT) == 70.0
    assert limits.progress_in(Phase.EVALUATE) == 80.0
    assert limits.progress_in(Phase.START) == 90.0


def test_shares_off_is_zero_shares():
    """The backend's own order: the agent must not hand out shares."""
    made = launch(job("fault_tolerance.shares=off", "fault_tolerance.on_loss=same_batch"))
    assert (made.num_shares, made.on_loss) == (0, OnLoss.SAME_BATCH)
    assert launch().num_shares == 4


def test_a_price_is_the_jobs_else_the_catalogs_else_unknown():
    """Dollars are shown only where somebody has said what a device costs."""
    assert device_price(job()) is None
    assert device_price(job("orchestration.price_usd_per_device_hour=1.5")) == 1.5
    assert device_price(job("orchestration.price_usd_per_device_hour=0")) == 0.0


def test_an_unknown_cluster_is_refused():
    """A misspelt cluster must not run unpriced."""
    with pytest.raises(UnknownNameError, match="cluster"):
        device_price(job("orchestration.cluster=dgx-h1000"))


def test_a_cluster_of_the_catalog_brings_its_price():
    """A user who names a cluster sees dollars without looking a price up."""
    price = device_price(job("orchestration.cluster=64xA100"))
    assert price is not None
    assert price > 0
    assert device_price(job("orchestration.cluster=this-machine")) is None
