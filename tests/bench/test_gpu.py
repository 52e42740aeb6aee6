"""The scripts for accelerators run in their smallest form on a CPU: on the day that there is one they must not be broken."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GPU = Path(__file__).parents[2] / "bench" / "gpu"


def _document(script: str, folder: Path, *more: str) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, str(GPU / script), "--size", "smallest", "--device", "cpu", "--json", *more],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_decoder_is_measured_beside_a_loop_of_torch(tmp_path: Path) -> None:
    """Speed, memory and MFU of ours, of the peer, and of the peer by kernel of attention."""
    document = _document(
        "decoder.py", tmp_path, "--pairs", "1", "--steps", "5", "--accelerator", "H100-SXM-80GB"
    )
    assert [row["name"] for row in document["rows"]] == 2 * ["replicas / torch", "chunks / torch"]
    for row in document["rows"]:
        assert 0 < row["ratio"]["min"] <= row["ratio"]["median"] <= row["ratio"]["max"]
    assert set(document["mfu"]) == {"replicas", "chunks", "torch"}
    assert all(0 < share < 1 for share in document["mfu"].values())
    assert document["attention_tokens_per_s"]["math"] > 0


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_bits_are_compared(tmp_path: Path) -> None:
    """Again, through a death, and with logits in chunks."""
    document = _document("same_bits.py", tmp_path)
    assert document["equal"] == {"again": True, "killed in step 5": True, "logits in chunks, again": True}
