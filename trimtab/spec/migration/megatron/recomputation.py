"""Which activations are not kept for the backward pass, but computed again."""

from collections.abc import Sequence

from trimtab.spec.migration.megatron.draft import Draft
from trimtab.spec.migration.megatron.stages import Stage

_GRANULARITY, _METHOD, _MODULES = "--recompute-granularity", "--recompute-method", "--recompute-modules"
_SELECTIVE, _FULL = "--recompute-activations", "--checkpoint-activations"
_OLD_METHOD = "--activations-checkpoint-method"
_COUNTS = ("--recompute-num-layers", "--activations-checkpoint-num-layers", "--checkpoint-num-layers")
_MOE = "--moe-layer-recompute"

_ROWS = {
    "mlp": "name LIKE '%.mlp.%'",
    "moe": "kind IN ('expert', 'router')",
    "moe_act": "name LIKE '%.experts.hidden'",
    "layernorm": "kind = 'norm' AND layer IS NOT NULL",
}
"""The activations of each module of ``--recompute-modules`` that can be computed again here."""

_OF_DENSE, _OF_EXPERTS = ("mlp",), ("moe", "moe_act")
"""Those of layers without experts, and of layers with them."""

_KERNEL = "core_attn"
_BORDER = "name LIKE '%.mlp_residual'"
"""The output of a layer, which is what the next one is computed again from."""


def state_recomputation(draft: Draft, stages: Sequence[Stage], *, has_experts: bool) -> None:
    """State what is computed again; all layers hold experts, or none does."""
    granularity = draft.flags.text(_GRANULARITY)
    if granularity == "full" or (granularity is None and _is_full_of_old(draft)):
        _full(draft, stages)
    elif granularity == "selective" or _SELECTIVE in draft.flags:
        _selective(draft, has_experts=has_experts)
    else:
        _none(draft)
    if _MOE in draft.flags and has_experts:
        draft.carry(_MOE, draft.state(f"RECOMPUTE activations WHERE {_ROWS['moe']}"))
    elif not has_experts:
        draft.drop(_MOE, "no layer holds experts")


def _is_full_of_old(draft: Draft) -> bool:
    return any(name in draft.flags for name in (_FULL, _OLD_METHOD))


def _full(draft: Draft, stages: Sequence[Stage]) -> None:
    method = draft.flags.text(_METHOD) or draft.flags.text(_OLD_METHOD) or "uniform"
    count = next((number for name in _COUNTS if (number := draft.flags.positive(name))), 1)
    rows = _block(stages, count) if method == "block" else _uniform(count)
    statement = draft.state(f"RECOMPUTE activations WHERE {rows}")
    for name in (_GRANULARITY, _METHOD, _OLD_METHOD, _FULL, *_COUNTS):
        draft.carry(name, statement)
    for name in (_SELECTIVE, _MODULES):
        draft.drop(name, "whole layers are computed again, these parts with them")


def _uniform(count: int) -> str:
    """All of every layer but the outputs of each so many layers."""
    if count == 1:
        return f"layer >= 0 AND NOT {_BORDER}"
    return f"layer >= 0 AND NOT ({_BORDER} AND (layer + 1) % {count} = 0)"


def _block(stages: Sequence[Stage], count: int) -> str:
    """All of the first layers of each stage but their outputs."""
    sizes = {stage.end - stage.first for stage in stages}
    if max(sizes) <= count:
        return _uniform(1)
    if len(stages) > 1 and len(sizes) == 1:
        rows = f"layer % {max(sizes)} < {count}"
    else:
        ranges = [
            _range(stage.first, min(stage.first + count, stage.end))
            for stage in stages
            if stage.end > stage.first
        ]
        rows = ranges[0] if len(ranges) == 1 else f"({' OR '.join(ranges)})"
    return f"{rows} AND NOT {_BORDER}"


def _range(first: int, end: int) -> str:
    return f"layer = {first}" if end == first + 1 else f"layer BETWEEN {first} AND {end - 1}"


def _selective(draft: Draft, *, has_experts: bool) -> None:
    modules = draft.flags.texts(_MODULES) or (_KERNEL,)
    absent = _OF_DENSE if has_experts else _OF_EXPERTS
    rows = {name: row for name, row in _ROWS.items() if name not in absent}
    statements = [
        draft.state(f"RECOMPUTE activations WHERE {rows[name]}") for name in modules if name in rows
    ]
    left = [name for name in modules if name not in rows and name != _KERNEL]
    kernel = "attention keeps no scores here, its kernel computes them again: nothing is left to say"
    for name in (_GRANULARITY, _SELECTIVE):
        if statements:
            draft.carry(name, *statements)
        else:
            draft.drop(name, kernel)
    _tell_modules(draft, statements, left, kernel)
    for name in (_METHOD, _OLD_METHOD, _FULL, *_COUNTS):
        draft.drop(name, "only for whole layers")


def _tell_modules(draft: Draft, statements: Sequence[str], left: Sequence[str], kernel: str) -> None:
    if left and statements:
        draft.change(_MODULES, *statements, reason=f"networks here have no {', '.join(left)}")
    elif left:
        draft.refuse(_MODULES, f"networks here have no {', '.join(left)}")
    elif statements:
        draft.carry(_MODULES, *statements)
    else:
        draft.drop(_MODULES, kernel)


def _none(draft: Draft) -> None:
    for name in (_METHOD, _OLD_METHOD, _FULL, _SELECTIVE, _MODULES, *_COUNTS):
        draft.drop(name, "nothing is computed again without a granularity")
    draft.refuse(_GRANULARITY, "whole layers are computed again (full) or modules of them (selective)")
