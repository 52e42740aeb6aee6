import json

from trimtab.app.reports import folder_report
from trimtab.app.run_folders import at_work
from trimtab.terms import RunState

KEYS = [
    "run", "directory", "state", "steps", "loss", "eval_loss", "tokens", "tokens_per_s", "weights_sha256",
    "recoveries", "ledger", "cost_usd", "error",
]  # fmt: skip


def test_a_report_has_the_keys_that_programs_read(cli, written_run):
    """They are the interface of `run --json`, `resume --json` and `report --json`."""
    written_run().attempt(1, range(3))
    document = cli("report", "quick-1", "--json").document
    assert list(document)[: len(KEYS)] == KEYS
    assert document["state"] == "done"
    assert document["steps"] == 3
    assert document["tokens"] == 3 * 1024
    assert document["tokens_per_s"] == 1024.0
    assert sum(document["ledger"]["classes"].values()) == document["ledger"]["allocated_ns"] == 2 * 3 * 10**9
    assert abs(document["cost_usd"] - 2 * 3 / 3600 * 2.0) < 1e-9


def test_two_attempts_are_one_run(cli, written_run):
    """Steps, time and money of all attempts, each step once."""
    written_run().attempt(1, range(3)).attempt(2, range(3, 5))
    document = cli("report", "quick-1", "--json").document
    assert document["steps"] == 5
    assert document["tokens"] == 5 * 1024
    assert document["ledger"]["allocated_ns"] == 2 * 5 * 10**9


def test_a_report_for_people_names_the_biggest_leak(cli, written_run):
    """What it cost, and what would close the largest part of it."""
    written_run().attempt(1, range(3))
    text = cli("report", "quick-1").out
    assert "biggest leak: compute_gap" in text
    assert "$0.0033" in text


def test_what_the_ranks_said_at_their_end_is_shown(written_run):
    """The weights' hash, and the held-out loss beside what token frequencies alone would give."""
    run = written_run().attempt(1, range(3))
    report = folder_report(run.folder, {"weights_sha256": "ab" * 32, "unigram_entropy": 3.2})
    assert report.document()["weights_sha256"] == "ab" * 32
    assert report.document()["unigram_entropy"] == 3.2
    assert "ab" * 32 in report.text()


def test_results_that_the_journal_kept_are_found_later(cli, written_run):
    """`report` after the terminal is closed says what `run` said."""
    written_run().attempt(1, range(3), weights_sha256="cd" * 32, unigram_entropy=3.1)
    document = cli("report", "quick-1", "--json").document
    assert document["weights_sha256"] == "cd" * 32
    assert document["unigram_entropy"] == 3.1


def test_a_run_whose_agent_was_killed_is_not_running(written_run):
    """It says failed, and why, instead of running for ever."""
    run = written_run().attempt(1, range(3), finished=False)
    report = folder_report(run.folder).report
    assert report.state is RunState.FAILED
    assert "without a word" in str(report.error)
    with at_work(run.folder):
        assert folder_report(run.folder).report.state is RunState.RUNNING


def test_a_run_without_any_record_is_reported(cli, written_run):
    """Between the folder and the first process there is a moment, and it is no traceback."""
    written_run()
    assert cli("report", "quick-1").code == 0
    assert cli("report", "quick-1", "--json").document["steps"] == 0


def test_a_torn_journal_is_read(cli, written_run):
    """A kill tears the last line, and nothing else."""
    run = written_run().attempt(1, range(3))
    with open(run.folder / "journal" / "rank-0-0.jsonl", "ab") as file:
        file.write(b'{"event":"commit","t_ns":12,"st')
    assert cli("report", "quick-1", "--json").document["steps"] == 3


def test_a_clock_file_that_was_only_just_made_is_passed_over(cli, written_run):
    """A process killed between making the file and filling it leaves it empty."""
    run = written_run().attempt(1, range(3))
    (run.folder / "clocks" / "rank-9-9.clock").touch()
    assert cli("report", "quick-1").code == 0


def test_compare_shows_settings_and_what_they_did(cli, written_run, desk):
    """The question after every second run."""
    written_run("quick-1").attempt(1, range(3))
    job = (desk / "job.yaml").read_text().replace("batch: 8", "batch: 16")
    written_run("quick-2", job).attempt(1, range(4))
    document = cli("compare", "quick-1", "quick-2", "--json").document
    assert {"key": "train.batch", "first": 8, "second": 16} in document["settings"]
    steps = next(outcome for outcome in document["outcomes"] if outcome["name"] == "steps")
    assert (steps["first"], steps["second"]) == (3, 4)
    assert "train.batch: 8 -> 16" in cli("compare", "quick-1", "quick-2").out


def test_numbers_that_are_not_finite_are_null_in_documents(cli, written_run):
    """Strict JSON: one NaN would make the whole document unreadable elsewhere."""
    run = written_run().attempt(1, range(3), weights_sha256=None, unigram_entropy=float("nan"))
    answer = cli("report", run.name, "--json")
    json.loads(answer.out, parse_constant=lambda name: 1 / 0)
    assert answer.document["unigram_entropy"] is None
