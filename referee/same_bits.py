"""Do all runs of one job end with the same weights, bit by bit, whatever happened to them?

    python referee/same_bits.py RUN [RUN ...]       runs that are there, each with a checkpoint of its last step
    python referee/same_bits.py --drive             makes the runs: every number of ranks, every kind of loss

The hash is recomputed here from exported safetensors, by the published layout, and compared with the one that
Trimtab claimed and with those of the other runs.
"""

import argparse
import hashlib
import json
import signal
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import driving
import records
from driving import Ended, Workplace
from verdicts import RefereeError, Verdict, exit_with

GUARANTEE = "weights have the same bits at any number of ranks and through every loss"
NETWORKS = {
    "gpt": (),
    "llama": ("model.preset=llama-3m", "model.kv_heads=2"),
}
"""LayerNorm, GELU, tied, learned positions and dropout; RMSNorm, SwiGLU, untied, rotary, grouped queries."""
TYPES = {"fp32": (), "bf16": ("train.compute=bf16",)}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run that is made: what happens to it, and how many ranks it must lose so that something is shown."""

    name: str
    devices: int = 4
    injections: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    num_lost: int = 0
    resumed_devices: int | None = None
    """Stopped half-way by SIGTERM, then resumed with as many ranks."""
    is_other: bool = False
    """Its weights must differ from the others'."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a trial came to. ``problem`` is None if it went as planned; hashes are compared elsewhere."""

    trial: Trial
    claimed: str | None
    exported: str | None
    problem: str | None


def weights_sha256(path: Path) -> str:
    """The hash of a safetensors file's tensors: in order of name, each its name in UTF-8, its number of dims and
    each dim as little-endian int64, its elements as little-endian fp32.

    Raises: ValueError if a tensor is not fp32.
    """
    digest = hashlib.sha256()
    tensors = load_file(path)
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor.dtype != np.float32:
            raise ValueError(f"tensor {name} of {path.name} is {tensor.dtype}, not float32")
        digest.update(name.encode("utf-8"))
        digest.update(struct.pack("<q", tensor.ndim))
        digest.update(b"".join(struct.pack("<q", dim) for dim in tensor.shape))
        digest.update(tensor.astype("<f4", copy=False).tobytes())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Referee; returns the exit code."""
    options = parse(arguments)
    verdict = Verdict(GUARANTEE)
    with driving.temporary_folder(is_kept=options.keep) as folder:
        if options.drive:
            drive(options, folder, verdict)
        else:
            referee_runs(options, folder, verdict)
    return verdict.conclude()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="directory of a finished run")
    parser.add_argument("--exported", type=Path, help="a safetensors file to take as the one RUN's export")
    parser.add_argument("--drive", action="store_true", help="make the runs")
    parser.add_argument("--devices", default="1,2,3,4", help="numbers of ranks without a loss (%(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="of each run (%(default)s)")
    parser.add_argument("--networks", default="gpt,llama", help="(%(default)s)")
    parser.add_argument("--types", default="fp32,bf16", help="(%(default)s)")
    parser.add_argument("--only", help="only trials whose name contains this, beside the first and the last")
    parser.add_argument("--keep", action="store_true", help="keep the runs that were made")
    parser.add_argument("--quick", action="store_true", help="one network, one type, three runs of 12 steps")
    options = parser.parse_args(arguments)
    if options.drive == bool(options.runs):
        parser.error("name runs, or let them be made with --drive")
    if options.exported and len(options.runs) != 1:
        parser.error("--exported goes with one RUN")
    if options.quick:
        options.steps, options.networks, options.types = 12, "gpt", "fp32"
        options.devices, options.only = "1", "in reduce"
    return options


def referee_runs(options: argparse.Namespace, folder: Path, verdict: Verdict) -> None:
    """Recompute and compare the hashes of runs that are there."""
    place = Workplace(folder, steps=1)
    hashes = {}
    for run in map(Path, options.runs):
        claimed = claimed_sha256(run)
        path = options.exported or export(place, run, folder / f"{run.name}.safetensors")
        hashes[run.name] = weights_sha256(path)
        verdict.check(
            hashes[run.name] == claimed,
            f"{run.name}: exported {hashes[run.name][:16]}, claimed {str(claimed)[:16]}",
        )
    if len(hashes) > 1:
        verdict.check(
            len(set(hashes.values())) == 1, f"{len(set(hashes.values()))} hash of {len(hashes)} runs"
        )


def claimed_sha256(run: Path) -> str:
    """What the report in a run's folder claims.

    Raises: RefereeError if it claims nothing.
    """
    path = run / "report.json"
    try:
        claimed = json.loads(path.read_text(encoding="utf-8"))["weights_sha256"]
    except (OSError, ValueError, KeyError) as error:
        raise RefereeError(f"{path} claims no hash: {error!r}") from error
    return str(claimed)


def export(place: Workplace, run: Path, target: Path) -> Path:
    """The newest weights of a run as a safetensors file.

    Raises: RefereeError if Trimtab does not give them.
    """
    ended = place.trimtab("checkpoints", "export", str(run.resolve()), "--to", str(target))
    if ended.code:
        raise RefereeError(f"export of {run.name} gave exit code {ended.code}: {ended.stderr[-2000:]}")
    return target


def drive(options: argparse.Namespace, folder: Path, verdict: Verdict) -> None:
    """Make every trial for every network and type, and compare."""
    trials = list(chosen_trials(options))
    for network in options.networks.split(","):
        for kind in options.types.split(","):
            place_folder = folder / f"{network}-{kind}"
            place_folder.mkdir()
            place = Workplace(place_folder, steps=options.steps, every=checkpoint_steps(options.steps))
            sets = [*NETWORKS[network], *TYPES[kind]]
            print(f"{network} {kind}, {options.steps} steps")
            outcomes = []
            for trial in trials:
                outcomes.append(attempt(place, trial, sets, options.steps))
                print(f"    {trial.name:34}{str(outcomes[-1].exported)[:16]:18}{outcomes[-1].problem or ''}")
            compare(f"{network} {kind}", outcomes, verdict)


def chosen_trials(options: argparse.Namespace) -> Iterator[Trial]:
    """The trials that the command line asks for: the reference, the wanted ones, another seed."""
    first, *others, last = planned_trials(options.steps, [int(n) for n in options.devices.split(",")])
    yield first
    yield from (trial for trial in others if options.only is None or options.only in trial.name)
    yield last


def planned_trials(steps: int, devices: Sequence[int]) -> Iterator[Trial]:
    """Everything that must not change a bit, and one thing that must."""
    half = steps // 2
    yield from (Trial(name=f"{n} ranks", devices=n) for n in devices)
    for phase in ("compute", "reduce", "gather", "apply"):
        yield Trial(
            name=f"kill in {phase}", injections=(f"kill:rank=1,step={half},phase={phase}",), num_lost=1
        )
    saved = 2 * checkpoint_steps(steps)
    yield Trial(
        name="kill in checkpoint", injections=(f"kill:rank=0,step={saved},phase=checkpoint",), num_lost=1
    )
    yield Trial(
        name="two kills, one while re-forming",
        injections=(f"kill:rank=1,step={half},phase=compute", f"kill:rank=2,step={half},phase=reform"),
        num_lost=2,
    )
    yield Trial(name="SIGSTOP", injections=(f"stop:rank=2,step={half},phase=reduce",), num_lost=1)
    yield Trial(name="stopped, resumed on 2 ranks", resumed_devices=2)
    yield Trial(name="slow rank", injections=("slow:rank=1,factor=4",))
    yield Trial(name="another seed", sets=("train.seed=1",), is_other=True)


def checkpoint_steps(steps: int) -> int:
    """Steps between two checkpoints: a third of the run, so that one stands before and one after its middle."""
    return max(1, steps // 3)


def attempt(place: Workplace, trial: Trial, sets: Sequence[str], steps: int) -> Outcome:
    """Make one trial's run, export its weights and see whether what was planned happened."""
    sets = [*sets, *trial.sets, f"orchestration.devices={trial.devices}"]
    arguments = [word for value in sets for word in ("--set", value)]
    arguments += [word for value in trial.injections for word in ("--inject", value)]
    try:
        ended = (
            place.run(*arguments) if trial.resumed_devices is None else resume(place, trial, arguments, steps)
        )
        document = ended.document
        run = place.directory(document)
        exported = weights_sha256(export(place, run, run / "exported.safetensors"))
    except RefereeError as error:
        return Outcome(trial=trial, claimed=None, exported=None, problem=str(error))
    return Outcome(
        trial=trial,
        claimed=document["weights_sha256"],
        exported=exported,
        problem=what_went_otherwise(trial, document, run, steps),
    )


