"""The page about published claims says what the planner says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_the_script_prints():
    """A figure that the model no longer gives is a claim of nobody's."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples/claims/claims.py")],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    shown = page.split("```text\n")[1].split("```")[0]
    assert ran.stdout == shown
