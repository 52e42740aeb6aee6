"""The keys that the checkpoints of a run are checked with, for the verbs that read them."""

from pathlib import Path

from trimtab.app.job_reading import read_job
from trimtab.app.run_folders import RESOLVED_FILE, working_folder
from trimtab.runtime.checkpoint.keyring import Keyring, find_key, read_keyring


def keys_of(run: Path) -> Keyring | None:
    """The keys of a run; None if it never had any, as runs of older releases.

    Raises: InputError if one that its job file names is not there.
    """
    place = read_job(str(run / RESOLVED_FILE)).job.fault_tolerance.checkpoint.sign
    return read_keyring(run, find_key(place, working_folder(run)) if place else None)
