"""What the checkpoints of a run's folder have taken up so far, and what that costs."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trimtab.app.run_folders import RESOLVED_FILE, working_folder
from trimtab.ledger import RunRecords, Storage, storage_of
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.places import checkpoints_of
from trimtab.terms import InputError

_KEPT = re.compile(r"step-(0|[1-9][0-9]{0,17})(?:\.set-aside-[0-9]+)?")
"""What a rollback has set aside takes up its place as before."""


def folder_storage(folder: Path, records: RunRecords, *, now_unix_ns: int) -> Storage:
    """The storage of a run, at the price that its job says now.

    Folders on disk are counted, so that what a user has removed does not cost on; an object store is not asked, for a
    report must not wait for a network.
    """
    job: Mapping[str, Any] = yaml.safe_load((folder / RESOLVED_FILE).read_text(encoding="utf-8"))
    return storage_of(
        records,
        now_unix_ns=now_unix_ns,
        usd_per_gb_month=job.get("orchestration", {}).get("storage_usd_per_gb_month"),
        present=_present(folder, job.get("fault_tolerance", {}).get("checkpoint", {}).get("to")),
    )


def _present(folder: Path, place: str | None) -> Mapping[int, int] | None:
    """How many folders hold a checkpoint of each step; None where that cannot be seen from here."""
    try:
        root = checkpoints_of(folder, place, Path() if place is None else working_folder(folder))
        if isinstance(root, ObjectPath):
            return None
        names = os.listdir(root)
    except FileNotFoundError:
        return {}
    except (InputError, OSError):  # a disk of another machine
        return None
    return Counter(int(match[1]) for name in names if (match := _KEPT.fullmatch(name)))
