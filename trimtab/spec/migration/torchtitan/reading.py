"""A TOML file of torchtitan as settings, under the names of the newest release that had such files.

Sections moved and keys were renamed between releases; `ALIASES` leads from each older name to the newest. Only
what also changed its meaning keeps its old name.

Source: the command-line options and configuration classes of torchtitan from April 2024 to release 0.2.2.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimtab.spec.migration.drafts import WrittenNumber
from trimtab.spec.migration.settings import MigrationError

_DEGREES = (
    "data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree", "disable_loss_parallel",
    "fsdp_reshard_after_forward",
)  # fmt: skip
_EXPERIMENTAL = (
    "context_parallel_degree", "context_parallel_rotate_method", "enable_async_tensor_parallel", "enable_compiled_autograd",
    "pipeline_parallel_degree", "pipeline_parallel_microbatches", "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv", "pipeline_parallel_split_mode", "pipeline_parallel_split_points",
)  # fmt: skip
_LINEAR_FLOAT8 = (
    "enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp", "recipe_name", "filter_fqns", "emulate",
)  # fmt: skip

ALIASES: Mapping[str, str] = {
    **{f"training.{key}": f"parallelism.{key}" for key in _DEGREES},
    **{f"experimental.{key}": f"parallelism.{key}" for key in _EXPERIMENTAL},
    **{f"float8.{key}": f"quantize.linear.float8.{key}" for key in _LINEAR_FLOAT8},
    **{f"mx.{key}": f"quantize.linear.mx.{key}" for key in ("recipe_name", "filter_fqns", "mxfp8_dim1_cast_kernel_choice")},
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "training.batch_size": "training.local_batch_size",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.compile": "compile.enable",
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "training.enable_fsdp_float8_all_gather": "quantize.linear.float8.enable_fsdp_float8_all_gather",
    "training.precompute_float8_dynamic_scale_for_fsdp": (
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"
    ),
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "training.debug_moe_force_load_balance": "debug.moe_force_load_balance",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.initial_load_model_weights_only": "checkpoint.initial_load_model_only",
    "job.print_args": "job.print_config",
    "memory_estimation.enabled": "memory_estimation.enable",
    "validation.enabled": "validation.enable",
    "profiling.run_profiler": "profiling.enable_profiling",
    "profiling.profile_every_x_iter": "profiling.profile_freq",
}  # fmt: skip
"""Older names of settings, and their newest."""


def read_settings(text: str, words: Sequence[str] = ()) -> list[tuple[str, Any]]:
    """Every setting of a file under its dotted name, then those of a command line, which replace them.

    Raises: MigrationError if the text is not TOML, or a word is no setting.
    """
    try:
        values = tomllib.loads(text, parse_float=WrittenNumber)
    except tomllib.TOMLDecodeError as error:
        raise MigrationError(f"not the TOML that torchtitan reads: {error}") from error
    given = list(_read_words(words))
    replaced = {ALIASES.get(flag, flag) for flag, _ in given}
    return [
        (flag, value) for flag, value in _flatten(values, "") if ALIASES.get(flag, flag) not in replaced
    ] + given


def _read_words(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Settings such as ``--training.steps 100``, ``--training.steps=100`` and ``--training.no-compile``.

    The last of several for one setting counts.
    """
    found: dict[str, Any] = {}
    position = 0
    while position < len(words):
        name, has_value, value = words[position].partition("=")
        position += 1
        if not name.startswith("--") or "." not in name:
            raise MigrationError(f"{name} is no setting of torchtitan; write --section.key VALUE")
        section, _, key = name.removeprefix("--").replace("-", "_").rpartition(".")
        if not has_value and position < len(words) and not words[position].startswith("--"):
            has_value, value = "=", words[position]
            position += 1
        if has_value:
            found[f"{section}.{key}"] = _typed(value)
        else:
            found[f"{section}.{key.removeprefix('no_')}"] = not key.startswith("no_")
    yield from found.items()


def _typed(text: str) -> Any:
    """A value as TOML types it; text where it is none."""
    try:
        return tomllib.loads(f"value = {text}", parse_float=WrittenNumber)["value"]
    except tomllib.TOMLDecodeError:
        return {"True": True, "False": False}.get(text, text)


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
