"""The keys that the checkpoints of a run are checked with, for the verbs that read them."""

from pathlib import Path

from trimtab.app.job_reading import read_job
from trimtab.app.run_folders import RESOLVED_FILE, working_folder
from trimtab.runtime.checkpoint.keyring import Keyring, find_key, read_keyring
from trimtab.runtime.checkpoint.signing import Key


def keys_of(run: Path, sealing: Key | None = None) -> Keyring | None:
    """The keys of a run; None if it never had any, as runs of older releases.

    Args:
        run: The run's folder.
        sealing: The project's key, if it is not the one that the job names.

    Raises: InputError if one that its job file names is not there.
    """
    checkpoint = read_job(str(run / RESOLVED_FILE)).job.fault_tolerance.checkpoint
    base = working_folder(run)
    signing = find_key(checkpoint.sign, base) if checkpoint.sign else None
    if sealing is None and checkpoint.encrypt:
        sealing = find_key(checkpoint.encrypt, base)
    return read_keyring(run, signing, sealing)
