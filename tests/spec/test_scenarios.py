"""Scenario files are read as strictly as job files: everything that is wrong, at once, each with its place."""

import re
from pathlib import Path

import pytest

from tests.house.markdown import blocks, table_after
from trimtab.spec import SpecError
from trimtab.spec.fields import all_paths
from trimtab.spec.injections import FaultKind, parse_injections
from trimtab.spec.scenarios import AgentFault, Scenario, load_scenario
from trimtab.terms import ExitCode, Phase

JOB = """
run: tiny
model: {preset: gpt-3m}
data: {text: text}
train: {steps: 12, batch: 8}
orchestration: {devices: 4}
fault_tolerance: {checkpoint: {every: "off"}}
"""

SCENARIO = """
scenario: kills
workload: job.yaml
faults:
  - {kind: kill, rank: 1, step: 5}
"""


def load(text: str, job: str = JOB):
    return load_scenario(text.lstrip(), source="dir/s.yaml", read={"dir/job.yaml": job}.__getitem__)


def message_of(text: str, job: str = JOB) -> str:
    with pytest.raises(SpecError) as caught:
        load(text, job)
    assert caught.value.exit_code is ExitCode.INPUT_WRONG
    return str(caught.value)


def test_a_scenario_names_a_job_beside_it() -> None:
    """Whoever moves a folder moves both."""
    loaded = load(SCENARIO)
    assert loaded.workload.job.train.steps == 12
    (fault,) = loaded.scenario.faults
    assert (fault.kinds, fault.ranks, fault.step, fault.phase) == ((FaultKind.KILL,), (1,), 5, None)
    assert (loaded.scenario.expect.bits, loaded.scenario.expect.struck) == ("same", 1)


def test_a_workload_is_a_job_that_may_extend_one() -> None:
    """Overrides of a workload have the places of their own lines."""
    loaded = load(SCENARIO.replace("job.yaml", "{extends: job.yaml, train: {steps: 30}}"))
    assert (loaded.workload.job.train.steps, loaded.workload.job.train.batch) == (30, 8)
    assert loaded.workload.origins["train.steps"] == "dir/s.yaml:2"


def test_a_list_or_a_distribution_stands_for_what_is_drawn() -> None:
    """A soak needs other faults each time."""
    text = SCENARIO.replace(
        "{kind: kill, rank: 1, step: 5}",
        "{kind: [kill, stop], step: {between: [2, 9]}, phase: [reduce, apply], times: {poisson: 2}}",
    )
    (fault,) = load(text).scenario.faults
    assert fault.kinds == (FaultKind.KILL, FaultKind.STOP)
    assert fault.ranks == ()
    assert fault.phase == (Phase.REDUCE, Phase.APPLY)


def test_everything_that_is_wrong_is_told_at_once_with_its_place() -> None:
    """Mistakes in the scenario and in its workload are found in one reading."""
    said = message_of(
        """
scenario: Bad Name
workload:
  extends: job.yaml
  trane: {steps: 30}
faults:
  - {kind: kil, rank: 1, step: 5}
  - {kind: kill, rank: 1, stepp: 5}
  - {kind: kill, rank: one, step: 5}
expect: {bits: equal}
"""
    )
    places = [line.split("  ")[0] for line in said.splitlines() if line.startswith("dir/s.yaml:")]
    assert places == [
        "dir/s.yaml:4:3",
        "dir/s.yaml:1:11",
        "dir/s.yaml:6:12",
        "dir/s.yaml:7:27",
        "dir/s.yaml:8:24",
        "dir/s.yaml:9:16",
    ]
    for words in (
        "unknown key 'trane'",
        "Did you mean 'kill'?",
        "Did you mean 'step'?",
        "or a list to draw from",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("{kind: kill, rank: 4, step: 5}", "rank 4 is not one of the workload's ranks 0 to 3"),
        ("{kind: kill, step: {between: [5, 13]}}", "step 13 is beyond the 12 steps"),
        ("{kind: kill, step: {between: [9, 2]}}", "from 9 to 2 there is nothing"),
        ("{kind: kill}", "neither step nor after"),
        ("{kind: kill, step: 5, after: 3s}", "this one says both"),
        ("{kind: kill, after: 3s, phase: reduce}", "phase belongs to a step"),
        ("{kind: nan, step: 5, phase: reduce}", "phase means nothing to nan"),
        ("{kind: raise, after: 3s}", "after means nothing to raise"),
        ("{kind: kill-agent, rank: 1, step: 5}", "rank means nothing to kill-agent"),
        ("{kind: kill, step: 5, devices: 2}", "devices means nothing to kill"),
        ("{kind: disk-full, step: 4}", "the workload never saves"),
        (
            "{kind: kill, after: {between: [1s, 2s], exponential: 3s}}",
            "exactly one of between and exponential",
        ),
        ("{kind: kill, step: 5, times: {}}", "exactly one of between and poisson"),
    ],
)
def test_what_cannot_hold_together_is_refused(fault: str, words: str) -> None:
    """A fault that can never strike would make a run that shows nothing."""
    said = message_of(SCENARIO.replace("{kind: kill, rank: 1, step: 5}", fault))
    assert words in said
    assert said.startswith("dir/s.yaml:4:")


