"""The verb tune, with real runs: killed in the middle, gone on with, carried further and undone."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.app.job_reading import read_job
from trimtab.app.leftovers import processes_of
from trimtab.app.tuning.studies import Study
from trimtab.app.tuning.verb import DEFAULT_TUNING, refuse_unknown_keys
from trimtab.app.tuning.verb import tune as verb
from trimtab.policy.trials import TrialState
from trimtab.spec.tunings import Tuning, load_tuning
from trimtab.terms import InputError

ROOT = Path(__file__).resolve().parents[3]

JOB = """\
run: tiny
model: {preset: gpt-3m, layers: 1, embed: 32, heads: 2}
data: {text: "words-*.txt", tokenizer: bytes, sequence: 64}
train: {steps: 400, batch: 8, optimizer: {adamw: {lr: 1e-3}}}
orchestration: {devices: 2, price_usd_per_device_hour: 2}
parallelism: |
  MESH dp 2
  SPLIT batch OVER dp
fault_tolerance: {shares: 2}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    for number in range(20):
        words = f"{number}: to be tuned or not to be tuned, that is the question\n" * 100
        (tmp_path / f"words-{number}.txt").write_text(words)
    return tmp_path


def tune(
    place: Path, target: str, space: str = "", *words: str, limit: Callable[[], None] | None = None
) -> "subprocess.Popen[str]":
    if space:
        (place / "space.yaml").write_text(space)
    options = ["--space", "space.yaml"] if space else []
    return subprocess.Popen(
        [sys.executable, "-m", "trimtab", "tune", target, *options, "--json", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )


def document_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.process
def test_a_tuner_that_is_killed_loses_nothing_and_leaves_no_device_taken(place: Path) -> None:
    """Ranks of a trial would go on holding devices for nobody; a restart would begin from nothing, or not at all."""
    space = """\
objectives: [loss]
knobs: [{key: train.optimizer.adamw.lr, values: [1e-5, 3e-2]}]
lines: [{name: bucket, one_of: ["REDUCE grads OVER dp BUCKET 1MB"]}]
trial: {steps: 12, skip: 2}
budget: {trials: 2}
prune: off
confirm: 1
"""
    first = tune(place, "job.yaml", space)
    folder = place / "runs" / "tiny-tune-1"
    deadline_s = time.monotonic() + 90
    while not list(folder.glob("trials/t-1-1/journal/rank-*.jsonl")):
        assert time.monotonic() < deadline_s
        assert first.poll() is None, first.stderr.read() if first.stderr else ""
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    while processes_of("t-1-1"):
        assert time.monotonic() < deadline_s, "the trial of a dead tuner goes on"
        time.sleep(0.05)
    rows = Study(folder).rows()
    assert [row.trial.state for row in rows] == [TrialState.DONE, TrialState.RUNNING]

    document = document_of(tune(place, str(folder)))
    trials = document["trials"]
    assert [trial["state"] for trial in trials] == ["done"] * 2
    assert [trial["attempts"] for trial in trials] == [1, 2], "the first is not made again, the second is"
    assert trials[1]["params"] == dict(rows[1].params)
    assert trials[0]["settings"] == {}, "the first is the job as it is"
    assert all(trial["usd"] > 0 for trial in trials)

    # What was found is carried further, and undone.
    best = document["best"]
    assert best is not None, "a rate of 0.03 learns more in 12 steps than one of 0.001"
    assert document["gain"]["is_confirmed"]
    assert document["gain"]["ratio"]["median"] < 1
    job = str(place / "job.yaml")
    tuned = read_job(job, best["set"])
    assert tuned.digest() != read_job(job).digest()
    assert read_job(job, [*best["set"], *best["undo"]]).digest() == read_job(job).digest()
    assert read_job(best["file"]).digest() == tuned.digest()
    assert (place / "job.yaml").read_text() == JOB, "the job itself is never changed"
    assert json.loads((folder / "result.json").read_text())["best"]["set"] == best["set"]
    page = (folder / "picture.html").read_text()
    assert 'http-equiv="refresh"' not in page, "what is over is not loaded again"
    assert page.count("a3.5") >= 2 * 3, "each trial by number, and by each knob"

    # A study that is over says the same again, without a run.
    again = document_of(tune(place, str(folder)))
    assert again["trials"] == trials


@pytest.mark.process
@pytest.mark.slow
def test_a_trial_without_memory_is_a_limit_and_a_slow_one_is_cut_short(place: Path) -> None:
    """One trial that runs out of memory would end the tuning; one that is slow would cost as much as a good one."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2_500_000 * 1024,) * 2)

    space = """\
knobs: [{key: model.embed, values: [32, 3072]}]
trial: {steps: 5, skip: 1}
budget: {trials: 3}
confirm: 0
"""
    document = document_of(tune(place, "job.yaml", space, limit=limited))
    assert {trial["params"]["model.embed"]: trial["state"] for trial in document["trials"]} == {
        32: "done",
        3072: "out of memory",
    }
    assert "allocate memory" in document["trials"][1]["reason"]
    assert document["best"] is None

    space = """\
knobs: [{key: train.batch, values: [32, 2]}, {key: train.optimizer.adamw.lr, values: [1e-3, 2e-3]}]
trial: {steps: 150, skip: 2}
prune: {after_steps: 5, after_trials: 2}
budget: {trials: 6}
confirm: 0
"""
    document = document_of(tune(place, "job.yaml", space, "--set", "train.batch=32"))
    cut = [trial for trial in document["trials"] if trial["state"] == "cut short"]
    assert cut, "batches of 2 give a fraction of the tokens"
    assert {trial["params"]["train.batch"] for trial in cut} == {2}
    assert all(trial["reason"] == "behind the others" for trial in cut)
    assert not processes_of("t-1-1")


@pytest.mark.process
@pytest.mark.slow
def test_two_workers_make_trials_at_one_time_and_a_signal_ends_them_all(place: Path) -> None:
    """A tuning told to end would go on in its other workers."""
    space = """\
knobs: [{key: train.optimizer.adamw.lr, values: [1e-4, 1e-3, 1e-2, 1e-1]}]
objectives: [loss]
trial: {steps: 300, skip: 2}
prune: off
workers: 2
confirm: 0
"""
    process = tune(place, "job.yaml", space)
    folder = place / "runs" / "tiny-tune-1"
    deadline_s = time.monotonic() + 90
    while len(list(folder.glob("trials/t-*/journal/rank-*.jsonl"))) < 4:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    while processes_of("t-0-1") or processes_of("t-1-1"):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    states = [row.trial.state for row in Study(folder).rows()]
    assert TrialState.RUNNING not in states
    assert states.count(TrialState.WAITING) == 2


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("knobs: [{key: train.bach, values: [4, 8]}]\n", "Did you mean 'batch'?"),
        ("knobs: [{key: train.batch, values: [few, many]}]\n", "takes no value of the knob train.batch"),
        ("strategies: {planned: 0, files: [gone.trim]}\n", "gone.trim: cannot read formulas"),
        (
            "objectives: [usd_per_million_tokens]\nknobs: [{key: train.batch, values: [4]}]\n",
            "the job knows no price above 0",
        ),
        ("strategies: {planned: 2}\n", "measure it once: trimtab probe --devices 2"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, space: str, said: str
) -> None:
    """The first trial would fail after minutes, and so would all others."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    (place / "space.yaml").write_text(space)
    (place / "job.yaml").write_text(
        JOB.replace("price_usd_per_device_hour: 2", "price_usd_per_device_hour: 0")
    )
    with pytest.raises(InputError, match="(?s)" + said.replace("?", r"\?")):
        verb("job.yaml", Path("space.yaml"), [], is_json=True)
    assert not (place / "runs").exists(), "a study that cannot begin leaves nothing"


def test_the_default_tuning_is_one_that_can_be_read() -> None:
    tuning = load_tuning(DEFAULT_TUNING, source="the default tuning")
    assert tuning.strategies is not None
    assert yaml.safe_load(DEFAULT_TUNING)["objectives"] == ["tokens_per_s"]


def test_the_page_and_the_example_are_true() -> None:
    """Whoever copies the first lines of a page expects them to work."""
    page = (ROOT / "docs" / "tune.md").read_text()
    written = page.split("```yaml\n")[1].split("```")[0]
    assert load_tuning(written, source="docs/tune.md").budget.usd == 5
    table = page.split("| key | takes | default |")[1].split("\n\n")[0]
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == list(Tuning.model_fields)
    example = ROOT / "examples" / "tune" / "quickstart.yaml"
    tuning = load_tuning(example.read_text(), source=str(example))
    refuse_unknown_keys(str(ROOT / "examples" / "quickstart.yaml"), [], tuning, "example")
