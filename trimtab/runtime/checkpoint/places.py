"""Where are the checkpoints of a run? In its folder, in another one, or in an object store. Without torch."""

import re
from pathlib import Path

from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.terms import InputError

_CHECKPOINTS = "checkpoints"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)")


def checkpoints_of(run_folder: Path, place: str | None, base: Path) -> Path | ObjectPath:
    """The place of all checkpoints of a run.

    Args:
        run_folder: Of the run; its name is part of the place, where that is not in it.
        place: What the job file says; None: nothing.
        base: What a relative path is relative to.

    Raises: InputError for a place that is gone with a process, or says no bucket.

    >>> print(checkpoints_of(Path("runs/tune-1"), "s3://models/checkpoints", Path()))
    s3://models/checkpoints/tune-1
    """
    if place is None:
        return run_folder / _CHECKPOINTS
    match = _URL.fullmatch(place)
    if match is None:
        return base / Path(place).expanduser() / run_folder.resolve().name
    protocol, rest = match[1], match[2].strip("/")
    if protocol in ("file", "local"):
        return base / "/" / rest / run_folder.resolve().name
    if protocol == "memory":
        raise InputError(
            f"checkpoints cannot go to {place}: that memory is gone with the process that has it"
        )
    if not rest:
        raise InputError(
            f"checkpoints cannot go to {place}: it names no bucket; write {protocol}://BUCKET/PREFIX"
        )
    return ObjectPath(f"{protocol}://{rest}") / run_folder.resolve().name
