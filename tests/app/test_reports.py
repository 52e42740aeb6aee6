import json

import pytest

from trimtab.app.reports import folder_report, report_run, write_report
from trimtab.app.run_folders import at_work
from trimtab.ledger import encode_event
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


def test_what_was_said_at_the_end_is_found_later(cli, written_run):
    """`report` after the terminal is closed says what `run` said, as long as nothing was trained since."""
    run = written_run().attempt(1, range(3))
    write_report(run.folder, folder_report(run.folder, {"weights_sha256": "cd" * 32, "unigram_entropy": 3.1}))
    document = cli("report", "quick-1", "--json").document
    assert (document["weights_sha256"], document["unigram_entropy"]) == ("cd" * 32, 3.1)
    run.attempt(2, range(3, 4))
    assert cli("report", "quick-1", "--json").document["weights_sha256"] is None


def test_a_run_that_torchrun_started_is_reported_by_its_ranks(cli, written_run):
    """There was no agent: state and hash are what the first rank wrote."""
    run = written_run().attempt(1, range(3))
    (run.folder / "journal" / "agent-1.jsonl").unlink()
    written = {"state": "done", "steps": 3, "weights_sha256": "ef" * 32}
    (run.folder / "report.json").write_text(json.dumps(written))
    document = cli("report", "quick-1", "--json").document
    assert (document["state"], document["weights_sha256"]) == ("done", "ef" * 32)
    assert document["steps"] == 3


def test_a_report_file_that_is_damaged_is_passed_over(cli, written_run):
    """The journals tell the story without it."""
    run = written_run().attempt(1, range(3))
    for text in ("", "[]", '{"steps": 3'):
        (run.folder / "report.json").write_text(text)
        assert cli("report", "quick-1", "--json").document["steps"] == 3


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
    run = written_run().attempt(1, range(3))
    write_report(run.folder, folder_report(run.folder, {"unigram_entropy": float("nan")}))
    text = (run.folder / "report.json").read_text()
    assert json.loads(text, parse_constant=lambda name: 1 / 0)["unigram_entropy"] is None
    json.loads(cli("report", run.name, "--json").out, parse_constant=lambda name: 1 / 0)


HOUR_NS = 3600 * 10**9
MONTH_NS = 730 * HOUR_NS
STOPPED_NS = 1_793_448_000 * 10**9
"""The wall clock when the runs of these tests were stopped."""


@pytest.fixture
def reported(cli, capsys):
    """The document of `report`, so many nanoseconds after the run was stopped."""

    def ask(name, *, after_ns=0):
        capsys.readouterr()
        assert report_run(name, is_json=True, clock=lambda: STOPPED_NS + after_ns) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def priced(desk, storage):
    return (
        (desk / "job.yaml")
        .read_text()
        .replace(
            "price_usd_per_device_hour: 2.0",
            f"price_usd_per_device_hour: 2.0, storage_usd_per_gb_month: {storage}",
        )
    )


def keep(run, step, *, after_ns=0):
    """A checkpoint of a GB that was durable so long after the run was stopped."""
    run.checkpoint(step)
    return run.told("checkpoint", step=step, state="saved", bytes=10**9, unix_ns=STOPPED_NS + after_ns)


@pytest.mark.parametrize("is_released", [True, False])
def test_a_stopped_run_costs_no_more_however_late_it_is_asked_for(written_run, reported, is_released):
    """Nor does one whose agent was killed, and gave nothing back in writing."""
    written_run().attempt(1, range(3), finished=is_released, state="stopped")
    costs = [reported("quick-1", after_ns=hours * HOUR_NS)["cost_usd"] for hours in (0, 10, 14, 1000)]
    assert costs == [costs[0]] * 4
    assert costs[0] == pytest.approx(2 * 3 / 3600 * 2.0)


def test_what_is_kept_of_a_stopped_run_costs_on_in_a_line_of_its_own(desk, written_run, reported):
    """Ten hours later the devices cost what they cost, and the disk ten hours more."""
    keep(written_run(job=priced(desk, 7.3)).attempt(1, range(3), state="stopped"), 3)
    documents = [reported("quick-1", after_ns=hours * HOUR_NS) for hours in (0, 10, 20)]
    assert [one["storage"]["cost_usd"] for one in documents] == [0.0, pytest.approx(0.1), pytest.approx(0.2)]
    assert len({one["cost_usd"] for one in documents}) == 1
    for document in documents:
        assert sum(document["ledger"]["classes"].values()) == document["ledger"]["allocated_ns"]


def test_storage_is_listed_for_people_at_any_price(cli, desk, written_run):
    """The line is there if the disk is free, and if nobody has said what it costs."""
    keep(written_run("free-1", priced(desk, 0)).attempt(1, range(3)), 3)
    keep(written_run("open-1").attempt(1, range(3)), 3)
    assert "storage: 1 checkpoint of 1 GB kept" in cli("report", "free-1").out
    assert "$0.00 at $0 for" in " ".join(cli("report", "free-1").out.split())
    assert "no price known, see orchestration.storage_usd_per_gb_month" in " ".join(
        cli("report", "open-1").out.split()
    )


