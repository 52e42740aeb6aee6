"""The token of a run: who knows it belongs to the run. It lies in a file that only its owner may read."""

import os
import secrets
import stat
from pathlib import Path

from trimtab.engines.launch import Launch
from trimtab.terms import InputError

_NAME = "token"


def take_token(launch: Launch) -> str:
    """The run's token. For other hosts it lies in a file, made unless it is there.

    Raises: InputError if the file cannot be used.
    """
    if launch.hosts == 1:
        return secrets.token_hex(32)
    path = token_path(launch)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise InputError(f"cannot write the run's token to {path}: {error.strerror}") from error
    with open(file, "w", encoding="ascii") as target:
        token = secrets.token_hex(32)
        target.write(f"{token}\n")
    return token


def token_path(launch: Launch) -> Path:
    """Where the token of a run of several hosts lies."""
    return launch.token_file or launch.folder / _NAME


def read_token(path: Path) -> str:
    """The token in a file.

    Raises: InputError if there is none, or if others than its owner may read it.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the run's token from {path}: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise InputError(
            f"{path} holds the run's token and others may read it (mode {stat.S_IMODE(mode):o}); chmod 600 {path}"
        )
    if len(token) < 16:
        raise InputError(
            f"{path} holds {len(token)} characters; a token has 16 or more, that nobody can guess"
        )
    return token
