"""The scores of predictions, and files of measured runs."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.catalog import published_runs

PLANNER = Path(__file__).parents[2] / "bench" / "planner.py"


def score(*arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [sys.executable, str(PLANNER), *arguments], capture_output=True, text=True, timeout=170, check=False
    )
    assert ran.returncode == expect, ran.stderr
    return ran


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Two sources, as somebody else would bring them."""
    chosen = [
        row for row in published_runs() if row["source"] in ("Narayanan21-SC21-T1", "BigScience-tr3m-V100")
    ]
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(chosen[0]))
        writer.writeheader()
        writer.writerows({**row, "source": f"{row['source']} elsewhere"} for row in chosen)
    return path


def test_published_runs_are_predicted_within_the_bars() -> None:
    document = json.loads(score("--json").stdout)
    sources = document["sources"]
    assert document["rows"] == 2376
    assert document["scored_rows"] >= 0.85 * document["rows"]
    assert document["time_error_pct"] <= 12
    assert max(of["time_error_pct"] for of in sources.values() if of["scored_rows"]) <= 20
    for name in ("Narayanan21-SC21-T1", "BigScience-tr11-A100", "vTrain-single-node"):
        assert sources[name]["time_error_pct"] <= 8
    assert sources["vTrain-single-node"]["ranked_groups"] == 120
    assert sources["vTrain-single-node"]["regret_mean_pct"] <= 2
    assert document["memory_rows"] == 171
    assert document["memory_error_pct"] <= 10
    assert document["out_of_memory"]["predicted"] >= 0.9 * document["out_of_memory"]["rows"]
    assert document["fitting"]["predicted_out_of_memory"] <= 0.05 * document["fitting"]["rows"]
    assert 80 <= document["interval_covers_pct"] <= 95
    assert document["interval_half_width_pct"] <= 15


def test_a_file_is_scored_row_by_row(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    printed = score("--rows", str(rows), "--calibrate", "4", "--out", str(out)).stdout
    assert "Narayanan21-SC21-T1 elsewhere" in printed
    with out.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == [
        "row_id", "source", "measured_iter_time_s", "predicted_iter_time_s", "low", "high", "predicted_mem_gb",
        "verdict",
    ]  # fmt: skip
    assert len(found) == 37
    timed = [row for row in found if row["verdict"] == "calibration"]
    assert 8 <= len(timed) <= 16
    assert not any(row["predicted_iter_time_s"] for row in timed)
    for row in found:
        if row["verdict"] in ("ok", "oom"):
            assert 0 < float(row["low"]) < float(row["predicted_iter_time_s"]) < float(row["high"])
            assert float(row["predicted_mem_gb"]) > 0


def test_a_file_without_needed_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("row_id,source\n1,here\n")
    assert "columns that were not found: year, framework" in score("--rows", str(path), expect=2).stderr
    assert "No such file" in score("--rows", str(tmp_path / "none.csv"), expect=2).stderr
