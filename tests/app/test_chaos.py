"""The verb chaos, for real: what holds is said to hold, what does not is named with the command that repeats it."""

import json
import os
from pathlib import Path

import pytest

from tests.conftest import Trimtab
from trimtab.app.chaos_trials import Workload, make_trial
from trimtab.sim.chaos import Trial
from trimtab.terms import RunState

SCENARIO = """
scenario: {name}
workload: {{extends: tiny.yaml, orchestration: {{devices: 2}}, fault_tolerance: {{checkpoint: {{every: 4}}}}}}
faults:
{faults}
expect: {expect}
"""


def write(workplace: Path, name: str, *faults: str, expect: str = "{bits: same}") -> str:
    listed = "\n".join(f"  - {{{fault}}}" for fault in faults)
    path = workplace / f"{name}.yaml"
    path.write_text(SCENARIO.format(name=name, faults=listed, expect=expect), encoding="utf-8")
    return path.name


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(400)  # five commands that start ranks, one after the other; each has a minute and more
def test_faults_that_cost_nothing_and_one_that_costs_bits(trimtab: Trimtab, workplace: Path) -> None:
    """FT-01, FT-02, FT-03, FT-15: both answers of the verb, from one undisturbed run; a skipped step is other bits."""
    good = write(
        workplace, "good",
        "kind: kill, rank: 1, step: 2, phase: [compute, reduce]", "kind: disconnect, rank: 0, step: 5, phase: apply",
        "kind: torn-checkpoint, step: 4", "kind: stop-run, step: 6, devices: 1", "kind: slow, rank: 0, step: 3, factor: 8",
        expect="{bits: same, rollback: 0, struck: 4}",
    )  # fmt: skip
    bad = write(workplace, "bad", "kind: nan, rank: 1, step: 3")
    ran = trimtab("chaos", good, bad, "--seed", "3", "--json", check=1, timeout=380)
    held, broken = ran.document["trials"]
    assert held["holds"], held["broken"]
    assert (held["seed"], held["attempts"], held["losses"], held["state"]) == (3, 2, 1, "done")
    assert held["struck"] >= 4
    assert not broken["holds"]
    assert broken["faults"] == ["nan:rank=1,step=3"]
    (sentence,) = broken["broken"]
    assert held["weights_sha256"][:12] in sentence, "that of the undisturbed run"
    assert ran.document["mismatches"] == ran.document["broken"] == 1
    assert "again: trimtab chaos bad.yaml --seed 3" in ran.stderr
    assert "the runs are in " in ran.stderr
    assert ran.document["leftovers"] == 0


@pytest.mark.process
def test_a_run_that_hangs_is_ended_and_named(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FT-02: a soak of a night must not wait for the morning."""
    monkeypatch.chdir(workplace)
    workload = Workload(job_file=Path("tiny.yaml"), runs=workplace / "hung", devices=4)
    workload.runs.mkdir()
    nothing = Trial(seed=0, injections=(), strikes=())
    made = make_trial(workload, nothing, name=f"hung-{os.getpid()}", limit_s=1.0)
    assert made.observed.state is RunState.RUNNING
    assert "still at work after 1 s" in made.observed.error
    assert made.observed.leftovers == ()


def test_a_wrong_file_is_refused_before_anything_is_started(trimtab: Trimtab, workplace: Path) -> None:
    """All errors of all files at once: a night's soak must not end at its third file."""
    first = write(workplace, "first", "kind: kill, step: 99")
    second = write(workplace, "second", "kind: kil, step: 3")
    ran = trimtab("chaos", first, second, "no-such.yaml", "--json", check=2)
    said = json.loads(ran.stdout)["error"]
    for words in ("first.yaml:5:18  step 99 is beyond", "Did you mean 'kill'?", "no-such.yaml: cannot read"):
        assert words in said
