"""What is saved, is it whole, give it to others: the verbs ``checkpoints ls``, ``verify`` and ``export``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.app.errors import RunStateError
from trimtab.app.output import print_document, say
from trimtab.app.run_folders import CHECKPOINTS_FOLDER, find_run
from trimtab.ledger.manifests import FoundCheckpoint, step_of
from trimtab.runtime.checkpoint.store import (
    FileProblem,
    export_model,
    find_checkpoints,
    newest_complete,
    verify_checkpoint,
)
from trimtab.terms import ExitCode, InputError, format_bytes


def list_saved(text: str, *, is_json: bool) -> int:
    """Print the checkpoints of a run, oldest first, unfinished and torn ones with their reason."""
    folder = find_run(text)
    rows = [_row(found) for found in find_checkpoints(folder / CHECKPOINTS_FOLDER)]
    if is_json:
        print_document({"run": folder.name, "checkpoints": rows})
        return ExitCode.DONE
    for row in rows:
        print(_line(row))
    if not rows:
        say(f"{folder.name} has no checkpoint")
    return ExitCode.DONE


def verify_saved(text: str, *, is_json: bool) -> int:
    """Read every byte of every checkpoint of a run and name each file that is not whole; exit code 1 if any is not.

    A save that did not finish never counted as a checkpoint, so it is not looked into.
    """
    folder = find_run(text)
    root = folder / CHECKPOINTS_FOLDER
    names = [found.name for found in find_checkpoints(root) if step_of(found.name) is not None]
    problems = {name: verify_checkpoint(root / name) for name in names}
    if is_json:
        print_document(_verified_document(folder.name, problems))
    for name, files in problems.items() if not is_json else ():
        print(f"{name}: {'whole' if not files else 'NOT whole'}")
        for problem in files:
            print(f"  {problem}")
    if not names:
        say(f"{folder.name} has no checkpoint")
    return ExitCode.RUN_FAILED if any(problems.values()) else ExitCode.DONE


def export_saved(text: str, target: Path | None, *, is_json: bool) -> int:
    """Copy the weights of the newest whole checkpoint to a safetensors file; returns the exit code.

    Raises: RunStateError if there is no whole checkpoint; InputError if the file cannot be written.
    """
    folder = find_run(text)
    newest = newest_complete(folder / CHECKPOINTS_FOLDER)
    for warning in newest.warnings:
        say(f"warning: {warning}")
    if newest.folder is None:
        raise RunStateError(f"{folder.name} has no whole checkpoint to export")
    target = target or Path(f"{folder.name}-{newest.folder.name}.safetensors")
    try:
        export_model(newest.folder, target)
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror}; choose another place with --to"
        ) from error
    if is_json:
        print_document({"run": folder.name, "checkpoint": newest.folder.name, "file": str(target)})
    else:
        print(f"{newest.folder.name} of {folder.name} -> {target}")
    return ExitCode.DONE


def _verified_document(run: str, problems: Mapping[str, Sequence[FileProblem]]) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "is_whole": not files,
            "problems": [{"file": problem.file, "reason": problem.reason} for problem in files],
        }
        for name, files in problems.items()
    ]
    return {"run": run, "checkpoints": rows}


def _row(found: FoundCheckpoint) -> dict[str, Any]:
    return {
        "name": found.name,
        "step": found.step,
        "size_bytes": found.manifest.size_bytes if found.manifest else None,
        "is_complete": found.is_complete,
        "error": str(found.error) if found.error else None,
    }


def _line(row: Mapping[str, Any]) -> str:
    size = format_bytes(row["size_bytes"]) if row["size_bytes"] is not None else "-"
    return f"{row['name']:24}{size:>10}  {'complete' if row['is_complete'] else row['error']}"
