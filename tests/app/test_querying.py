"""The verb ``query``, as a user calls it."""

import csv
import io
import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.app.spiking_run import JOB as SPIKING
from tests.app.spiking_run import SpikingRun
from trimtab.app.closed_database import ClosedDatabase
from trimtab.app.querying import find_subject
from trimtab.ledger.relations import RUN_SCHEMAS
from trimtab.plan.relations.every_relation import PLAN_SCHEMAS

LARGE = """\
run: large
model: {preset: llama3-405b}
data: {text: python-stdlib, sequence: 8192}
train: {steps: 10, batch: 512, compute: bf16}
orchestration: {devices: 512, cluster: 512xH100}
parallelism: |
  MESH pp 8, dp 8, tp 8 WITHIN node
  SPLIT heads, mlp, vocab OVER tp
  SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp
  SPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 16
  STORE params, grads, states OVER dp
  RECOMPUTE activations WHERE layer % 2 = 0
fault_tolerance: {shares: "off"}
"""


@pytest.fixture
def spiking(desk: Path) -> Path:
    folder = desk / "runs" / "spiking-1"
    SpikingRun(folder).write()
    return folder


def test_the_plan_of_a_job_is_asked(cli: Any) -> None:
    """The first thing that anybody tries."""
    answer = cli("query", "job.yaml", "SELECT axis, size, line FROM axes")
    assert answer.code == 0
    assert answer.out.splitlines() == ["axis  size  line", "dp       2  default"]


def test_json_is_one_document_on_standard_output(cli: Any) -> None:
    """Scripts read it without knowing what else is said."""
    answer = cli("query", "job.yaml", "SELECT rank, class FROM ranks", "--json")
    assert answer.document == {
        "columns": [{"name": "rank", "type": "BIGINT"}, {"name": "class", "type": "VARCHAR"}],
        "rows": [{"rank": 0, "class": "CPU"}, {"rank": 1, "class": "CPU"}],
    }


def test_the_question_can_come_from_standard_input(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long questions stand in files."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT count(*) AS n\nFROM ranks;\n"))
    assert cli("query", "job.yaml", "--format", "csv").out == "n\n2\n"


def test_set_changes_the_job_before_it_is_asked(cli: Any) -> None:
    """What would be, if."""
    answer = cli("query", "job.yaml", "SELECT count(*) AS n FROM ranks", "--set", "orchestration.devices=4")
    assert answer.out.split() == ["n", "4"]


def test_a_run_is_asked_by_its_name_and_by_its_folder(cli: Any, spiking: Path) -> None:
    """As with every verb that takes a run."""
    sql = "SELECT count(*) AS steps, max(duration_s) AS slowest FROM steps"
    for name in ("spiking-1", "spiking", "runs/spiking-1", str(spiking)):
        assert cli("query", name, sql).out.split() == ["steps", "slowest", "8", "4.5"]


def test_a_run_has_the_tables_of_its_plan(cli: Any, spiking: Path) -> None:
    """What was predicted, beside what was measured."""
    assert spiking.is_dir()
    answer = cli("query", "spiking", "SELECT count(DISTINCT rank) AS n FROM ranks JOIN laps USING (rank)")
    assert answer.out.split() == ["n", "2"]


def test_a_run_of_a_class_of_the_users_own_has_no_plan_and_says_so(cli: Any, spiking: Path) -> None:
    """Its shapes are known to torch only; its steps are not."""
    resolved = spiking / "resolved.yaml"
    text = SPIKING.replace("{preset: gpt-3m, layers: 2}", "{module: 'mine:Small'}")
    resolved.write_text(text, encoding="utf-8")
    assert cli("query", "spiking", "SELECT count(*) AS n FROM steps").out.split() == ["n", "8"]
    refused = cli("query", "spiking", "SELECT * FROM params")
    assert refused.code == 2
    assert "no table 'params' here: the plan of spiking-1 cannot be made" in refused.err
    assert "known to torch only" in refused.err


