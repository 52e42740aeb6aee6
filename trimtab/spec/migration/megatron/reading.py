"""Settings of Megatron-LM into a job: every reader takes its flags, and what none takes is named."""

import re

from trimtab.spec.migration.megatron.degrees import read_degrees
from trimtab.spec.migration.megatron.draft import Draft
from trimtab.spec.migration.megatron.environment import read_environment
from trimtab.spec.migration.megatron.flags import Flags, parse_flags
from trimtab.spec.migration.megatron.launches import Launch, read_launch
from trimtab.spec.migration.megatron.network import read_network, read_sequence
from trimtab.spec.migration.megatron.precision import read_precision
from trimtab.spec.migration.megatron.recomputation import state_recomputation
from trimtab.spec.migration.megatron.splits import state_splits
from trimtab.spec.migration.megatron.stages import read_stages
from trimtab.spec.migration.megatron.storage import (
    state_kept_types,
    state_offloads,
    state_reductions,
    state_storage,
)
from trimtab.spec.migration.megatron.text import read_text
from trimtab.spec.migration.megatron.training import (
    read_batch,
    read_intervals,
    read_length,
    read_lr_schedule,
    read_optimizer,
)
from trimtab.spec.migration.megatron.yaml_flags import is_yaml, read_yaml_launch
from trimtab.spec.migration.settings import Migration, MigrationError
from trimtab.spec.migration.sources import Source


def read_megatron(source: Source) -> Migration:
    """The job that settings of Megatron-LM amount to.

    Reads launch scripts, plain lists of flags and YAML configurations.

    Raises: MigrationError if nothing of the kind is found, or it trains what Trimtab cannot.
    """
    launch = _launch(source)
    flags = Flags([*launch.launcher, *launch.flags, *parse_flags(source.flags)])
    _refuse_other_networks(launch, flags)
    draft = Draft(flags=flags, networks=source.networks, devices=source.devices, extra=launch.settled)
    draft.warnings += launch.notes
    draft.set("run", _run_name(flags.text("--run-name") or source.name))
    draft.carry("--run-name", "run")
    _read(draft)
    return draft.finish(f"Megatron-LM settings of {source.name}")


def _launch(source: Source) -> Launch:
    if not source.text.strip() and source.flags:
        return Launch()
    if is_yaml(source.text):
        return read_yaml_launch(source.text, source=source.name)
    return read_launch(source.text)


def _read(draft: Draft) -> None:
    """Everything but the name; the order is that in which formulas are stated and figures needed."""
    degrees = read_degrees(draft)
    state_splits(draft, degrees)
    network = read_network(draft, tensor=degrees.tensor)
    stages = read_stages(draft, degrees, network.layers)
    state_storage(draft, degrees)
    state_reductions(draft, degrees)
    state_kept_types(draft)
    state_recomputation(draft, stages, has_experts=network.has_experts)
    state_offloads(draft)
    read_text(draft)
    sequence = read_sequence(draft)
    length = read_length(draft, read_batch(draft, degrees), sequence)
    read_optimizer(draft)
    read_lr_schedule(draft, length)
    read_precision(draft, network.layers)
    read_intervals(draft, length)
    read_environment(draft)


_OTHER_PROGRAMS = {
    "t5": "an encoder with a decoder",
    "bert": "an encoder that fills gaps",
    "ict": "a retriever",
    "retro": "a decoder with a retriever",
    "vision": "images",
    "vlm": "images with text",
    "mamba": "state-space layers",
    "hybrid": "state-space layers",
    "train_rl": "by rewards",
}
"""Programs of Megatron-LM whose networks are no decoders of text, by a part of their names."""

_OTHER_FLAGS = {
    "--decoder-num-layers": "t5",
    "--bert-no-binary-head": "bert",
    "--vision-pretraining": "vision",
    "--retro-add-retriever": "retro",
    "--hybrid-layer-pattern": "hybrid",
    "--hybrid-override-pattern": "hybrid",
    "--is-hybrid-model": "hybrid",
    "--perform-rl-step": "train_rl",
}
"""Flags that only such networks take."""


def _refuse_other_networks(launch: Launch, flags: Flags) -> None:
    program = launch.program.casefold()
    by_name = next((part for part in _OTHER_PROGRAMS if re.search(rf"(^|_){part}", program)), None)
    by_flag = next((flag for flag in _OTHER_FLAGS if flag in flags), None)
    if by_name is None and by_flag is None:
        return
    found = launch.program if by_name else by_flag
    what = _OTHER_PROGRAMS[by_name or _OTHER_FLAGS[by_flag or ""]]
    raise MigrationError(
        f"{found} trains {what}; networks of Trimtab are decoders that predict the next token. Write the network as a "
        "class of your own, name it in model.module, and import the flags of a decoder of the same degrees for the rest"
    )


def _run_name(name: str) -> str:
    """The name of a file as a name of runs: small letters, digits, hyphens."""
    stem = re.sub(
        r"\.(sh|slurm|sbatch|ya?ml|txt|args)$",
        "",
        name.replace("\\", "/").rpartition("/")[2],
        flags=re.IGNORECASE,
    )
    words = re.sub(r"[^a-z0-9]+", "-", stem.casefold()).strip("-")
    return words[:63].rstrip("-") or "imported"
