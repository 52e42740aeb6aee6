"""A class of the user's own that is stored in pieces: what explain says of it, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

CLASS = '''
from torch import nn


class Small(nn.Module):
    """An embedding, and two layers that are gathered one by one."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2)])

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return x @ self.table.weight.T
'''
JOB = """\
run: own
model: {module: "small_stored:Small"}
data: {text: python-stdlib, sequence: 32}
train: {steps: 4, batch: 8, microbatch: 1}
orchestration: {devices: 2}
parallelism: |
  MESH dp 2
  STORE params, grads, states OVER dp
fault_tolerance: {shares: 4}
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the class and its job."""
    (tmp_path / "small_stored.py").write_text(CLASS, encoding="utf-8")
    (tmp_path / "own.yaml").write_text(JOB, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_explain_tells_what_is_kept_and_sent(cli: Any, desk: Path) -> None:
    """Table 256 x 16; layers of 16 x 16 and a bias of 16, whose pieces of 8 are padded to 16."""
    assert desk.is_dir()
    found = json.loads(cli("explain", "own.yaml", "--json").out)
    storage = found["storage"]
    piece = 256 * 16 // 2 + 2 * (16 * 16 // 2 + 16)
    kept = {item["table"]: (item["held_bytes"], item["decided_by"]) for item in storage["tables"]}
    line = "own.yaml:8"
    assert kept == {"params": (4 * piece, line), "grads": (4 * piece, line), "states": (8 * piece, line)}
    assert storage["layers"] == 2
    assert storage["gathered_bytes"] == 4 * (256 * 16 + 16 * 16 + 32)
    # Two shares of two microbatches for each rank.
    sent = {item["operation"]: (item["times"], item["sent_bytes"]) for item in storage["transfers"]}
    table, layer = 4 * 256 * 16 // 2, 4 * (16 * 16 // 2 + 16)
    assert sent["all_gather"] == (4 + 2 * 4 * 2, 4 * table + 2 * 4 * 2 * layer)
    assert sent["all_to_all"] == (4 + 4 * 2, 4 * (table + 2 * layer))
    assert found["model"]["parameters"] == 256 * 16 + 2 * (16 * 16 + 16)
    assert found["on_loss"]["rule"] == "rollback"
    assert found["on_loss"]["limited_by"] == line


def test_the_text_says_what_is_not_known(cli: Any, desk: Path) -> None:
    """Bytes that are left out would otherwise count as nothing."""
    assert desk.is_dir()
    text = " ".join(cli("explain", "own.yaml").out.split())
    assert "each of 2 ranks params keeps 9.34 KB of 18.6 KB" in text
    assert "activations, and so the largest memory of a step, are not known" in text
    assert "the class is built whole, and then cut" in text


def test_the_page_shows_the_same(cli: Any, desk: Path) -> None:
    """Who opens the page must not read that nothing is known."""
    answer = cli("explain", "own.yaml", "--format", "html", "--out", "own.html")
    assert answer.code == 0
    page = (desk / "own.html").read_text(encoding="utf-8")
    assert "What each rank keeps" in page
    assert "hand gradients to who keeps them" in page
    assert "no figures per rank" not in page


def test_a_class_that_is_whole_is_explained_without_torch(cli: Any, desk: Path) -> None:
    """Its tables are asked of torch only where they decide something."""
    (desk / "small_stored.py").unlink()
    found = json.loads(cli("explain", "own.yaml", "--set", "parallelism=MESH dp 2", "--json").out)
    assert found["storage"] is None
    assert found["on_loss"]["rule"] == "exact"


@pytest.mark.parametrize(
    ("strategy", "devices", "reason"),
    [
        ("MESH dp 2; SPLIT mlp OVER dp", 2, "SPLIT mlp cannot be given to a class of your own"),
        ("MESH dp 2; STORE params OVER dp; RECOMPUTE activations", 2, "RECOMPUTE cannot be given to a class"),
        ("MESH dp 2; STORE states WHERE kind = 'head' OVER dp", 2, "no row of states matches"),
        (
            "MESH dp 2, tp 2; SPLIT batch OVER dp; STORE params OVER dp, tp",
            4,
            "ranks along 'tp' would all compute the same samples",
        ),
        (
            "MESH node 2, dp 2; SPLIT batch OVER node, dp; STORE params OVER dp",
            4,
            "tensors of a class of your own are stored over all ranks: node is missing",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused_at_its_line(
    cli: Any, desk: Path, strategy: str, devices: int, reason: str
) -> None:
    """Whoever writes the line for a network of the catalog tries it on a class next."""
    assert desk.is_dir()
    settings = ("--set", f"parallelism={strategy}", "--set", f"orchestration.devices={devices}")
    answer = cli("explain", "own.yaml", *settings)
    assert answer.code == 2
    assert reason in answer.err


def test_a_rule_that_needs_whole_ranks_is_refused(cli: Any, desk: Path) -> None:
    """Survivors have no pieces of a rank that is lost."""
    assert desk.is_dir()
    for verb in (("explain", "own.yaml"), ("run", "own.yaml", "--dry-run")):
        answer = cli(*verb, "--set", "fault_tolerance.on_loss=exact")
        assert answer.code == 2
        assert "rollback" in answer.err


def test_a_split_is_refused_before_the_run(cli: Any, desk: Path) -> None:
    """Before any process is started."""
    assert desk.is_dir()
    answer = cli("run", "own.yaml", "--dry-run", "--set", "parallelism=MESH dp 2; SPLIT mlp OVER dp")
    assert answer.code == 2
    assert "SPLIT mlp cannot be given to a class of your own" in answer.err
