"""Ending a run from outside, and going back in one: the verbs ``stop`` and ``rollback``."""

import os
import select
import signal
import time
from pathlib import Path

from trimtab.app.errors import RunStateError
from trimtab.app.job_reading import read_job
from trimtab.app.output import print_document, say
from trimtab.app.run_folders import (
    JOURNAL_FOLDER,
    RESOLVED_FILE,
    at_work,
    find_run,
    is_alive,
    lock_owner,
    next_attempt,
)
from trimtab.app.run_keys import keys_of
from trimtab.app.saved_places import saved_place
from trimtab.ledger import EventKind, encode_event
from trimtab.runtime.checkpoint.store import find_checkpoints, set_aside, verify_checkpoint
from trimtab.terms import ExitCode

_AFTER_GRACE_S = 15.0
"""How long the agent may take beyond the job's grace to end what is left and to write the report."""


def stop_run(text: str, *, is_json: bool) -> int:
    """Ask a run to end with a checkpoint, and wait until it has; returns the exit code.

    Raises: RunStateError if nobody is at work in it, or it does not end within its grace.
    """
    folder = find_run(text)
    grace_s = read_job(str(folder / RESOLVED_FILE)).job.orchestration.grace
    process = _open_agent(folder)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        say(f"asked {folder.name} to stop; it may take {grace_s:g} s to save")
        ended, _, _ = select.select([process], [], [], grace_s + _AFTER_GRACE_S)
    finally:
        os.close(process)
    if not ended:
        raise RunStateError(
            f"{folder.name} did not end within its grace of {grace_s:g} s; a second `trimtab stop` ends it by force"
        )
    if is_json:
        print_document({"run": folder.name, "directory": str(folder.resolve()), "state": "stopped"})
    return ExitCode.DONE


def roll_back(text: str, step: int, *, is_json: bool) -> int:
    """Make a run continue from the checkpoint of ``step``: newer ones are renamed, none is deleted.

    Raises: RunStateError if the run is alive, or has no whole checkpoint of that step, every byte read.
    """
    folder = find_run(text)
    root = saved_place(folder)
    with at_work(folder):
        found = find_checkpoints(root)
        complete = [checkpoint.step for checkpoint in found if checkpoint.is_complete]
        if step not in complete:
            listed = ", ".join(map(str, complete)) or "none"
            raise RunStateError(f"{folder.name} has no whole checkpoint of step {step}; whole ones: {listed}")
        if problems := verify_checkpoint(root / f"step-{step}", keys_of(folder)):
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise RunStateError(f"the checkpoint of step {step} is not whole; nothing was changed:\n{listed}")
        newer = [checkpoint.step for checkpoint in found if checkpoint.step > step]
        moved = [set_aside(root, number).name for number in newer if (root / f"step-{number}").exists()]
        _write_rollback(folder, step)
    if is_json:
        print_document(
            {"run": folder.name, "directory": str(folder.resolve()), "to_step": step, "set_aside": moved}
        )
    else:
        print(f"{folder.name} goes on from step {step}; `trimtab resume {folder.name}` starts it")
        for name in moved:
            print(f"  {name}")
    return ExitCode.DONE


def _open_agent(folder: Path) -> int:
    """A handle of the process at work in a run, which stays its own even if the number is used again.

    Who holds the run's lock wrote its process id into it. The lock is looked at before and after the handle
    is taken: if it was held at both times, the process behind the handle is the one that holds it.
    """
    pid = lock_owner(folder)
    if pid is None or not is_alive(folder):
        raise RunStateError(f"{folder.name} is not running")
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        raise RunStateError(f"{folder.name} is not running") from None
    if not is_alive(folder) or lock_owner(folder) != pid:
        os.close(process)
        raise RunStateError(f"{folder.name} ended just now")
    return process


def _write_rollback(folder: Path, step: int) -> None:
    """Tell the ledger that what was done after ``step`` is lost, in the journal of the newest attempt."""
    path = folder / JOURNAL_FOLDER / f"agent-{next_attempt(folder) - 1}.jsonl"
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(journal, encode_event(EventKind.ROLLBACK, time.monotonic_ns(), to_step=step))
    finally:
        os.close(journal)
