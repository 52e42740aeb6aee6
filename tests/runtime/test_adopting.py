"""A loop of the user's own: survival, resuming and refusals, in real runs of small scripts."""

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = pytest.mark.process

LOOP = """
import sys
import torch, trimtab
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.GroupNorm(2, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)

def samples(positions):
    keyed = torch.Generator().manual_seed(positions.start)
    inputs = torch.randn(len(positions), 8, generator=keyed)
    return inputs, inputs[:, :3].argmax(1)

session = trimtab.adopt(model, optimizer, "loop.yaml", scheduler=scheduler)
for step in session.steps():
    for inputs, targets in step.microbatches(samples):
        valid = targets != 0  # ragged: another number of targets in every share
        losses = functional.cross_entropy(model(inputs), targets, reduction="none")
        step.backward((losses * valid).sum(), valid.sum())
    torch.rand(1)  # what the loop draws between steps belongs to no microbatch
    print("step", step.number, step.loss, step.grad_norm, step.is_applied, flush=True)
print("after the last step")
"""

JOB = """
run: loop
script: {file: loop.py}
train: {steps: 10, batch: 8, microbatch: 1, clip: 0.5}
orchestration: {devices: 4}
fault_tolerance: {shares: 4, checkpoint: {every: 3}}
"""


@pytest.fixture(scope="module", autouse=True)
def _scripts(workplace: Path) -> None:
    (workplace / "loop.py").write_text(LOOP, encoding="utf-8")
    (workplace / "loop.yaml").write_text(JOB, encoding="utf-8")


@pytest.fixture(scope="module")
def undisturbed(trimtab: Trimtab, _scripts: None) -> Ran:
    """Four ranks, nothing goes wrong."""
    return trimtab("run", "loop.yaml", "--json")


def assert_same(ran: Ran, reference: Ran) -> None:
    assert ran.document["state"] == "done"
    assert ran.document["weights_sha256"] == reference.document["weights_sha256"]
    assert ran.document["loss"] == reference.document["loss"]


def printed(ran: Ran, rank: int, incarnation: int = 0) -> list[list[str]]:
    """What a rank's loop said of each step: number, loss, norm, whether it was applied."""
    log = (ran.folder / "logs" / f"rank-{rank}-{incarnation}.log").read_text(encoding="utf-8")
    return [line.split()[1:] for line in log.splitlines() if line.startswith("step ")]


