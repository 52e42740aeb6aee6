"""Where the checkpoints of a run are, for the verbs that look at them."""

from pathlib import Path

from trimtab.app.job_reading import read_job
from trimtab.app.run_folders import RESOLVED_FILE, working_folder
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.places import checkpoints_of


def saved_place(run: Path) -> Path | ObjectPath:
    """Where all checkpoints of a run are.

    Raises: InputError if its job names a place that cannot be.
    """
    place = read_job(str(run / RESOLVED_FILE)).job.fault_tolerance.checkpoint.to
    return checkpoints_of(run, place, Path() if place is None else working_folder(run))
