"""DeepSpeed settings turned into a job, and jobs into DeepSpeed settings."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from trimtab.spec import LoadedJob, load_job
from trimtab.spec.migration import Export, Exportable, Migration, Source
from trimtab.spec.migration.deepspeed import read_deepspeed, write_deepspeed

Import = Callable[..., Migration]


@pytest.fixture
def convert() -> Import:
    """Imports settings given as a mapping; what every configuration needs is added."""

    def run(settings: Mapping[str, Any], *, devices: int | None = 8) -> Migration:
        needed = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}
        text = json.dumps({**needed, **settings})
        return read_deepspeed(Source(text=text, name="ds.json", devices=devices))

    return run


@pytest.fixture
def convert_text() -> Import:
    """Imports a text as it is."""

    def run(text: str, *, devices: int | None = 8) -> Migration:
        return read_deepspeed(Source(text=text, name="ds.json", devices=devices))

    return run


@pytest.fixture
def job() -> Callable[..., LoadedJob]:
    """A small job with formulas, one an argument; keys as after --set, other batches than 32 among them."""

    def run(*formulas: str, keys: Sequence[str] = (), devices: int = 8) -> LoadedJob:
        lines = [
            "run: small",
            "model: {preset: gpt-3m}",
            "data: {text: python-stdlib}",
            "train: {steps: 100}",
            f"orchestration: {{devices: {devices}}}",
            "parallelism: |",
            *(f"  {formula}" for formula in formulas or ("MESH dp *",)),
        ]
        return load_job("\n".join(lines), source="job.yaml", overrides=keys, read=lambda path: "")

    return run


@pytest.fixture
def export(job: Callable[..., LoadedJob]) -> Callable[..., Export]:
    """That job as a DeepSpeed configuration."""

    def run(*formulas: str, keys: Sequence[str] = (), devices: int = 8) -> Export:
        loaded = job(*formulas, keys=keys, devices=devices)
        return write_deepspeed(Exportable(loaded=loaded, name="job.yaml"))

    return run