def test_one_rank_gives_the_same_bits(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Who tries a loop on a laptop must train the model that the cluster trains."""
    assert_same(trimtab("run", "loop.yaml", "--json", "--set", "orchestration.devices=1"), undisturbed)


@pytest.mark.slow
def test_another_seed_gives_other_weights(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Equal hashes prove something only if different runs differ: here by the masks of dropout."""
    ran = trimtab("run", "loop.yaml", "--json", "--set", "train.seed=1")
    assert ran.document["weights_sha256"] != undisturbed.document["weights_sha256"]


@pytest.mark.parametrize(
    "phase",
    [
        "compute",
        pytest.param("reduce", marks=pytest.mark.slow),
        pytest.param("gather", marks=pytest.mark.slow),
        "apply",
    ],
)
def test_a_kill_costs_no_step_and_no_bit(trimtab: Trimtab, undisturbed: Ran, phase: str) -> None:
    """The body of the inner loop runs again for the lost shares only; the body of the outer loop, once a step."""
    ran = trimtab("run", "loop.yaml", "--json", "--inject", f"kill:rank=1,step=5,phase={phase}")
    assert_same(ran, undisturbed)
    assert sorted(event["rank"] for event in ran.events("spawned")) == [0, 1, 2, 3], "nobody was restarted"
    steps = [int(words[0]) for words in printed(ran, 0)]
    assert steps == list(range(10))
    assert printed(ran, 0) == printed(undisturbed, 0)
    computed = Counter((event["step"], event["share"]) for event in ran.events("share"))
    repeated = {key: number for key, number in computed.items() if number > 1}
    assert set(repeated) <= {(5, 1)}, "only the share of the dead rank"


@pytest.mark.slow
def test_a_ragged_commit_is_healed(trimtab: Trimtab, undisturbed: Ran) -> None:
    """A rank that missed a step takes weights and momentum of its peers, and its loop hears what came out of the step."""
    ran = trimtab("run", "loop.yaml", "--json", "--inject", "disconnect:rank=1,step=5,phase=apply")
    assert_same(ran, undisturbed)
    assert [(event["behind"], event["step"]) for event in ran.events("healed")] == [(5, 6)]
    assert printed(ran, 1) == printed(undisturbed, 1)


@pytest.mark.slow
def test_a_replacement_joins_with_the_rates_of_its_step(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Its loop begins in the middle of the run: momentum comes from a peer, the scheduler is set to the step."""
    ran = trimtab(
        "run", "loop.yaml", "--json", "--inject", "kill:rank=1,step=2", "--inject", "slow:rank=0,step=3,factor=1000",
        "--set", "fault_tolerance.replace=true",
    )  # fmt: skip
    assert_same(ran, undisturbed)
    assert ran.events("formed")[-1]["members"] == [0, 1, 2, 3]
    joined = printed(ran, 1, 1)
    assert joined == printed(undisturbed, 1)[-len(joined) :]
    assert joined


def test_a_stopped_loop_goes_on_in_another_number_of_ranks(trimtab: Trimtab, undisturbed: Ran) -> None:
    """session.stop() saves as SIGTERM does, and the resumed run sees only the steps that are left."""
    stopped = trimtab("run", "stopping.yaml", "--json", check=143)
    assert stopped.document["state"] == "stopped"
    assert stopped.document["steps"] == 6
    name = stopped.document["run"]
    resumed = trimtab("resume", name, "--json", "--set", "orchestration.devices=2")
    assert_same(resumed, undisturbed)
    assert [words[0] for words in printed(resumed, 0, 1)] == ["6", "7", "8", "9"]


@pytest.fixture(autouse=True, scope="module")
def _stopping(workplace: Path) -> None:
    """The same loop, which stops itself the first time that it is at its sixth step."""
    script = LOOP.replace("loop.yaml", "stopping.yaml").replace(
        "    torch.rand(1)",
        "    if step.number == 4 and session.rank == 2:\n        session.stop()\n    torch.rand(1)",
    )
    (workplace / "stopping.py").write_text(script, encoding="utf-8")
    (workplace / "stopping.yaml").write_text(JOB.replace("loop", "stopping"), encoding="utf-8")


def test_time_outside_the_microbatches_is_waiting_for_the_host(trimtab: Trimtab, undisturbed: Ran) -> None:
    """The loop's own evaluations must not look like work of the run."""
    ledger = undisturbed.document["ledger"]
    assert ledger["classes"]["host_wait"] > 0
    assert ledger["unattributed_fraction"] < 0.02


MISTAKES = {
    "seeded apart": (
        "torch.manual_seed(0)",
        "import os; torch.manual_seed(int(os.environ['RANK']))",
        "initial weights (torch.manual_seed makes them equal) is",
    ),
    "another job": ("loop.yaml", "tiny.yaml", "`trimtab run tiny.yaml` starts it"),
    "left early": ("    torch.rand(1)", "    break", "the script ended before the run did"),
    "an error": (
        "    torch.rand(1)",
        "    torch.rand(1, 2) @ torch.rand(1, 2)",
        "RuntimeError: mat1 and mat2",
    ),
    "before adopt": (
        "import torch, trimtab",
        "import torch, trimtab, sys; sys.exit(2)",
        "exited with code 2",
    ),
}
"""What only a run can find: the line, what it is changed to, and what is said."""


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_the_run_at_once(trimtab: Trimtab, workplace: Path, mistake: str) -> None:
    """Each of these would train something else in silence, hang, or fail again after a restart."""
    line, wrong, words = MISTAKES[mistake]
    assert LOOP.count(line) == 1
    name = f"broken-{mistake.replace(' ', '-')}"
    script = LOOP.replace(line, wrong)
    if mistake != "another job":
        script = script.replace("loop.yaml", f"{name}.yaml")
    (workplace / f"{name}.py").write_text(script, encoding="utf-8")
    (workplace / f"{name}.yaml").write_text(JOB.replace("loop", name), encoding="utf-8")
    ran = trimtab("run", f"{name}.yaml", "--json", "--set", "orchestration.devices=2", check=None)
    assert ran.code == (1 if mistake in ("an error", "seeded apart") else 2), ran.stderr
    assert words in ran.document["error"]
    assert {event["incarnation"] for event in ran.events("spawned")} == {0}


@pytest.mark.slow
def test_shares_off_takes_batch_statistics(trimtab: Trimtab, workplace: Path) -> None:
    """The one way to train a network with BatchNorm: one part a rank, the backend's own sum."""
    script = LOOP.replace("nn.GroupNorm(2, 16)", "nn.BatchNorm1d(16)").replace("loop.yaml", "norm.yaml")
    job = JOB.replace("loop", "norm").replace("shares: 4", 'shares: "off"').replace("microbatch: 1, ", "")
    (workplace / "norm.py").write_text(script, encoding="utf-8")
    (workplace / "norm.yaml").write_text(job, encoding="utf-8")
    ran = trimtab("run", "norm.yaml", "--json", "--set", "orchestration.devices=2")
    assert ran.document["state"] == "done"


@pytest.mark.slow
def test_a_script_without_a_job_file_adopts_what_set_says(trimtab: Trimtab, workplace: Path) -> None:
    """`--set` alone is enough to try."""
    (workplace / "bare.py").write_text(LOOP.replace('"loop.yaml", ', ""), encoding="utf-8")
    sets = [f"train.{key}" for key in ("steps=3", "batch=8", "microbatch=2")]
    arguments = [word for key in (*sets, "orchestration.devices=2") for word in ("--set", key)]
    ran = trimtab("run", "--script", "bare.py", "--json", *arguments)
    assert (ran.document["state"], ran.document["steps"]) == ("done", 3)
    failed = trimtab("run", "--script", "bare.py", "--json", check=2)
    assert "set train.steps" in failed.document["error"]
