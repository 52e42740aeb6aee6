import json
from dataclasses import replace

import pytest

from trimtab.ledger.errors import JournalError
from trimtab.ledger.recoveries import recoveries_of
from trimtab.ledger.report import run_report
from trimtab.terms import LedgerClass, RunState

MS = 10**6


def test_the_document_is_what_run_json_promises(eventful, matches_golden):
    """Scripts read these keys: they must not change by accident."""
    document = run_report(eventful.records(), directory="runs/quickstart-7").document()
    matches_golden("eventful.json", json.dumps(document, indent=2, allow_nan=False) + "\n")


def test_the_classes_of_the_document_are_the_allocated_time(eventful):
    """Who adds the classes up must get the bill."""
    ledger = run_report(eventful.records(), directory="r").document()["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]
    assert set(ledger["classes"]) == {*LedgerClass, "lost_work"}


def test_tokens_count_once_and_time_counts_always(book):
    """A run that repeats steps is slower, not richer in tokens."""
    book.begin([0])
    for step in (1, 2, 1, 2, 3):
        book.now += 10**9
        book.step(0, step)
        book.tell(0, "commit", step=step, loss=1.0, tokens=100)
    report = run_report(book.records(), directory="r")
    assert (report.steps, report.tokens, report.tokens_per_s) == (3, 300, 60.0)


def test_a_loss_that_is_not_finite_is_null(book):
    """The last loss of a diverged run must not break the JSON, nor be an older one."""
    book.begin([0])
    book.tell(0, "commit", step=1, loss=1.0)
    book.tell(0, "commit", step=2, loss=float("nan"))
    assert run_report(book.records(), directory="r").loss is None


def test_a_run_without_a_step_has_a_report(book):
    """A run that failed at once is reported, not a second failure."""
    book.attempt(["d0"])
    book.say("finished", state="failed", weights_sha256=None, error="no such file")
    report = run_report(book.records(), directory="r")
    assert (report.state, report.steps, report.tokens_per_s, report.error) == (
        "failed",
        0,
        None,
        "no such file",
    )


def test_a_run_in_progress_is_running(eventful):
    """A report may be asked for at any time."""
    records = eventful.records()
    records = replace(records, agents=[*records.agents[:-1], records.agents[-1][:-4]])
    assert run_report(records, directory="r").state is RunState.RUNNING


def test_no_records_at_all_give_an_empty_report(book):
    """A folder whose agent died before its first event."""
    report = run_report(book.records(), directory="r")
    assert (report.run, report.steps, report.account.allocated_ns) == ("", 0, 0)


def test_an_unknown_state_is_named(book):
    """A journal of a newer writer."""
    book.attempt([])
    book.say("finished", state="splendid")
    with pytest.raises(JournalError, match="'splendid', not one of running, done, failed, stopped"):
        run_report(book.records(), directory="r")


def fail_at(book, step, *, rank=1, cause="killed"):
    """A fault 30 ms ago."""
    book.now += 30 * MS
    book.fault(rank, step, fault_ns=book.now - 30 * MS, cause=cause)


def commit(book, step, after_ms=10):
    book.now += after_ms * MS
    book.tell(0, "commit", step=step, loss=1.0)


def test_a_recovery_runs_from_the_fault_to_the_next_commit(book):
    """The numbers that a user compares with a restart."""
    book.begin([0, 1])
    commit(book, 1)
    fail_at(book, 2)
    commit(book, 2)
    commit(book, 3)
    (recovery,) = recoveries_of(book.records())
    assert (recovery.step, recovery.rank, recovery.cause) == (2, 1, "killed")
    assert (recovery.detect_s, recovery.resumed_s, recovery.steps_lost) == (0.03, 0.04, 0)


def test_a_commit_between_fault_and_declaration_is_no_resumption(book):
    """The step before may be committed while its peer is dying."""
    book.begin([0, 1])
    book.now = 100 * MS
    book.tell(0, "commit", step=1, loss=1.0)
    book.now = 130 * MS
    book.fault(1, 2, fault_ns=90 * MS)
    commit(book, 2, after_ms=70)
    assert recoveries_of(book.records())[0].resumed_s == 0.11


def test_a_commit_that_is_told_late_is_no_resumption(book):
    """The step was applied before; nothing has been trained since."""
    book.begin([0, 1])
    commit(book, 1)
    fail_at(book, 2)
    book.now += 10 * MS
    book.tell(1, "commit", step=2, loss=1.0, is_late=True)
    assert recoveries_of(book.records())[0].resumed_s is None
    commit(book, 3)
    assert recoveries_of(book.records())[0].resumed_s == 0.05


def test_a_commit_before_the_agent_has_written_the_fault_down_counts(book):
    """The agent acts first and writes after: training may be on again by then."""
    book.begin([0, 1])
    commit(book, 2, after_ms=140)
    book.now = 150 * MS
    book.say("fault", rank=1, step=2, cause="killed", t_fault_ns=90 * MS, t_declared_ns=130 * MS)
    commit(book, 3, after_ms=50)
    assert recoveries_of(book.records())[0].resumed_s == 0.05


def test_two_faults_at_once_share_the_commit_and_count_lost_steps_once(book):
    """Two ranks die together: the steps are lost once."""
    book.begin([0, 1, 2])
    for step in range(1, 6):
        commit(book, step)
    fail_at(book, 6, rank=1)
    fail_at(book, 6, rank=2)
    book.say("rollback", to_step=3)
    commit(book, 4)
    assert [(fault.resumed_s, fault.steps_lost) for fault in recoveries_of(book.records())] == [
        (0.07, 0),
        (0.04, 2),
    ]


def test_a_rollback_that_a_user_asks_for_is_no_faults_doing(book):
    """A fault that was survived long ago must not be blamed."""
    book.begin([0, 1])
    fail_at(book, 1)
    commit(book, 1)
    commit(book, 2)
    book.begin([0])
    book.say("rollback", to_step=1)
    assert recoveries_of(book.records())[0].steps_lost == 0


def test_steps_lost_in_a_crash_are_counted_once_over_two_resumes(book):
    """The second resume crashes before its first step: it has lost nothing more."""
    book.begin([0])
    for step in range(1, 13):
        commit(book, step)
    fail_at(book, 13, rank=0)
    book.begin([0])
    book.say("rollback", to_step=10)
    fail_at(book, 11, rank=0)
    book.begin([0])
    book.say("rollback", to_step=10)
    commit(book, 11)
    first, second = recoveries_of(book.records())
    assert (first.steps_lost, second.steps_lost) == (2, 0)
    assert first.resumed_s == pytest.approx(0.07)


def test_after_a_reboot_nobody_knows_how_long_it_took(book):
    """Times of two boots are unrelated; a wrong figure would be worse than none."""
    book.begin([0], boot="a")
    fail_at(book, 1, rank=None, cause="loss is nan")
    book.now = 0
    book.begin([0], boot="b")
    commit(book, 1)
    (recovery,) = recoveries_of(book.records())
    assert (recovery.rank, recovery.resumed_s) == (None, None)


def test_a_resume_from_an_older_checkpoint_loses_steps(book):
    """A crash that took the run back must not read as one that cost nothing."""
    book.begin([0])
    for step in range(1, 13):
        commit(book, step)
    fail_at(book, 13, rank=0)
    book.begin([0])
    commit(book, 11)
    (recovery,) = recoveries_of(book.records())
    assert (recovery.steps_lost, recovery.resumed_s) == (2, 0.04)
