"""Job files on disk, read with what the command line and the environment say about them."""

import os
from collections.abc import Sequence
from pathlib import Path

from trimtab.app.errors import JobReadError
from trimtab.app.output import say
from trimtab.spec import LoadedJob, load_job


def read_job(path: str, overrides: Sequence[str] = ()) -> LoadedJob:
    """The job of a file; its warnings are said on standard error.

    Args:
        path: Of the job file, as the user wrote it: errors show it so.
        overrides: What stood after each ``--set``.

    Raises: JobReadError if the file cannot be read at all; JobFileError with everything that is wrong in it.
    """
    try:
        text = _read_text(path)
    except OSError as error:
        raise JobReadError(f"{path}: cannot read the job file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise JobReadError(f"{path}:{line}: the job file is not UTF-8 text") from error
    loaded = load_job(text, source=path, overrides=overrides, environment=os.environ, read=_read_text)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    return loaded


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
