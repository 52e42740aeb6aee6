"""A loop that adopts a job which nobody has started: `python train.py`, to try it and to step through it.

One rank computes all shares, so the weights have the bits that any number of ranks would give. Nobody watches it and
nothing is kept: no checkpoint, no ledger, no run's folder.
"""

import atexit
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from trimtab.runtime.enlisting import Enlistment
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.solo_link import SoloLink
from trimtab.spec import Checkpoint, Job, load_job
from trimtab.spec.resolved import plain_values
from trimtab.terms import InputError


def stand_alone(job_file: str) -> Enlistment:
    """This process as the only rank of a job, and a line on standard error that says so.

    Raises: InputError if the job file cannot be read or is wrong, or another launcher has started several processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "another launcher has started several processes, and trimtab.adopt was called in one of them; "
            f"`trimtab run {job_file}` starts and watches the ranks itself"
        )
    job = _read(job_file)
    folder = Path(tempfile.mkdtemp(prefix="trimtab-alone-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.stderr.write(
        f"trimtab: nobody started this rank, so it trains alone and keeps nothing; `trimtab run {job_file}` starts "
        f"{job.orchestration.devices} that survive each other\n"
    )
    settings = {"job": plain_values(job), "job_file": job_file, "injections": []}
    return Enlistment(
        ticket={"rank": 0, "devices": 1, "incarnation": 0, "folder": str(folder), "settings": settings},
        connect=_connect,
        recorder=Recorder(folder, rank=0, incarnation=0),
        started_ns=time.monotonic_ns(),
    )


def _connect(fingerprint: dict[str, str]) -> SoloLink:
    link = SoloLink()
    link.start(fingerprint)
    return link


def _read(job_file: str) -> Job:
    try:
        text = Path(job_file).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{job_file}: cannot read the job file: {error.strerror}") from error
    job = load_job(
        text,
        source=job_file,
        environment=os.environ,
        read=lambda name: Path(name).read_text(encoding="utf-8"),
    ).job
    tolerance = job.fault_tolerance.model_copy(update={"checkpoint": Checkpoint(every="off")})
    return job.model_copy(update={"fault_tolerance": tolerance})
