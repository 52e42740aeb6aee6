"""DeepSpeed settings turned into a job."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trimtab.spec.migration import Migration, Source
from trimtab.spec.migration.deepspeed import read_deepspeed

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
