"""The torchrun engine: conformance, and what is its own."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.conformance import EngineConformance, launch
from trimtab.engines import load_engine
from trimtab.engines.errors import LaunchError
from trimtab.engines.torchrun.rank_records import RankJournals, broken_collective, first_cause, read_results
from trimtab.engines.torchrun.request import torchrun_request
from trimtab.ledger import RunRecords, account, encode_event, read_events


class TestTorchrunEngine(EngineConformance):
    engine = "torchrun"


def test_the_command_line_is_torchruns():
    """One rank per device, restarts and grace as the job allows them, and the run's folder for each rank."""
    assert torchrun_request(launch()).command() == (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        "--max-restarts",
        "7",
        "--shutdown-timeout",
        "30",
        "-m",
        "trimtab.runtime.elastic_worker",
        "/runs/q-1",
    )


def test_settings_are_left_for_the_ranks(tmp_path):
    """Ranks under torchrun have no ticket; they read the file, and learn with whom they must end."""
    torchrun_request(launch(tmp_path)).write_settings()
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["job"] == {"run": "q"}
    assert settings["launcher"] == {"pid": os.getpid(), "attempt": 1, "first_incarnation": 0}


def test_a_launch_that_fails_names_the_reason(tmp_path):
    """The journal says that the attempt is over, so that nobody takes the run for alive."""
    (tmp_path / "settings.json").mkdir()
    with pytest.raises(LaunchError, match="Is a directory"):
        load_engine("torchrun").run(launch(tmp_path), lambda kind, t_ns, fields: None)
    events = read_events((tmp_path / "journal" / "agent-1.jsonl").read_bytes())
    assert events[-1].fields["state"] == "failed"


def test_a_launch_that_fails_costs_nothing(tmp_path):
    """Devices are paid for once something runs on them; what could not be started is a bill of zero."""
    (tmp_path / "settings.json").mkdir()
    asked = replace(launch(tmp_path), device_price_usd_per_hour=8.8)
    with pytest.raises(LaunchError):
        load_engine("torchrun").run(asked, lambda kind, t_ns, fields: None)
    events = read_events((tmp_path / "journal" / "agent-1.jsonl").read_bytes())
    found = account(RunRecords(agents=[events], ranks={}, clocks={}))
    assert (found.allocated_ns, found.cost_usd) == (0, 0.0)


def test_journals_are_read_as_they_grow(tmp_path):
    """A line that is half written is read when it is whole; processes of earlier attempts are not heard."""
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "rank-0-1.jsonl").write_bytes(encode_event("commit", 1, step=0))
    path = folder / "rank-0-2.jsonl"
    line = encode_event("commit", 2, step=7)
    path.write_bytes(line[:9])
    journals = RankJournals(tmp_path, first_incarnation=2)
    assert not list(journals.news())
    path.write_bytes(line)
    (found,) = journals.news()
    assert (found.rank, found.incarnation, found.event.integer("step")) == (0, 2, 7)
    assert not list(journals.news())


def test_a_report_of_another_attempt_is_not_taken_for_this_one(tmp_path: Path):
    """A resumed run that is killed must not end with the success of the attempt before."""
    (tmp_path / "report.json").write_text('{"attempt": 1, "state": "done"}')
    assert read_results(tmp_path, 1) == {"attempt": 1, "state": "done"}
    assert read_results(tmp_path, 2) is None
    assert first_cause(tmp_path, 0) is None


def test_a_broken_collective_is_not_the_first_cause(tmp_path: Path):
    """The peer of a rank that failed may be quicker to write than the rank itself."""
    errors = tmp_path / "errors"
    errors.mkdir()
    echo = {"rank": 0, "step": 5, "phase": "reduce", "error": "all_to_all broke"}
    (errors / "attempt-3-collective.json").write_text(json.dumps(echo))
    assert first_cause(tmp_path, 3) is None
    (errors / "attempt-3.json").write_text(json.dumps({**echo, "rank": 1, "error": "ValueError: bad record"}))
    assert str(first_cause(tmp_path, 3)) == "rank 1 failed: ValueError: bad record"
    assert str(broken_collective(tmp_path, 3)) == "rank 0 failed: all_to_all broke"


@pytest.mark.process
@pytest.mark.parametrize("is_failed", [True, False])
def test_an_error_of_a_rank_is_not_paid_again(tmp_path: Path, is_failed: bool):
    """Torchrun starts all ranks again after any error; one that will come again must not cost another start of torch."""
    torchrun_request(launch(tmp_path)).write_settings()
    (tmp_path / "errors").mkdir()
    kind = "" if is_failed else "-collective"
    cause = {"rank": 1, "step": 5, "phase": "compute", "error": "ValueError: bad record"}
    (tmp_path / "errors" / f"attempt-0{kind}.json").write_text(json.dumps(cause))
    command = [sys.executable, "-X", "importtime", "-m", "trimtab.runtime.elastic_worker", str(tmp_path)]
    ended = subprocess.run(
        command, env={**os.environ, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}, timeout=60, check=False
    )
    assert ended.returncode == 1
    log = (tmp_path / "logs" / "rank-0-1.log").read_text()
    assert ("not started again: rank 1 failed: ValueError: bad record" in log) is is_failed
    if is_failed:
        assert not re.search(r"\|\s+torch$", log, re.MULTILINE), "it ended before torch was imported"
    assert "working_folder" in log or is_failed, "the other goes on, as far as these settings lead it"
