"""What do the cards of a job rule in the parts of a rank?"""

from collections.abc import Mapping
from pathlib import Path

from trimtab.policy import prior_mttf_s
from trimtab.policy.spikes import SpikeRules
from trimtab.runtime.checkpoint.keyring import Keyring, find_key, open_keyring
from trimtab.runtime.checkpoint.places import checkpoints_of
from trimtab.runtime.keeping import KeepingRules
from trimtab.runtime.probing import ProbeRules
from trimtab.runtime.step import StepRules
from trimtab.spec import Job, SpikeAnswer
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
        probe=ProbeRules(
            rate=job.fault_tolerance.detection.probe, compare_every=job.fault_tolerance.detection.compare
        ),
        spikes=spike_rules(job),
        balance_every=job.fault_tolerance.balance,
        is_redone=rule_of(job, is_replicated=True) in (OnLoss.REDO, OnLoss.SAME_BATCH, OnLoss.ROLLBACK),
    )


def spike_rules(job: Job) -> SpikeRules:
    """What a spike is, and what is done about it."""
    said = job.train.on_spike
    return SpikeRules(
        answer=said.answer,
        loss=said.loss,
        grad_norm=said.grad_norm,
        window=said.window,
        suspect=said.suspect,
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
    job: Job,
    run_folder: Path,
    *,
    keeps_best: bool,
    identity: Mapping[str, str],
    keys: Keyring,
    num_nodes: int = 1,
    is_replicated: bool = True,
) -> KeepingRules:
    """When a run saves, and what stays.

    Args:
        job: With every constant resolved.
        run_folder: Of the run.
        keeps_best: Whether the checkpoint with the least held-out loss stays too.
        identity: What a checkpoint must have in common with the run that loads it.
        keys: What it is signed with.
        num_nodes: That compute.
        is_replicated: Whether every rank holds the whole state.
    """
    checkpoint, spikes = job.fault_tolerance.checkpoint, job.train.on_spike
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
        reserve=spikes.suspect if spikes.answer is SpikeAnswer.ROLLBACK else None,
        prior_mttf_s=prior_mttf_s(
            num_nodes,
            survives_in_the_step=rule_of(job, is_replicated=is_replicated) is not OnLoss.ROLLBACK
            and job.orchestration.devices > 1,
        ),
    )


def clip_of(job: Job) -> float | None:
    """Largest gradient norm; None for no clipping."""
    return None if job.train.clip == "off" else float(job.train.clip)
