"""What people and policies say of a run's checkpoints: which must stay, and which may be spoilt.

It stands in ``checkpoint-marks.json`` beside the folder ``checkpoints``: what was signed is never touched, and whoever can
write there has the run's key. Standard library only: the writer looks before it removes one.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARKS_FILE = "checkpoint-marks.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """Of the checkpoints of a run, by step."""

    pinned: frozenset[int] = frozenset()
    suspect: Mapping[int, str] = field(default_factory=dict)
    """Why."""


def read_marks(run_folder: Path) -> Marks:
    """The marks of a run; none if nobody made any.

    Raises: ValueError naming the file, if it is none of ours: whatever was pinned would be removed.
    """
    path = run_folder / MARKS_FILE
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Marks(
            pinned=frozenset(map(int, document["pinned"])),
            suspect={int(step): str(reason) for step, reason in document["suspect"].items()},
        )
    except FileNotFoundError:
        return Marks()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not the marks of checkpoints: {error!r}; restore or remove it") from error


def change_marks(run_folder: Path, change: Callable[[Marks], Marks]) -> Marks:
    """Change the marks of a run in one act; the new ones. Several processes may call it at once.

    Raises: as ``read_marks``; OSError if the system refuses.
    """
    path = run_folder / MARKS_FILE
    folder = os.open(run_folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        marks = change(read_marks(run_folder))
        document = {
            "pinned": sorted(marks.pinned),
            "suspect": {str(step): reason for step, reason in sorted(marks.suspect.items())},
        }
        unfinished = path.with_name(f"{path.name}.tmp-{os.getpid()}")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        os.fsync(folder)
    finally:
        os.close(folder)
    return marks