def test_a_rule_that_promises_other_bits_cannot_be_held_to_the_same() -> None:
    """Otherwise every run of the scenario would fail, and nobody would be to blame."""
    workload = "{extends: job.yaml, fault_tolerance: {on_loss: rescale}}"
    assert "which promises others" in message_of(SCENARIO.replace("job.yaml", workload))
    load(SCENARIO.replace("job.yaml", workload) + "expect: {bits: free}\n")


def test_a_workload_that_is_missing_or_wrong_is_named() -> None:
    """The first mistake of whoever writes a scenario by hand."""
    assert "workload is missing" in message_of(SCENARIO.replace("workload: job.yaml\n", ""))
    assert "train.batch" in message_of(SCENARIO, JOB.replace("batch: 8", "batch: none"))


def test_agent_faults_are_kinds_of_their_own() -> None:
    """The coordinator is no rank."""
    text = SCENARIO.replace("kill, rank: 1, step: 5", "stop-run, step: 5, devices: 2")
    (fault,) = load(text).scenario.faults
    assert fault.kinds == (AgentFault.STOP_RUN,)


@pytest.mark.parametrize("kind", FaultKind)
def test_the_text_of_a_fault_reads_back(kind: FaultKind) -> None:
    """It is what a runner hands to the command line, and what a user types to repeat it."""
    (fault,) = parse_injections([f"{kind}:step=3"], devices=1)
    assert parse_injections([fault.text], devices=1) == (fault,)


SCENARIOS = sorted(
    path for path in (Path(__file__).parents[2] / "scenarios").glob("*.yaml") if path.name != "job.yaml"
)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenarios_of_the_soak_load(path: Path) -> None:
    """A soak that begins with an error in its third file wastes a night.

    What they cover: FT-01 error-in-the-program; FT-02 hangs; FT-07 kills; FT-09 budget; FT-15 two-at-once and
    stops-and-resumes; FT-18 coordinator; CKP-10, CKP-14 during-saves; CKP-05, CKP-06, OBS-07 all of them, for the weights
    of a run that evaluates, saves and resumes are those of one that is left in peace.
    """
    loaded = load_scenario(path.read_text(), source=str(path), read=lambda name: Path(name).read_text())
    assert loaded.scenario.scenario == path.stem
    assert loaded.scenario.about


def test_the_page_shows_a_scenario_that_loads() -> None:
    """A reader's first scenario is copied from it."""
    shown = [block for block in blocks("yaml") if block.text.startswith("scenario:")]
    assert shown
    for block in shown:
        load_scenario(
            block.text, source=str(block), read=lambda name: JOB.replace('{every: "off"}', "{every: 10}")
        )


def test_the_page_lists_every_key_and_no_other() -> None:
    """A key that is not in the table does not exist for its readers."""
    rows = table_after("docs/chaos.md", "## A scenario")
    listed = {key for row in rows for key in re.findall(r"`([\w.]+)`", row[0])}
    keys = {".".join(path) for path in all_paths(Scenario) if len(path) <= 2}
    assert listed == keys - {"expect"}
