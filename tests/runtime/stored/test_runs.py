"""Does a run of a class that is stored in pieces survive a loss, and go on whole, with the same bits?"""

from pathlib import Path

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = pytest.mark.process

CLASS = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(width, 3 * width + 1), nn.Linear(3 * width + 1, width)

    def forward(self, x):
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x)))))


class Small(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
ALL = "MESH dp 3; STORE params, grads, states OVER dp"
STATES = "MESH dp 2; STORE states OVER dp"


@pytest.fixture(scope="module")
def job(workplace: Path) -> str:
    """The tiny job with a class in place of the network, saved every four steps."""
    (workplace / "stored_class.py").write_text(CLASS, encoding="utf-8")
    text = (workplace / "tiny.yaml").read_text(encoding="utf-8")
    lines = [
        'model: {module: "stored_class:Small"}' if "model:" in line else line for line in text.splitlines()
    ]
    (workplace / "stored.yaml").write_text("\n".join(lines), encoding="utf-8")
    return "stored.yaml"


def run(trimtab: Trimtab, job: str, strategy: str, devices: int, *more: str, check: int = 0) -> Ran:
    """The job with a strategy."""
    return trimtab(
        "run", job, "--json", "--set", f'parallelism="{strategy}"', "--set", f"orchestration.devices={devices}",
        "--set", "fault_tolerance.checkpoint.every=4", *more, check=check,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(trimtab: Trimtab, job: str) -> Ran:
    """One rank that has everything."""
    return run(trimtab, job, "MESH dp 1", 1)


def assert_same(ran: Ran, reference: Ran) -> None:
    assert ran.document["state"] == "done"
    for key in ("weights_sha256", "loss", "eval_loss", "steps"):
        assert ran.document[key] == reference.document[key], key


@pytest.mark.parametrize("phase", ["compute", pytest.param("reduce", marks=pytest.mark.slow)])
def test_a_rank_with_a_third_of_everything_is_lost(
    trimtab: Trimtab, job: str, whole: Ran, phase: str
) -> None:
    """All go back to the newest checkpoint; three ranks share four shares; every waiting is on its clock.

    In the middle of computing, the others wait for parameters inside their own passes.
    """
    ran = run(trimtab, job, ALL, 3, "--inject", f"kill:rank=1,step=6,phase={phase}")
    assert_same(ran, whole)
    (recovery,) = ran.document["recoveries"]
    assert (recovery["rank"], recovery["steps_lost"]) == (1, 2)
    ledger = ran.document["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]
    assert ledger["unattributed_fraction"] <= 0.02


@pytest.mark.slow
def test_a_stored_run_goes_on_whole(trimtab: Trimtab, job: str, whole: Ran) -> None:
    """Killed inside an update once, before the first checkpoint; then ended by a loss too many, and resumed."""
    ended = run(
        trimtab, job, STATES, 2, "--inject", "kill:rank=1,step=2,phase=gather", "--inject",
        "kill:rank=0,step=6,phase=compute", "--set", "fault_tolerance.restarts.node_loss=1", check=1,
    )  # fmt: skip
    assert ended.document["state"] == "failed"
    ran = trimtab(
        "resume", ended.document["run"], "--json", "--set", 'parallelism="MESH dp 1"', "--set",
        "orchestration.devices=1",
    )  # fmt: skip
    assert_same(ran, whole)


@pytest.mark.slow
def test_a_whole_run_goes_on_in_pieces(trimtab: Trimtab, job: str, whole: Ran) -> None:
    """The other way round, into three pieces."""
    ended = run(
        trimtab, job, "MESH dp 1", 1, "--inject", "kill:rank=0,step=6,phase=compute", "--set",
        "fault_tolerance.restarts.node_loss=0", check=1,
    )  # fmt: skip
    ran = trimtab(
        "resume", ended.document["run"], "--json", "--set", f'parallelism="{ALL}"', "--set",
        "orchestration.devices=3",
    )  # fmt: skip
    assert_same(ran, whole)
