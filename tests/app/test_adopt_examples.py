"""The examples of adopted loops: how little is changed, and that each survives a kill with the same bits."""

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "adopt"


def test_a_plain_loop_is_adopted_in_under_ten_changed_lines() -> None:
    """The promise of docs/python.md, counted: lines that are written, and lines that go."""
    plain, adopted = (
        (EXAMPLES / name).read_text(encoding="utf-8").splitlines() for name in ("plain.py", "adopted.py")
    )
    difference = [line for line in difflib.ndiff(plain, adopted) if line[2:].strip()]
    written = [line for line in difference if line.startswith("+ ")]
    gone = [line for line in difference if line.startswith("- ")]
    assert 0 < len(written) < 10, written
    assert 0 < len(gone) < 10, gone
    shown = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert all(f"+{line[2:]}" in shown for line in written)
    assert all(f"-{line[2:]}" in shown for line in gone)


def ran(example: str, runs: Path, *arguments: str) -> dict[str, Any]:
    """The document of an example's run."""
    command = [sys.executable, "-m", "trimtab", "run", f"examples/adopt/{example}.yaml", "--json"]
    command += ["--set", f"orchestration.runs={runs}", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "example",
    [
        pytest.param("adopted", id="plain-loop"),
        pytest.param("vision", marks=pytest.mark.slow, id="vision"),
        pytest.param("transformers_gpt2", marks=pytest.mark.slow, id="transformers"),
    ],
)
def test_an_example_survives_a_kill_with_the_same_bits(example: str, tmp_path: Path) -> None:
    """The referee recomputes the hash of both runs from their weights, exported as safetensors."""
    undisturbed = ran(example, tmp_path, "--set", "orchestration.devices=2")
    kill = ("--set", "orchestration.devices=3", "--inject", "kill:rank=1,step=30,phase=reduce")
    killed = ran(example, tmp_path, *kill)
    assert [(loss["rank"], loss["steps_lost"]) for loss in killed["recoveries"]] == [(1, 0)]
    assert killed["weights_sha256"] == undisturbed["weights_sha256"]
    assert killed["ledger"]["unattributed_fraction"] < 0.02
    runs = [document["directory"] for document in (undisturbed, killed)]
    referee = subprocess.run(
        [sys.executable, "referee/same_bits.py", *runs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
        check=False,
    )
    assert referee.returncode == 0, referee.stdout + referee.stderr
    assert "1 hash of 2 runs" in referee.stdout
