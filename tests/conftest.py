"""What tests of several rooms share: running a job for real, as a user would."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A busy machine is not the code's fault: what hangs runs into the timeout of its test.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

TINY = """
run: tiny
model: {preset: gpt-3m, layers: 2, embed: 64, heads: 4, mlp: 128, dropout: 0.1}
data: {text: %(text)s, tokenizer: bytes, sequence: 32}
train:
  steps: 12
  batch: 8
  microbatch: 1
  optimizer: {adamw: {lr: 1e-2}}
  lr_schedule: {cosine: {warmup: 2}}
  clip: 0.5
orchestration: {devices: 4, runs: runs}
fault_tolerance: {shares: 4, checkpoint: {every: "off"}}
"""
"""LayerNorm, tied weights, dropout, clipping; ragged documents. Small, so that a run is little more than its start."""


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are as wide as in a file, whatever terminal the tests have; workers of xdist have 80 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices grow old, and what is said of them with them: the tests stay at 2026-11-30."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1796040000")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    cwd: Path

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on standard output."""
        parsed: dict[str, Any] = json.loads(self.stdout)
        return parsed

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.cwd / self.document["directory"]

    def events(self, kind: str, journal: str = "*") -> list[dict[str, Any]]:
        """The events of one kind in the run's journals, in order of file and line."""
        found = []
        for path in sorted((self.folder / "journal").glob(f"{journal}.jsonl")):
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [event for event in map(json.loads, lines) if event["event"] == kind]
        return found


Trimtab = Callable[..., Ran]


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small text and the tiny job, shared by all tests: its token cache is built once."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "text").mkdir()
    for number in range(12):
        words = " ".join(f"{number}:{i * i % 97}" for i in range(100 + 37 * number))
        (folder / "text" / f"{number}.txt").write_text(words, encoding="utf-8")
    (folder / "tiny.yaml").write_text(TINY % {"text": "text"}, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def trimtab(workplace: Path) -> Iterator[Trimtab]:
    """Run the command line in the workplace, and wait for it."""

    def run(*arguments: str, timeout: float = 90.0, check: int | None = 0) -> Ran:
        command = [sys.executable, "-m", "trimtab", *arguments]
        ended = subprocess.run(
            command,
            cwd=workplace,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=dict(os.environ),
            check=False,
        )
        ran = Ran(code=ended.returncode, stdout=ended.stdout, stderr=ended.stderr, cwd=workplace)
        assert check is None or ran.code == check, f"{command} gave {ran.code}\n{ran.stderr[-3000:]}"
        return ran

    return run
