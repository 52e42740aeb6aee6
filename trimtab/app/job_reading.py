"""Job files on disk, read with what the command line and the environment say about them."""

import os
from collections.abc import Sequence
from pathlib import Path

from trimtab.app.errors import JobReadError
from trimtab.app.output import say
from trimtab.catalog import NetworkError, UnknownNameError
from trimtab.plan.layout import network_of
from trimtab.spec import LoadedJob, StrategyError, load_job
from trimtab.spec.language import unsupported_by_runtime


def read_job(path: str, overrides: Sequence[str] = ()) -> LoadedJob:
    """The job of a file.

    Args:
        path: Of the job file, as the user wrote it: errors show it so.
        overrides: What stood after each ``--set``.

    Raises: JobReadError if the file cannot be read at all, or its network cannot be built; JobFileError with
        everything that is wrong in it.
    """
    try:
        text = _read_text(path)
    except OSError as error:
        raise JobReadError(f"{path}: cannot read the job file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise JobReadError(f"{path}:{line}: the job file is not UTF-8 text") from error
    loaded = load_job(text, source=path, overrides=overrides, environment=os.environ, read=_read_text)
    try:
        network_of(loaded.job)
    except (NetworkError, UnknownNameError) as error:
        raise JobReadError(f"{loaded.origins['model.preset']}  {error}") from error
    return loaded


def refuse_what_cannot_run(loaded: LoadedJob) -> None:
    """Refuse formulas that the language has and the runtime has not yet.

    Raises: StrategyError with every such statement and clause.
    """
    problems = unsupported_by_runtime(loaded.program)
    if problems:
        raise StrategyError(problems, loaded.program.documents)


def say_warnings(loaded: LoadedJob) -> None:
    """Say on standard error what may be meant otherwise."""
    for warning in loaded.warnings:
        say(f"warning: {warning}")


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