def test_checkpoints_that_a_user_has_removed_do_not_cost_on(desk, written_run, reported):
    """`rm -r` leaves no word in any journal; the folder tells."""
    run = written_run(job=priced(desk, 7.3)).attempt(1, range(3))
    keep(keep(run, 2), 3, after_ns=HOUR_NS)
    assert reported("quick-1", after_ns=MONTH_NS)["storage"]["checkpoints"] == 2
    for step in (2, 3):
        (run.folder / "checkpoints" / f"step-{step}").rename(desk / f"away-{step}")
    storage = reported("quick-1", after_ns=MONTH_NS)["storage"]
    assert (storage["bytes"], storage["gb_months"]) == (0, pytest.approx(1 / 730))


def test_checkpoints_elsewhere_are_looked_for_there(desk, written_run, reported):
    """A folder that the job names, under the name of the run."""
    job = priced(desk, 1).replace("checkpoint: {every: 2}", f"checkpoint: {{every: 2, to: {desk}/kept}}")
    run = keep(written_run(job=job).attempt(1, range(3)), 3)
    assert reported("quick-1", after_ns=HOUR_NS)["storage"]["checkpoints"] == 0
    (desk / "kept").mkdir()
    (run.folder / "checkpoints").rename(desk / "kept" / "quick-1")
    assert reported("quick-1", after_ns=HOUR_NS)["storage"]["checkpoints"] == 1


def test_an_object_store_is_not_asked(desk, written_run, reported):
    """A report must not wait for a network: the journals are believed."""
    job = priced(desk, 1).replace("checkpoint: {every: 2}", "checkpoint: {every: 2, to: s3://nowhere/x}")
    keep(written_run(job=job).attempt(1, range(3)), 3)
    assert reported("quick-1", after_ns=MONTH_NS)["storage"]["cost_usd"] == pytest.approx(1.0)


def test_what_a_rollback_sets_aside_is_paid_for_still(cli, desk, written_run, reported):
    """It is renamed and not deleted, so the bill has both."""
    run = keep(keep(written_run(job=priced(desk, 1)).attempt(1, range(6)), 2), 6)
    assert cli("rollback", "quick-1", "--to", "2").code == 0
    assert reported("quick-1", after_ns=MONTH_NS)["storage"]["bytes"] == 2 * 10**9
    assert (run.folder / "checkpoints" / "step-6.set-aside-1").is_dir()


def test_four_attempts_count_together_and_lost_minutes_stand_apart(cli, written_run):
    """Restarts cost what all attempts cost, once each; what the crashes threw away is not called useful."""
    minute = 60 * 10**9
    run = written_run()
    run.step_ns, first = minute, 0
    for number, minutes in enumerate((64, 74, 101, 35), start=1):
        run.attempt(number, range(first, first + minutes), finished=minutes == 35)
        first += minutes
        lost = first % 30 if minutes < 101 else 11
        if minutes != 35:
            first -= lost
            run.told("checkpoint", step=first, state="saved", bytes=8, unix_ns=1)
    document = cli("report", "quick-1", "--json").document
    ledger = document["ledger"]
    assert ledger["allocated_ns"] == 2 * 274 * minute
    assert ledger["classes"]["lost_work"] == 2 * (4 + 14 + 11) * minute
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]
    assert document["cost_usd"] == pytest.approx(2 * 274 / 60 * 2.0)
    text = cli("report", "quick-1").out
    assert "lost_work" in text


def test_a_crash_is_reported_with_its_loss_before_it_is_resumed(cli, written_run):
    """Two of three steps since the last checkpoint that was whole are gone: the report says so at once."""
    run = written_run().attempt(1, range(5), finished=False)
    run.told("checkpoint", step=3, state="saved", bytes=8, unix_ns=1)
    assert cli("report", "quick-1", "--json").document["ledger"]["classes"]["lost_work"] == 2 * 2 * 10**9


def test_a_run_that_got_no_device_costs_nothing(cli, written_run):
    """A request that failed for lack of capacity is a bill of zero, not one that nobody knows."""
    run = written_run()
    journal = run.folder / "journal" / "agent-1.jsonl"
    journal.write_bytes(
        encode_event("run", 0, run="quick-1", attempt=1, devices=list(range(100)), price_usd_per_hour=8.8)
        + encode_event("finished", 3600 * 10**9, state="failed", error="no capacity", weights_sha256=None)
    )
    document = cli("report", "quick-1", "--json").document
    assert (document["cost_usd"], document["ledger"]["allocated_ns"]) == (0.0, 0)
    assert "$0.00" in cli("report", "quick-1").out
