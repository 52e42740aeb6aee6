"""What do the cards of a job rule in the parts of a rank?"""

from collections.abc import Mapping
from pathlib import Path

from trimtab.runtime.checkpoint.keyring import Keyring, find_key, open_keyring
from trimtab.runtime.checkpoint.places import checkpoints_of
from trimtab.runtime.keeping import KeepingRules
from trimtab.runtime.step import StepRules
from trimtab.spec import Job
from trimtab.spec.constants import rule_of
from trimtab.terms import OnLoss


def step_rules(job: Job) -> StepRules:
    """How ranks step that compute all of a model, each on other samples."""
    return StepRules(
        num_shares=0 if job.fault_tolerance.shares == "off" else int(job.fault_tolerance.shares),
        batch=job.train.batch,
        seed=job.train.seed,
        clip=clip_of(job),
        max_devices=job.orchestration.devices,
        is_redone=rule_of(job, is_replicated=True) in (OnLoss.REDO, OnLoss.SAME_BATCH, OnLoss.ROLLBACK),
    )


def keyring_of(job: Job, run_folder: Path) -> Keyring:
    """The keys that a rank saves and loads with; paths of the job are relative to the working folder.

    Raises: InputError if a key that the job names is not there.
    """
    checkpoint = job.fault_tolerance.checkpoint
    signing, sealing = (
        find_key(place, Path()) if place else None for place in (checkpoint.sign, checkpoint.encrypt)
    )
    return open_keyring(run_folder, signing, sealing)


def keeping_rules(
    job: Job, run_folder: Path, *, keeps_best: bool, identity: Mapping[str, str], keys: Keyring
) -> KeepingRules:
    """When a run saves, and what stays.

    Args:
        job: With every constant resolved.
        run_folder: Of the run.
        keeps_best: Whether the checkpoint with the least held-out loss stays too.
        identity: What a checkpoint must have in common with the run that loads it.
        keys: What it is signed with.
    """
    checkpoint = job.fault_tolerance.checkpoint
    return KeepingRules(
        every=checkpoint.every,
        keep=checkpoint.keep,
        keeps_best=keeps_best,
        keep_every=checkpoint.keep_every,
        batch=job.train.batch,
        seed=job.train.seed,
        identity=dict(identity),
        root=checkpoints_of(run_folder, checkpoint.to, Path()),
        keys=keys,
    )


def clip_of(job: Job) -> float | None:
    """Largest gradient norm; None for no clipping."""
    return None if job.train.clip == "off" else float(job.train.clip)
