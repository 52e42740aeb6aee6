"""What must stay and what may be spoilt: the verbs ``checkpoints pin`` and ``mark``."""

from collections.abc import Callable
from dataclasses import replace

from trimtab.app.errors import RunStateError
from trimtab.app.output import print_document
from trimtab.app.run_folders import find_run
from trimtab.app.run_keys import keys_of
from trimtab.app.saved_places import saved_place
from trimtab.ledger.checkpoint_folders import folder_name
from trimtab.runtime.checkpoint.marks import Marks, change_marks
from trimtab.runtime.checkpoint.opened import OpenCheckpoint
from trimtab.terms import ExitCode, InputError


def pin_saved(text: str, step: int, *, is_removed: bool, is_json: bool) -> int:
    """Keep a checkpoint for good, or no more; returns the exit code.

    Raises: RunStateError if there is no such checkpoint; CheckpointError if it is not the run's.
    """

    def change(marks: Marks) -> Marks:
        return replace(marks, pinned=marks.pinned - {step} if is_removed else marks.pinned | {step})

    said = "is pinned no more" if is_removed else "stays"
    return _change(text, step, change, said, is_json=is_json)


def mark_saved(text: str, step: int, *, reason: str | None, is_clean: bool, is_json: bool) -> int:
    """Have a run pass over a checkpoint as suspect, or no more; returns the exit code.

    Raises: InputError if it is neither suspect nor clean, or both; else as ``pin_saved``.
    """
    if (reason is None) is not is_clean:
        raise InputError("say why it is suspect, by --suspect REASON, or that it is not, by --clean")

    def change(marks: Marks) -> Marks:
        others = {number: why for number, why in marks.suspect.items() if number != step}
        return replace(marks, suspect=others if reason is None else others | {step: reason})

    said = "is clean" if reason is None else f"is suspect: {reason}"
    return _change(text, step, change, said, is_json=is_json)


def _change(text: str, step: int, change: Callable[[Marks], Marks], said: str, *, is_json: bool) -> int:
    run = find_run(text)
    folder = saved_place(run) / folder_name(step)
    if not folder.exists():
        raise RunStateError(f"{run.name} has no checkpoint of step {step}")
    try:
        with OpenCheckpoint(folder, keys_of(run), is_opened=False):  # so that nobody prunes it just now
            marks = change_marks(run, change)
    except ValueError as error:
        raise InputError(str(error)) from error
    if is_json:
        print_document({"run": run.name, "pinned": sorted(marks.pinned), "suspect": dict(marks.suspect)})
    else:
        print(f"{folder.name} of {run.name} {said}")
    return ExitCode.DONE
