"""A job file read from text, with its other files given as text too."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trimtab.spec import LoadedJob, load_job

MINIMAL = """\
run: tiny
model: {preset: gpt-3m}
data: {text: python-stdlib}
train: {steps: 10}
"""


@pytest.fixture
def minimal() -> str:
    """The smallest job file that is right."""
    return MINIMAL


@pytest.fixture
def load() -> Callable[..., LoadedJob]:
    """Reads a job file named run.yaml; `files` are the other files by path."""

    def load_text(text: str, *, files: Mapping[str, str] | None = None, **options: Any) -> LoadedJob:
        def read(path: str) -> str:
            if path not in (files or {}):
                raise FileNotFoundError(2, "No such file or directory")
            return (files or {})[path]

        return load_job(text, **{"source": "run.yaml", "read": read, **options})

    return load_text
