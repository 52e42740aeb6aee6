"""The verb ``resume``: go on with a run, in the same folder, with the constants that it began with."""

import os
from pathlib import Path

from trimtab.app.attempts import Wishes, run_attempt
from trimtab.app.errors import RunStateError
from trimtab.app.job_reading import read_job, say_warnings
from trimtab.app.run_folders import RESOLVED_FILE, find_run, is_alive, next_attempt, working_folder
from trimtab.app.runnable import refuse_what_cannot_run
from trimtab.ledger import flat_settings
from trimtab.spec import Job, LoadedJob
from trimtab.spec.injections import parse_injections
from trimtab.spec.resolved import plain_values
from trimtab.terms import InputError

_MAY_CHANGE = (
    "orchestration.",
    "parallelism",
    "fault_tolerance.",
    "train.steps",
    "train.epochs",
    "train.evaluate.",
    "data.cache",
)
"""Keys, or their beginnings, that a resumed run may have otherwise."""

_CONSTANTS = (
    "orchestration.threads",
    "fault_tolerance.shares",
    "fault_tolerance.checkpoint.sign",
    "fault_tolerance.checkpoint.to",
)
"""Keys under those beginnings that bits depend on, or what can be found and believed of what the run has saved."""


def resume_run(text: str, wishes: Wishes) -> int:
    """Continue a run from its newest checkpoint; returns the exit code.

    Raises: RunStateError if it is alive; InputError if an override would change a constant of the run.
    """
    folder = find_run(text).resolve()
    resolved = folder / RESOLVED_FILE
    loaded = read_job(str(resolved), wishes.overrides)
    say_warnings(loaded)
    refuse_what_cannot_run(loaded, is_resumed=True)
    injections = parse_injections(wishes.injections, devices=loaded.job.orchestration.devices)
    if is_alive(folder):
        raise RunStateError(f"{folder.name} is running; `trimtab stop {folder.name}` ends it")
    if wishes.overrides:
        refuse_changed_constants(read_job(str(resolved)).job, loaded.job)
        _keep_resolved(resolved, loaded, number=next_attempt(folder) - 1)
    os.chdir(working_folder(folder))
    return run_attempt(loaded, folder, injections, wishes)


def refuse_changed_constants(before: Job, after: Job) -> None:
    """Refuse a resumed job whose result would have other bits than the run that was begun.

    Raises: InputError naming every key, with both values.
    """
    old, new = flat_settings(plain_values(before)), flat_settings(plain_values(after))
    changed = [key for key in sorted(old | new) if old.get(key) != new.get(key) and not _may_change(key)]
    if changed:
        listed = "\n".join(f"  {key}: {old.get(key)} -> {new.get(key)}" for key in changed)
        raise InputError(
            f"a resumed run keeps its constants, and these would change:\n{listed}\nStart a new run."
        )


def _may_change(key: str) -> bool:
    return key.startswith(_MAY_CHANGE) and key not in _CONSTANTS


def _keep_resolved(resolved: Path, loaded: LoadedJob, *, number: int) -> None:
    """Put the job of the next attempt in place; the one that held until now stays beside it."""
    before = resolved.read_text(encoding="utf-8")
    resolved.with_name(f"resolved-{number}.yaml").write_text(before, encoding="utf-8")
    unfinished = resolved.with_name(f"{resolved.name}.tmp-{os.getpid()}")
    unfinished.write_text(loaded.resolved_yaml(), encoding="utf-8")
    unfinished.replace(resolved)
