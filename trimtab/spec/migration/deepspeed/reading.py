"""A DeepSpeed configuration as settings: Hjson in, dotted names out."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.spec.migration.drafts import WrittenNumber
from trimtab.spec.migration.settings import MigrationError
from trimtab.terms import Span, caret_under

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)


def read_config(text: str, *, name: str) -> Mapping[str, Any]:
    """The one object of a configuration.

    DeepSpeed reads Hjson. Of what that allows beyond JSON, comments and commas before a closing bracket are
    understood, which is what people use.

    Raises: MigrationError with the place, if the text is anything else, or holds a key twice.
    """
    plain = _TOKEN.sub(_blank, text)
    # A comma may have been followed by a comment, which is blank now.
    plain = _TOKEN.sub(_blank, plain)
    try:
        values = json.loads(plain, object_pairs_hook=_object, parse_float=WrittenNumber)
    except json.JSONDecodeError as error:
        span = Span(source=name, line=error.lineno, column=error.colno)
        raise MigrationError(
            f"line {error.lineno}, column {error.colno}: not the JSON that DeepSpeed reads: {error.msg}\n"
            f"{caret_under(span, text)}\n"
            "  A template must be filled in before it is imported."
        ) from error
    if not isinstance(values, dict):
        raise MigrationError("a DeepSpeed configuration is one object of settings")
    return values


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting under its dotted name.

    An object that is no section of `SECTIONS` is one setting; each object of a list is one, too.
    """
    for key, value in values.items():
        flag = f"{prefix}{key}"
        if isinstance(value, dict) and value and flag in SECTIONS:
            yield from flatten(value, f"{flag}.")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield from ((f"{flag}[{place}]", item) for place, item in enumerate(value))
        else:
            yield flag, value


SECTIONS = frozenset({
    "activation_checkpointing", "amp", "bf16", "bfloat16", "data_types", "elasticity", "expert_parallel", "fp16",
    "optimizer", "optimizer.params", "pipeline", "scheduler", "scheduler.params", "tensor_parallel",
    "tensor_parallel.partition_config", "tensor_parallel.tp", "torch_autocast", "zero_optimization",
    "zero_optimization.offload_optimizer", "zero_optimization.offload_param",
})  # fmt: skip
"""Objects whose settings have fates of their own."""


_OF_STAGE_3 = (
    "allgather_sequential", "gather_16bit_weights_on_model_save", "max_live_parameters", "max_reuse_distance",
    "model_persistence_threshold", "module_granularity_threshold", "param_persistence_threshold",
    "prefetch_bucket_size", "use_all_reduce_for_fetch_params",
)  # fmt: skip

ALIASES: Mapping[str, str] = {
    **{f"zero_optimization.{key}": f"zero_optimization.stage3_{key}" for key in _OF_STAGE_3},
    **{
        f"bfloat16.{key}": f"bf16.{key}"
        for key in ("enabled", "immediate_grad_update", "check_grad_overflow")
    },
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    ),
    "zero_optimization.cpu_offload_params": "zero_optimization.cpu_offload_param",
    "bf16.check_overflow": "bf16.check_grad_overflow",
}
"""Names that DeepSpeed takes for a setting beside the one that it is known by here."""


def _blank(match: re.Match[str]) -> str:
    """Spaces for a comment or a comma too many, so that every other place stays where it was."""
    token = match[0]
    return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise MigrationError(f"the key {key!r} stands twice in one object; DeepSpeed refuses that")
        seen[key] = value
    return seen
