"""What tests of pipelines share."""

import os
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[2] / "golden" / "plan" / "pipelines"


@pytest.fixture
def matches_golden():
    """Compares a text with a golden file; TRIMTAB_REGENERATE=1 writes the file instead."""

    def check(name, text):
        path = GOLDEN / name
        if os.environ.get("TRIMTAB_REGENERATE") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
