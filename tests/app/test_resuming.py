import json
import os

import pytest

from trimtab.app import resuming
from trimtab.app.resuming import refuse_changed_constants
from trimtab.app.run_folders import at_work
from trimtab.spec import load_job
from trimtab.terms import InputError

JOB = """\
run: quick
model: {preset: gpt-3m}
data: {text: python-stdlib}
train: {steps: 6}
orchestration: {devices: 2}
"""


def job(*overrides):
    return load_job(JOB, source="q.yaml", overrides=overrides, read=lambda path: "").job


@pytest.mark.parametrize(
    "override",
    [
        "train.seed=1",
        "train.batch=64",
        "train.microbatch=4",
        "train.compute=bf16",
        "train.optimizer.adamw.lr=2e-3",
        "train.clip=off",
        "model.layers=2",
        "data.sequence=64",
        "data.held_out=0.1",
        "orchestration.threads=2",
        "fault_tolerance.shares=8",
    ],
)
def test_what_bits_depend_on_is_kept(override):
    """A resumed run whose batch or threads changed would end with other weights and nobody would know why."""
    with pytest.raises(InputError, match=override.partition("=")[0]):
        refuse_changed_constants(job(), job(override))


@pytest.mark.parametrize(
    "override",
    [
        "orchestration.devices=4",
        "orchestration.grace=5s",
        "orchestration.price_usd_per_device_hour=1.0",
        "parallelism=MESH dp 2",
        "fault_tolerance.replace=true",
        "fault_tolerance.checkpoint.every=7",
        "fault_tolerance.detection.heartbeat=3s",
        "train.steps=12",
        "train.evaluate.every=3",
        "data.cache=tokens",
    ],
)
def test_what_changes_no_bits_may_change(override):
    """More devices, more steps, other deadlines: what resuming is for."""
    refuse_changed_constants(job(), job(override))


def test_all_changed_constants_are_named_at_once():
    """With both values, so that the user sees which run they wanted."""
    with pytest.raises(InputError) as refusal:
        refuse_changed_constants(job(), job("train.seed=1", "train.batch=64"))
    assert "train.batch: 32 -> 64" in str(refusal.value)
    assert "train.seed: 0 -> 1" in str(refusal.value)


@pytest.fixture
def attempts(monkeypatch):
    """The attempts that resume would make; starting ranks is tested elsewhere."""
    made = []
    monkeypatch.setattr(
        resuming, "run_attempt", lambda *arguments: made.append((os.getcwd(), *arguments)) or 0
    )
    return made


def test_a_resumed_run_keeps_its_folder_and_shares(cli, written_run, attempts):
    """More devices, the same shares: the order of additions is the run's, not the machine's."""
    run = written_run().attempt(1, range(2))
    assert cli("resume", "quick-1", "--set", "orchestration.devices=4", "--set", "train.steps=9").code == 0
    ((_, loaded, folder, _, _),) = attempts
    assert folder == run.folder
    assert (loaded.job.orchestration.devices, loaded.job.fault_tolerance.shares) == (4, 4)
    assert "devices: 4  # --set #1" in (run.folder / "resolved.yaml").read_text()
    assert "devices: 2" in (run.folder / "resolved-1.yaml").read_text()


def test_a_run_resumed_unchanged_keeps_its_resolved_file(cli, written_run, attempts):
    """Origins of values are not lost by resuming."""
    run = written_run().attempt(1, range(2))
    before = (run.folder / "resolved.yaml").read_bytes()
    assert cli("resume", "quick-1").code == 0
    assert (run.folder / "resolved.yaml").read_bytes() == before
    assert not list(run.folder.glob("resolved-*"))


def test_relative_paths_hold_wherever_resume_is_called(cli, written_run, attempts, desk):
    """`text: corpus/` is where it was when the run was started, not where the user stands now."""
    run = written_run().attempt(1, range(2))
    (desk / "elsewhere").mkdir()
    (run.folder / "run.json").write_text(json.dumps({"working_folder": str(desk / "elsewhere")}))
    assert cli("resume", str(run.folder)).code == 0
    assert attempts[0][0] == str(desk / "elsewhere")


def test_a_living_run_is_not_resumed(cli, written_run, attempts):
    """And its resolved file is not touched."""
    run = written_run().attempt(1, range(2))
    with at_work(run.folder):
        answer = cli("resume", "quick-1", "--set", "train.steps=9")
    assert answer.code == 2
    assert "is running" in answer.err
    assert not attempts
    assert not list(run.folder.glob("resolved-*"))


def test_a_folder_that_does_not_say_where_it_was_started_is_refused(cli, written_run, attempts):
    """Rather than training on whatever lies in the present folder under the same name."""
    run = written_run().attempt(1, range(2))
    (run.folder / "run.json").write_text("{}")
    answer = cli("resume", "quick-1")
    assert answer.code == 2
    assert "run.json" in answer.err
    assert not attempts
