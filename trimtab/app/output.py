"""What goes to standard output and standard error, and in what form."""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.terms import InputError


def print_document(document: Mapping[str, Any]) -> None:
    """The one JSON document of a verb on standard output."""
    print(json_text(document), flush=True)


def json_text(document: Mapping[str, Any]) -> str:
    """Strict JSON, indented: numbers that are not finite become null, for JSON has no word for them."""
    return json.dumps(_strict(document), indent=2, allow_nan=False)


def say(text: str) -> None:
    """A line for people who watch: on standard error, so that standard output holds the result alone."""
    print(printable(text), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """The text with a space for each character that would steer a terminal; line ends and tabs stay.

    What jobs and ranks say is data: an escape sequence in an error must not move the cursor.
    """
    return "".join(character if character.isprintable() or character in "\n\t" else " " for character in text)


def write_output(path: Path, text: str, *, what: str) -> None:
    """Write what a verb was asked to leave in a file of a folder that is there.

    Args:
        path: Of the file.
        text: Of it.
        what: It is, for the message: ``the explanation``.

    Raises: InputError if it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot write {what}: {error.strerror}") from error


def refuse_unwritable(path: Path, *, what: str) -> None:
    """Refuse, before long work, what ``write_output`` could not write after it.

    Raises: InputError.
    """
    folder = path.parent
    if path.is_dir():
        reason = "Is a directory"
    elif not folder.is_dir():
        reason = "No such file or directory"
    elif os.access(path if path.exists() else folder, os.W_OK):
        return
    else:
        reason = "Permission denied"
    raise InputError(f"{path}: cannot write {what}: {reason}")


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
