"""Which weights does a job begin with? Without torch."""

from pathlib import Path

from trimtab.catalog.hugging_face import read_config
from trimtab.plan import network_of
from trimtab.runtime.weights.folder import CheckedFolder, check_folder
from trimtab.spec import Job


def check_job_weights(job: Job) -> CheckedFolder | None:
    """The folder whose weights a job begins with, looked at; None if it begins with random ones.

    Called before anything is started, and by every rank, which may see another disk.

    Raises: WeightsError, NetworkError; see ``check_folder``.
    """
    network, folder = network_of(job), job.model.folder
    if network is None or folder is None or not job.model.begins_with_folder:
        return None
    family = read_config(job.model.configuration, name=network.name).family
    return check_folder(Path(folder), network, family)
