"""What is saved, is it whole, give it to others: the verbs ``checkpoints ls``, ``verify`` and ``export``."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.app.errors import RunStateError
from trimtab.app.export_formats import ExportFormat
from trimtab.app.job_reading import read_job
from trimtab.app.output import print_document, say
from trimtab.app.run_folders import (
    RESOLVED_FILE,
    at_work,
    find_run,
    working_folder,
)
from trimtab.app.run_keys import keys_of
from trimtab.app.saved_places import saved_place
from trimtab.ledger.checkpoint_folders import FoundCheckpoint, step_of
from trimtab.runtime.checkpoint.keyring import Keyring, find_key
from trimtab.runtime.checkpoint.marks import Marks, read_marks
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.rewrapping import rewrap
from trimtab.runtime.checkpoint.store import (
    FileProblem,
    find_checkpoints,
    newest_complete,
    verify_checkpoint,
)
from trimtab.terms import ExitCode, InputError, WeightType, format_bytes


def list_saved(text: str, *, is_json: bool) -> int:
    """Print the checkpoints of a run, oldest first, unfinished and torn ones with their reason."""
    folder = find_run(text)
    try:
        marks = read_marks(folder)
    except ValueError as error:
        raise InputError(str(error)) from error
    rows = [_row(found, marks) for found in find_checkpoints(saved_place(folder))]
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
    root = saved_place(folder)
    names = [found.name for found in find_checkpoints(root) if step_of(found.name) is not None]
    keys = keys_of(folder)
    problems = {name: verify_checkpoint(root / name, keys) for name in names}
    if is_json:
        print_document(_verified_document(folder.name, problems))
    for name, files in problems.items() if not is_json else ():
        print(f"{name}: {'whole' if not files else 'NOT whole'}")
        for problem in files:
            print(f"  {problem}")
    if not names:
        say(f"{folder.name} has no checkpoint")
    return ExitCode.RUN_FAILED if any(problems.values()) else ExitCode.DONE


def rewrap_saved(text: str, old: str | None, new: str, *, is_json: bool) -> int:
    """Have all checkpoints of a run opened by another project key; returns the exit code.

    Args:
        text: The run that a user means.
        old: Where the key stands that opens them now, as env:NAME or file:PATH; None: where the job says.
        new: Where the new one stands.
        is_json: Whether to print a document.

    Raises: InputError if a key is not there; RunStateError if the run is alive; CheckpointError naming a checkpoint that is
        not whole, or another key's.
    """
    folder = find_run(text)
    root, base = saved_place(folder), Path()
    keys = keys_of(folder, find_key(old, base) if old else None)
    if keys is None:
        raise RunStateError(f"{folder.name} has no key: its checkpoints are of an older release, and plain")
    with at_work(folder):
        whole = [found.name for found in find_checkpoints(root) if found.is_complete]
        changed = {name: rewrap(root / name, keys, find_key(new, base)) for name in whole}
    if is_json:
        print_document({"run": folder.name, "rewrapped": changed})
        return ExitCode.DONE
    for name, num_files in changed.items():
        print(f"{name}: {num_files} files")
    say(f"from now on: trimtab resume {folder.name} --set fault_tolerance.checkpoint.encrypt={new}")
    return ExitCode.DONE


def export_saved(
    text: str, target: Path | None, form: ExportFormat, dtype: WeightType | None, *, is_json: bool
) -> int:
    """Give the weights of the newest whole checkpoint to others; returns the exit code.

    Args:
        text: The run that a user means.
        target: What to write; None: named after the run, in the working folder.
        form: One safetensors file of the logical tensors, as they are, or a Hugging Face folder.
        dtype: Of the weights in such a folder; None: fp32.
        is_json: Whether to print a document.

    Raises: RunStateError if there is no whole checkpoint; InputError if the target cannot be written, or the network
        is none that Hugging Face describes.
    """
    run, checkpoint = _newest(text)
    if form is ExportFormat.HUGGINGFACE:
        target = target or Path(f"{run.name}-{checkpoint.name}")
        files = _write_hugging_face(run, checkpoint, target, dtype or WeightType.FP32)
        said: dict[str, Any] = {"folder": str(target), "files": files}
    else:
        if dtype is not None:
            raise InputError(
                "--dtype is for --format huggingface; a safetensors file holds the weights as they are"
            )
        target = target or Path(f"{run.name}-{checkpoint.name}.safetensors")
        _write_file(checkpoint, target, keys_of(run))
        said = {"file": str(target)}
    if is_json:
        print_document({"run": run.name, "checkpoint": checkpoint.name, **said})
    else:
        print(f"{checkpoint.name} of {run.name} -> {target}")
    return ExitCode.DONE


def import_saved(folder: Path, path: str, target: Path, dtype: WeightType | None, *, is_json: bool) -> int:
    """Make a Hugging Face folder of another system's checkpoint; returns the exit code.

    Args:
        folder: A torch distributed checkpoint, of torch itself or of Megatron-LM.
        path: Of a job whose network it holds.
        target: The folder to make.
        dtype: Of the weights in it; None: fp32.
        is_json: Whether to print a document.

    Raises: InputError if the model is a class of the user's own, or the target cannot be written; ForeignError for what
        does not fit, is damaged, or means harm.
    """
    from trimtab.plan import network_of
    from trimtab.runtime.foreign.importing import (
        import_checkpoint,  # with torch, which the other verbs need not wait for
    )

    network = network_of(read_job(path).job)
    if network is None:
        raise InputError(f"{path} trains a class of your own; name a job whose network the checkpoint holds")
    with _writing(target):
        files = import_checkpoint(folder, network, target, dtype=dtype or WeightType.FP32)
    if is_json:
        print_document({"folder": str(target), "files": [file.name for file in files]})
    else:
        print(f"{folder} -> {target}; training begins with it by model: {{folder: {target}}}")
    return ExitCode.DONE


def _write_file(checkpoint: Path | ObjectPath, target: Path, keys: Keyring | None) -> None:
    from trimtab.runtime.checkpoint.exporting import (
        export_model,  # with numpy, which the other verbs need not wait for
    )

    with _writing(target):
        export_model(checkpoint, target, keys)


def _write_hugging_face(
    run: Path, checkpoint: Path | ObjectPath, target: Path, dtype: WeightType
) -> list[str]:
    """Write the folder; the names of the files in it."""
    from trimtab.runtime.weights.exporting import (
        export_folder,  # with torch, which the other verbs need not wait for
    )

    run, target = run.resolve(), target.absolute()
    checkpoint = checkpoint.resolve() if isinstance(checkpoint, Path) else checkpoint
    job, keys = read_job(str(run / RESOLVED_FILE)).job, keys_of(run)
    with _writing(target), contextlib.chdir(working_folder(run)):
        return [path.name for path in export_folder(checkpoint, job, target, run=run, keys=keys, dtype=dtype)]


def _newest(text: str) -> tuple[Path, Path | ObjectPath]:
    """The run that a user means and its newest whole checkpoint."""
    run = find_run(text)
    newest = newest_complete(saved_place(run), keys_of(run), read_marks(run).suspect)
    for warning in newest.warnings:
        say(f"warning: {warning}")
    if newest.folder is None:
        raise RunStateError(f"{run.name} has no whole checkpoint to export")
    return run, newest.folder


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror}; choose another place with --to"
        ) from error


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


def _row(found: FoundCheckpoint, marks: Marks) -> dict[str, Any]:
    return {
        "name": found.name,
        "step": found.step,
        "size_bytes": found.manifest.size_bytes if found.manifest else None,
        "is_complete": found.is_complete,
        "error": str(found.error) if found.error else None,
        "is_pinned": found.is_complete and found.step in marks.pinned,
        "suspect": marks.suspect.get(found.step) if found.is_complete else None,
    }


def _line(row: Mapping[str, Any]) -> str:
    size = format_bytes(row["size_bytes"]) if row["size_bytes"] is not None else "-"
    state = "complete" if row["is_complete"] else row["error"]
    pinned = ", pinned" if row["is_pinned"] else ""
    suspect = f", suspect: {row['suspect']}" if row["suspect"] else ""
    return f"{row['name']:24}{size:>10}  {state}{pinned}{suspect}"
