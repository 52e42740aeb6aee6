"""What the tests of the command line share: a folder with a job, and runs whose records are written by hand."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from trimtab.app.cli import run_cli
from trimtab.ledger import CLOCK_FILE_BYTES, ClockFile, encode_event
from trimtab.ledger.manifests import FileEntry, Manifest, Part, manifest_document, seal
from trimtab.runtime.checkpoint.tensorfile import header_of
from trimtab.spec import load_job
from trimtab.terms import Clock

JOB = """\
run: quick
model: {preset: gpt-3m, layers: 2}
data: {text: python-stdlib}
train: {steps: 6, batch: 8}
orchestration: {devices: 2, price_usd_per_device_hour: 2.0}
fault_tolerance: {shares: 4, checkpoint: {every: 2}}
"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The working folder of a user, with a job file in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


@pytest.fixture
def cli(desk, capsys):
    """Run a command in this process; verbs that start ranks are tested from outside."""

    def call(*arguments):
        capsys.readouterr()
        code = run_cli(list(arguments))
        said = capsys.readouterr()
        return Answer(code=code, out=said.out, err=said.err)

    return call


class WrittenRun:
    """A run as agent and ranks would have left it: two ranks, one second of compute a step unless ``step_ns`` is changed."""

    def __init__(self, folder: Path, job=JOB):
        self.folder = folder
        self.step_ns = 1_000_000_000
        self.now_ns = 1_000_000_000
        self._number = 0
        for part in ("journal", "clocks", "checkpoints"):
            (folder / part).mkdir(parents=True)
        loaded = load_job(job, source="job.yaml", read=lambda path: "")
        (folder / "resolved.yaml").write_text(loaded.resolved_yaml())
        (folder / "run.json").write_text(json.dumps({"working_folder": str(folder.parent.parent)}))

    @property
    def name(self):
        return self.folder.name

    def attempt(self, number, steps, *, finished=True, **ending):
        """An attempt that commits ``steps`` (from 0), and whose agent may die before it says so."""
        agent = self.folder / "journal" / f"agent-{number}.jsonl"
        price = {"run": self.name, "attempt": number, "devices": [0, 1], "price_usd_per_hour": 2.0, "pid": 1}
        self._say(agent, "run", **price)
        buffers, clocks = {}, {}
        for rank in (0, 1):
            self._say(agent, "allocated", device=rank)
            self._say(agent, "spawned", device=rank, rank=rank, incarnation=self._number, pid=100 + rank)
            buffers[rank] = bytearray(CLOCK_FILE_BYTES)
            clocks[rank] = ClockFile(buffers[rank], clock=Clock.COMPUTE, now_ns=self.now_ns)
            self._say(self._journal(rank), "peak", flops_per_s=1e12)
        for step in steps:
            start_ns, self.now_ns = self.now_ns, self.now_ns + self.step_ns
            for rank in (0, 1):
                times = {"start_ns": start_ns, "end_ns": self.now_ns, "clocks": clocks[rank].lap(self.now_ns)}
                self._say(
                    self._journal(rank),
                    "step",
                    step=step,
                    epoch=1,
                    tokens=512,
                    targets=512,
                    flops=10**9,
                    **times,
                )
            metrics = {"loss": 3.0 - step / 10, "grad_norm": 1.0, "lr": 1e-3, "tokens": 1024, "targets": 1024}
            self._say(self._journal(0), "commit", step=step, **metrics)
        if finished:
            for rank in (0, 1):
                self._say(agent, "exited", rank=rank, incarnation=self._number, device=rank, code=0, signal=0)
                self._say(agent, "released", device=rank)
            self._say(agent, "finished", **{"state": "done", "error": None, **ending})
        for rank in (0, 1):
            (self.folder / "clocks" / f"rank-{rank}-{self._number}.clock").write_bytes(bytes(buffers[rank]))
        self._number += 1
        return self

    def told(self, kind, **fields):
        """What the lead rank of the last attempt writes down after its last step."""
        path = self.folder / "journal" / f"rank-0-{self._number - 1}.jsonl"
        self._say(path, kind, **fields)
        return self

    def checkpoint(self, step, shapes=(("weight", (4, 2)),)):
        """A whole checkpoint; of one tensor unless shapes say otherwise, every byte the step."""
        folder = self.folder / "checkpoints" / f"step-{step}"
        folder.mkdir()
        files, parts = [], []
        size_bytes = sum(4 * math.prod(shape) for _, shape in shapes)
        for file, part, prefix in (
            ("model.safetensors", "parameters", ""),
            ("optimizer.safetensors", "exp_avg", "exp_avg/"),
        ):
            header, _ = header_of([(prefix + name, shape) for name, shape in shapes])
            contents = header + bytes([step % 256]) * size_bytes
            (folder / file).write_bytes(contents)
            digest = hashlib.sha256(contents).hexdigest()
            files.append(FileEntry(name=file, size_bytes=len(contents), sha256=digest))
            parts.append(Part(name=part, file=file, num_tensors=len(shapes), size_bytes=size_bytes))
        document = seal(
            manifest_document(Manifest(step=step, files=tuple(files), parts=tuple(parts), version=(1, 0)))
        )
        (folder / "manifest.json").write_text(json.dumps(document))
        return self

    def _journal(self, rank):
        return self.folder / "journal" / f"rank-{rank}-{self._number}.jsonl"

    def _say(self, journal, kind, **fields):
        with open(journal, "ab") as file:
            file.write(encode_event(kind, self.now_ns, **fields))


@pytest.fixture
def written_run(desk):
    """Makes runs in the desk's folder of runs."""

    def make(name="quick-1", job=JOB):
        return WrittenRun(desk / "runs" / name, job)

    return make