def test_set_is_refused_for_a_run(cli: Any, spiking: Path) -> None:
    """What a run did cannot be changed by asking."""
    assert spiking.is_dir()
    refused = cli("query", "spiking", "SELECT 1", "--set", "train.steps=5")
    assert (refused.code, refused.out) == (2, "")
    assert "what it did is done" in refused.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "SELECT 1"), "no run 'nothing'"),
        (("nothing.yaml", "SELECT 1"), "cannot read the job file"),
        (("job.yaml", "SELECT nme FROM params"), "Did you mean 'name'?"),
        (("job.yaml", "SELECT 1; SELECT 2"), "a second statement"),
        (("job.yaml", "COPY params TO 'x.csv'"), "does more than read"),
        (("job.yaml", "SELECT 1", "--format", "parquet"), "add --out FILE"),
        (("job.yaml", "SELECT 1", "--format", "csv", "--json"), "keep one of them"),
        (("job.yaml", "SELECT 1", "--out", "no/such/folder/x.csv"), "cannot write no/such/folder/x.csv"),
        (("job.yaml", "SELECT 1", "--format", "xml"), "xml"),
    ],
)
def test_wrong_input_ends_with_2_and_a_sentence(cli: Any, desk: Path, arguments: Any, said: str) -> None:
    """A traceback is for developers, and a wrong exit code lets a pipeline go on."""
    answer = cli("query", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert sorted(path.name for path in desk.iterdir()) == ["job.yaml"]


def test_a_strategy_that_cannot_hold_is_refused_at_its_line(cli: Any, desk: Path) -> None:
    """The same errors as everywhere else."""
    job = (desk / "job.yaml").read_text()
    (desk / "bad.yaml").write_text(
        f"{job}parallelism: |\n  MESH dp 2\n  STORE states OVER dp\n  STORE params OVER xp\n"
    )
    answer = cli("query", "bad.yaml", "SELECT 1")
    assert answer.code == 2
    assert "bad.yaml:" in answer.err
    assert "xp" in answer.err


def test_an_answer_goes_into_a_file_whose_name_tells_the_format(cli: Any, desk: Path) -> None:
    """One option instead of two."""
    sql = "SELECT name, numel FROM params ORDER BY numel DESC LIMIT 2"
    for suffix in ("csv", "json", "parquet", "txt"):
        answer = cli("query", "job.yaml", sql, "--out", f"out.{suffix}")
        assert (answer.code, answer.out) == (0, "")
        assert f"2 rows -> out.{suffix}" in answer.err
    rows = list(csv.reader(StringIO((desk / "out.csv").read_text())))
    assert rows[0] == ["name", "numel"]
    document = json.loads((desk / "out.json").read_text())
    assert [list(map(str, row.values())) for row in document["rows"]] == rows[1:]
    with duckdb.connect() as connection:
        found = connection.execute("FROM read_parquet($1)", [str(desk / "out.parquet")]).fetchall()
    assert [[name, str(numel)] for name, numel in found] == rows[1:]
    assert (desk / "out.txt").read_text().startswith("name ")
    assert {path.name for path in desk.iterdir()} == {
        "job.yaml",
        *(f"out.{s}" for s in ("csv", "json", "parquet", "txt")),
    }


def test_with_json_a_file_is_told_of_on_standard_output(cli: Any) -> None:
    """The one document of the verb."""
    answer = cli("query", "job.yaml", "SELECT 1 AS a", "--out", "out.csv", "--json")
    assert answer.document == {"file": "out.csv", "format": "csv", "rows": 1}


def test_a_question_that_fails_leaves_the_old_file(cli: Any, desk: Path) -> None:
    """Half an answer under the name of a whole one would be believed."""
    for suffix in ("csv", "parquet"):
        (desk / f"out.{suffix}").write_text("old")
        assert cli("query", "job.yaml", "SELECT nme FROM params", "--out", f"out.{suffix}").code == 2
        assert (desk / f"out.{suffix}").read_text() == "old"


def test_tables_are_listed_with_their_columns(cli: Any, spiking: Path) -> None:
    """Nobody knows them by heart."""
    assert spiking.is_dir()
    plan = [schema.name for schema in PLAN_SCHEMAS]
    run = [schema.name for schema in RUN_SCHEMAS]
    for subject, expected in (("job.yaml", plan), ("spiking", run + plan)):
        document = cli("query", subject, "--tables", "--json").document
        assert [table["name"] for table in document["tables"]] == expected
        assert all(column["meaning"] for table in document["tables"] for column in table["columns"])
    text = cli("query", "job.yaml", "--tables").out
    assert "\nranks: a rank\n  rank " in text
    assert "coordinate on the axis dp" in text


def test_every_column_can_be_named_without_quotes(cli: Any, spiking: Path) -> None:
    """A column that is a word of SQL would have to be quoted, and nobody would know why."""
    assert spiking.is_dir()
    subject = find_subject("spiking", ())
    for relation in subject.relations:
        names = ", ".join(column.name for column in relation.columns)
        sql = f"SELECT {names} FROM {relation.name} GROUP BY {names} ORDER BY {names}"
        ClosedDatabase(subject.relations).ask(sql)


def test_a_table_is_as_wide_as_the_terminal(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as wide as it needs where nobody looks, so that nothing is cut in a pipe."""
    sql = "SELECT name, kind, dims, shape, placements FROM params"
    assert "…" not in cli("query", "job.yaml", sql).out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = cli("query", "job.yaml", sql).out.splitlines()
    assert max(map(len, narrow)) <= 60


def test_a_reader_who_closes_the_pipe_ends_it_quietly(desk: Path) -> None:
    """`trimtab query … | head` is what people type."""
    assert desk.is_dir()
    command = f"{sys.executable} -m trimtab query job.yaml 'SELECT * FROM range(200000)' | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "  range\n"
    assert (ended.returncode, ended.stderr) == (0, "")


def test_no_other_verb_pays_for_the_database() -> None:
    """DuckDB takes a tenth of a second to load."""
    code = "import sys; from trimtab.app.cli import run_cli; run_cli(['--help']); sys.exit('duckdb' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0


def test_asking_needs_no_torch(desk: Path) -> None:
    """A laptop asks what a cluster would do."""
    assert desk.is_dir()
    code = "import sys; from trimtab.app.cli import run_cli; run_cli(['query', 'job.yaml', 'FROM axes']); sys.exit('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_plan_of_512_ranks_is_asked(desk: Path) -> None:
    """Compiled, made into tables, asked: a large plan is where people have questions."""
    (desk / "large.yaml").write_text(LARGE, encoding="utf-8")
    subject = find_subject("large.yaml", ())
    answer = ClosedDatabase(subject.relations).ask(
        "SELECT at_pp, max(param_bytes), sum(sent_off_node_bytes_per_step) FROM ranks GROUP BY at_pp ORDER BY at_pp"
    )
    assert [row[0] for row in answer.rows] == list(range(8))
