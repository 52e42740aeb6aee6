"""Pages whose figures come from a script say what the script says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("script", "page"),
    [
        pytest.param(
            "examples/claims/claims.py",
            "docs/claims.md",
            marks=[pytest.mark.slow, pytest.mark.timeout(400)],  # plans of up to 2,048 devices are compiled
        ),
        ("examples/routes/routes.py", "docs/choosing-all-reduce.md"),
    ],
)
def test_the_page_shows_what_the_script_prints(script: str, page: str):
    """A figure that the model no longer gives is a claim of nobody's."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / script)], capture_output=True, text=True, timeout=380, check=False
    )
    assert ran.returncode == 0, ran.stderr
    shown = (ROOT / page).read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    assert ran.stdout == shown
