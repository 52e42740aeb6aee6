"""AutoTP: matrices split by the kind of layer, or by patterns over the names of parameters.

Which named dim a spec cuts follows from the names of the matrices. Of several specs that match, DeepSpeed takes the
first; here the last statement decides, so that they are written in reverse.

Source: DeepSpeed 0.19, deepspeed/module_inject/autotp_config.py and auto_tp.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.spec.migration.deepspeed.devices import TENSOR
from trimtab.spec.migration.deepspeed.matrices import Side, dim_of
from trimtab.spec.migration.deepspeed.patterns import PatternError, like_patterns
from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout

SECTION = "tensor_parallel."
SPECS = f"{SECTION}partition_config.layer_specs"
DEFAULTS = f"{SECTION}partition_config.use_default_specs"

_PRESETS = ("llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3")
_LAYERS = "SPLIT heads, mlp OVER tp"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spec:
    """One entry of ``layer_specs``.

    Args:
        patterns: LIKE patterns of the names that it speaks of.
        kind: column, row or skip.
        is_plain: Whether the weight is cut as one matrix, not as several in one.
    """

    patterns: tuple[str, ...]
    kind: str
    is_plain: bool


def answer_tensors(draft: Draft, layout: Layout) -> None:
    """Write what is split over the tensor-parallel devices.

    Raises: MigrationError if a setting has the wrong type.
    """
    for flag in TENSOR:
        if layout.tp > 1:
            draft.carried(flag, layout.mesh)
        else:
            draft.irrelevant(flag, "one part is no split")
    if layout.tp > 1:
        _answer_layers(draft)
    for key, reason in _OTHER_KEYS.items():
        if f"{SECTION}{key}" in draft.unanswered(SECTION):
            draft.irrelevant(f"{SECTION}{key}", reason)


_OTHER_KEYS = {
    "enabled": "the degree says so",
    "dtype": "train.compute is the type",
    "tp_overlap_comm": "what overlaps is the runtime's affair",
    "tp.tp_grain_size": "parts are cut between heads, and evenly",
    "keep_module_on_host": "how a model is loaded",
    "preset_model": "nothing is split",
    "partition_config": "nothing is split",
    "partition_config.use_default_specs": "nothing is split",
    "partition_config.strict_mode": "a statement that matches no row is an error in any case",
    "partition_config.layer_specs": "nothing is split",
    "partition_config.tp_size": "autotp_size is the degree",
    "injection_policy_tuple": "formulas name what is split",
    "kernel_inject": "kernels for inference",
    "replace_with_kernel_inject": "kernels for inference",
}


def _answer_layers(draft: Draft) -> None:
    specs = sorted(draft.unanswered(f"{SPECS}["), key=len)
    preset = f"{SECTION}preset_model"
    if not specs or (preset in draft and draft.switch(DEFAULTS) is not False):
        draft.put(_LAYERS)
        draft.carried(DEFAULTS, _LAYERS)
        draft.carried(preset, _LAYERS)
    else:
        for flag in (DEFAULTS, preset):
            draft.irrelevant(flag, "the specs stand alone")
    if preset in draft and draft.word(preset) not in _PRESETS:
        draft.impossible(preset, f"DeepSpeed has the presets {', '.join(_PRESETS)}")
    if specs:
        _answer_specs(draft, specs)
    else:
        draft.warnings.append(
            "AutoTP leaves embedding and head whole, and so does the job; SPLIT heads, mlp, vocab OVER tp splits "
            "them too."
        )


def _answer_specs(draft: Draft, flags: Sequence[str]) -> None:
    """Write the specs from the last to the first, each without what an earlier one leaves whole."""
    read: list[tuple[str, _Spec | str, tuple[str, ...]]] = []
    whole: list[str] = []
    for flag in flags:
        spec = _read(draft.value(flag))
        read.append((flag, spec, tuple(whole)))
        if isinstance(spec, _Spec) and spec.kind == "skip":
            whole += spec.patterns
    for flag, spec, left_whole in reversed(read):
        _answer_spec(draft, flag, spec, left_whole)
    draft.warnings.append("The patterns name tensors of your own model: set model.module to its class.")


def _answer_spec(draft: Draft, flag: str, spec: _Spec | str, whole: Sequence[str]) -> None:
    if isinstance(spec, str):
        draft.impossible(flag, spec)
        return
    if spec.kind == "skip":
        draft.irrelevant(flag, "what no statement names stays whole, and the others leave it out")
        return
    by_dim: dict[str | None, list[str]] = {}
    for pattern in spec.patterns:
        by_dim.setdefault(dim_of(pattern, Side(spec.kind)), []).append(pattern)
    lost = [] if spec.is_plain else ["matrices packed in one (shape) are cut as one"]
    if unknown := by_dim.pop(None, []):
        lost.append(f"which dim of {', '.join(unknown)} is cut, only your model knows: write SPLIT for it")
    formulas = [_statement(str(dim), patterns, whole) for dim, patterns in by_dim.items()]
    if not formulas:
        draft.impossible(flag, "; ".join(lost))
    elif lost:
        draft.changed(flag, *formulas, reason="; ".join(lost))
    else:
        draft.carried(flag, *formulas)


def _read(written: Any) -> _Spec | str:
    """A spec, or the reason why it cannot be read or said."""
    patterns = written.get("patterns")
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        return "DeepSpeed takes a list of patterns"
    kind = str(written.get("partition_type", "column")).casefold()
    if kind not in ("column", "row", "skip"):
        return "DeepSpeed takes the partition types column, row and skip"
    try:
        said = [pattern for expression in patterns for pattern in like_patterns(expression)]
    except PatternError as error:
        return str(error)
    return _Spec(patterns=tuple(said), kind=kind, is_plain=written.get("shape") is None)


def _statement(dim: str, patterns: Sequence[str], whole: Sequence[str]) -> str:
    where = " OR ".join(f"name LIKE '{pattern}'" for pattern in patterns)
    if whole:
        where = f"({where})" if len(patterns) > 1 else where
        where = " AND ".join([where, *(f"name NOT LIKE '{pattern}'" for pattern in whole)])
    return f"SPLIT {dim} OF params WHERE {where} OVER tp"
