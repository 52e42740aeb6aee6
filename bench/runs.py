"""Runs of Trimtab and of its peers, made for measuring, and what they left behind."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEERS = Path(__file__).with_name("peers")

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A network and a batch; the same for Trimtab and its peers."""

    name: str
    layers: int
    embed: int
    heads: int
    mlp: int
    context: int
    batch: int
    """Samples of the global batch."""
    sequence: int
    """Tokens of a sample."""

    def network_options(self) -> list[str]:
        """As the peers' command lines take them."""
        names = ("layers", "embed", "heads", "mlp", "context", "batch", "sequence")
        return [word for name in names for word in (f"--{name}", str(getattr(self, name)))]


QUICKSTART = Size(
    name="quickstart", layers=4, embed=256, heads=8, mlp=1024, context=512, batch=32, sequence=128
)
SMALL = Size(name="small", layers=2, embed=128, heads=4, mlp=512, context=128, batch=16, sequence=64)
TINY = Size(name="tiny", layers=2, embed=64, heads=4, mlp=128, context=64, batch=8, sequence=32)
"""quickstart is ``gpt-3m`` as in examples/quickstart.yaml."""

_JOB = """
run: bench
model: {{preset: gpt-3m, layers: {layers}, embed: {embed}, heads: {heads}, mlp: {mlp}, context: {context}}}
data: {{text: text, tokenizer: bytes, sequence: {sequence}}}
train:
  steps: {steps}
  batch: {batch}
  optimizer: {{adamw: {{lr: 1e-3}}}}
  lr_schedule: {{cosine: {{warmup: 2}}}}
orchestration: {{devices: {devices}}}
fault_tolerance: {{shares: {shares}, checkpoint: {{every: "off"}}}}
"""


class Workplace:
    """A folder with a text, in which runs are made one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(
        self,
        size: Size,
        *,
        steps: int,
        devices: int,
        shares: str,
        environment: Mapping[str, str] | None = None,
    ) -> "tuple[subprocess.Popen[str], Path]":
        """Start a run; its process, in which the agent works, and the folder that it will be in."""
        job = _JOB.format(**vars(size), steps=steps, devices=devices, shares=shares)
        (self.folder / "job.yaml").write_text(job, encoding="utf-8")
        number = 1 + len(list((self.folder / "runs").glob("bench-*")))
        process = subprocess.Popen(
            [sys.executable, "-m", "trimtab", "run", "job.yaml", "--json"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        return process, self.folder / "runs" / f"bench-{number}"

    def run(
        self,
        size: Size,
        *,
        steps: int,
        devices: int,
        shares: str,
        environment: Mapping[str, str] | None = None,
    ) -> Path:
        """Make a run to its end; its folder.

        Raises: RuntimeError with what it said if it failed.
        """
        process, folder = self.start(
            size, steps=steps, devices=devices, shares=shares, environment=environment
        )
        _, stderr = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the run gave exit code {process.returncode}: {stderr[-3000:]}")
        return folder

    def run_job(self, job: str) -> Path:
        """Run a job file of this folder to its end; the run's folder.

        Raises: RuntimeError with what it said if it failed.
        """
        ended = subprocess.run(
            [sys.executable, "-m", "trimtab", "run", job, "--json"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"{job} gave exit code {ended.returncode}: {ended.stderr[-3000:]}")
        directory: str = json.loads(ended.stdout)["directory"]
        return self.folder / directory

    def peer(self, script: str, *arguments: str, ranks: int) -> Any:
        """Run a peer under torchrun to its end; the JSON document that its first rank wrote.

        Raises: RuntimeError with what it said if it failed.
        """
        out = self.folder / "peer.json"
        ended = subprocess.run(
            [*torchrun(ranks=ranks), str(PEERS / script), *arguments, "--out", str(out)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if ended.returncode:
            raise RuntimeError(f"{script} gave exit code {ended.returncode}: {ended.stderr[-3000:]}")
        return json.loads(out.read_text(encoding="utf-8"))


def torchrun(*, ranks: int, options: Sequence[str] = ()) -> list[str]:
    """The command line of torchrun on this machine, on a free port."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", *options,
    ]  # fmt: skip


@contextlib.contextmanager
def workplace(*, num_bytes: int = 20_000_000) -> Iterator[Workplace]:
    """A new folder with a text of Python's own sources, at most ``num_bytes`` long; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        write_text(folder / "text", num_bytes=num_bytes)
        yield Workplace(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_text(folder: Path, *, num_bytes: int) -> None:
    """The modules of the standard library's top folder, in order of name, until there are enough bytes."""
    folder.mkdir()
    written = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if written > num_bytes:
            return
        text = path.read_bytes()
        (folder / f"{path.stem}.txt").write_bytes(text)
        written += len(text)


def read_journal(path: Path) -> list[Event]:
    """The events of a journal; a line that is being written is left out. Empty if there is no such file yet."""
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in whole.splitlines()]


def events(run: Path, journal: str, kind: str) -> list[Event]:
    """The events of one kind in a journal of a run."""
    return [event for event in read_journal(run / "journal" / f"{journal}.jsonl") if event["event"] == kind]


def rank_events(run: Path, kind: str) -> list[Event]:
    """The events of one kind of the first rank, with those of a process that was replaced on the way."""
    journals = sorted((run / "journal").glob("rank-0-*.jsonl"))
    return [event for journal in journals for event in events(run, journal.stem, kind)]
