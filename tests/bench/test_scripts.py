"""Every benchmark starts, measures and prints one JSON document."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = (
    "overhead",
    "layouts",
    "recovery",
    "checkpoint",
    "startup",
    "timers",
    "local_steps",
    "slow_network",
    "snapshots",
    "overlap",
    "search",
    "probed",
)
NEED_NAMESPACES = ("slow_network", "overlap")


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_measures_and_prints(name: str, tmp_path: Path) -> None:
    """A claim whose script does not run cannot be checked by anybody."""
    if name in NEED_NAMESPACES and (os.geteuid() != 0 or shutil.which("tc") is None):
        pytest.skip("network namespaces need root and iproute2")
    ran = subprocess.run(
        [sys.executable, str(BENCH / f"{name}.py"), "--quick", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert rows
    for row in rows:
        assert 0 < row["ratio"]["min"] <= row["ratio"]["median"] <= row["ratio"]["max"]