def resume(place: Workplace, trial: Trial, arguments: Sequence[str], steps: int) -> Ended:
    """Start a run, stop it by SIGTERM half-way and resume it at another size."""
    started = place.start(*arguments, "--inject", "slow:rank=0,factor=20")
    driving.wait_for_step(started, steps // 2)
    started.process.send_signal(signal.SIGTERM)
    stopped = started.end()
    if stopped.code != 143:
        raise RefereeError(f"SIGTERM gave exit code {stopped.code}, not 143: {stopped.stderr[-2000:]}")
    return place.trimtab(
        "resume", str(started.folder), "--json", "--set", f"orchestration.devices={trial.resumed_devices}"
    )


def what_went_otherwise(trial: Trial, document: dict[str, Any], run: Path, steps: int) -> str | None:
    """Why this run shows nothing, or None: it must have ended, and have lost as many ranks as planned."""
    journals = records.agent_journals(run)
    num_lost = sum(len(records.of_kind(journal, "fault")) for journal in journals.values())
    if document["state"] != "done" or document["steps"] != steps:
        return f"ended as {document['state']} after {document['steps']} of {steps} steps: {document['error']}"
    if num_lost != trial.num_lost:
        return f"lost {num_lost} ranks, planned {trial.num_lost}"
    if trial.resumed_devices is not None and len(journals) != 2:
        return f"took {len(journals)} attempts, planned 2"
    return None


def compare(what: str, outcomes: Sequence[Outcome], verdict: Verdict) -> None:
    """Check the hashes of one network and type."""
    reference = outcomes[0].exported
    for outcome in outcomes:
        name, exported, claimed = outcome.trial.name, str(outcome.exported), str(outcome.claimed)
        if not verdict.check(outcome.problem is None, f"{what}, {name}: {outcome.problem or 'as planned'}"):
            continue
        verdict.check(
            exported == claimed, f"{what}, {name}: exported {exported[:16]}, claimed {claimed[:16]}"
        )
        if outcome.trial.is_other:
            verdict.check(exported != reference, f"{what}, {name}: other weights than {str(reference)[:16]}")
        else:
            verdict.check(exported == reference, f"{what}, {name}: the weights of {outcomes[0].trial.name}")


if __name__ == "__main__":
    exit_with(main)
