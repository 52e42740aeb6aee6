"""The fuzz of the language starts, tries texts and prints one JSON document."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "fuzz_language.py"


@pytest.mark.slow
@pytest.mark.process
def test_it_tries_both_halves_and_finds_no_bug(tmp_path: Path) -> None:
    """A claim whose script does not run cannot be checked by anybody."""
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", "--processes", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    document = json.loads(ran.stdout)
    assert document["failures"] == []
    assert document["noise"]["inputs"] == document["programs"]["inputs"] == document["inputs"] / 2
    assert 0 < document["programs"]["accepted"] < document["programs"]["inputs"]
