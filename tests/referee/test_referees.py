"""Referees stand outside the package, and each of them can fail."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trimtab.ledger import weights_digest

REFEREE = Path(__file__).parents[2] / "referee"
BREAKS = (
    "flipped-bit",
    "arrival-order",
    "nobody-survives",
    "one-nanosecond",
    "untimed-sleep",
    "share-twice",
    "stray-child",
    "two-histories",
    "a-step-back",
    "two-sides",
    "forged-checkpoint",
)


def _run(script: str, *arguments: str, timeout: float = 600.0) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(REFEREE / script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("path", sorted(REFEREE.glob("*.py")), ids=lambda path: path.name)
def test_no_referee_imports_the_package(path: Path) -> None:
    """A referee that used the package's own reader would repeat its mistakes."""
    imported = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported.append(node.module or "")
    allowed = {
        "numpy",
        "safetensors",
        *sys.stdlib_module_names,
        *(other.stem for other in REFEREE.glob("*.py")),
    }
    assert {name.partition(".")[0] for name in imported} <= allowed


def test_the_referees_hash_is_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two readings of one description: if they differ, the description is not what is written."""
    monkeypatch.syspath_prepend(str(REFEREE))
    from same_bits import weights_sha256

    tensors = {
        "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.float32([[-0.0]]),
        "c": np.zeros(0, np.float32),
    }
    save_file(tensors, tmp_path / "weights.safetensors")
    items = [(name, tensor.shape, memoryview(tensor.tobytes())) for name, tensor in tensors.items()]
    assert weights_sha256(tmp_path / "weights.safetensors") == weights_digest(items)


def test_a_referee_without_a_run_shows_nothing(tmp_path: Path) -> None:
    """A verdict of 'held' without a check would be worth nothing."""
    ran = _run("same_bits.py", str(tmp_path / "no-such-run"))
    assert ran.returncode == 1
    assert "NOT SHOWN" in ran.stdout


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BREAKS)
def test_each_referee_fails_on_its_planted_break(name: str) -> None:
    """A referee that cannot fail proves nothing when it holds."""
    ran = _run("planted.py", name)
    assert ran.returncode == 0, ran.stdout + ran.stderr
