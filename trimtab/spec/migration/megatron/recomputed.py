"""What a job computes again, as flags: modules of all layers, or whole layers by a rule that Megatron has."""

from collections.abc import Iterator, Sequence

from trimtab.spec.language import Predicate, RecomputeStatement, Value, compile_predicate
from trimtab.spec.migration.conditions import where

_MODULES = {
    "mlp": "name LIKE '%.mlp.%'",
    "moe": "kind IN ('expert', 'router')",
    "moe_act": "name LIKE '%.experts.hidden'",
    "layernorm": "kind = 'norm' AND layer IS NOT NULL",
}
"""Modules that are computed again by name, and their rows."""

_KINDS = {
    "attention_norm": "norm",
    "attention.q": "attention",
    "attention.out": "attention",
    "attention_residual": "residual",
    "mlp_norm": "norm",
    "mlp.hidden": "linear",
}
"""Rows of a layer, with their kinds, that are computed again with it."""

_BORDER = "mlp_residual"
"""The output of a layer."""


def recompute_flags(statement: RecomputeStatement, stages: Sequence[int]) -> tuple[str, ...]:
    """The flags that say the same as a statement; none if Megatron-LM has no such rule.

    Args:
        statement: What is computed again.
        stages: Layers of each stage of the pipeline, in the order of the layers; empty if they are not known.
    """
    for module, rows in _MODULES.items():
        if statement.where == where(rows):
            return ("--recompute-granularity selective", f"--recompute-modules {module}")
    if statement.where is None:
        return _full("uniform", 1)
    holds = compile_predicate(statement.where)
    again = [_is_whole(holds, layer) for layer in range(sum(stages))]
    kept = [not _holds(holds, layer, _BORDER, "residual") for layer in range(sum(stages))]
    return _rule(again, kept, stages)


def _rule(again: Sequence[bool], kept: Sequence[bool], stages: Sequence[int]) -> tuple[str, ...]:
    if again and all(again):
        for count in range(1, len(kept) + 1):
            if kept == [(layer + 1) % count == 0 for layer in range(len(kept))]:
                return _full("uniform", count)
    if any(again) and all(kept):
        for count in range(1, max(stages) + 1):
            if again == list(_first_of_each(stages, count)):
                return _full("block", count)
    return ()


def _first_of_each(stages: Sequence[int], count: int) -> Iterator[bool]:
    """For each layer whether it is one of the first of its stage."""
    for layers in stages:
        yield from (place < count for place in range(layers))


def _full(method: str, count: int) -> tuple[str, ...]:
    return ("--recompute-granularity full", f"--recompute-method {method}", f"--recompute-num-layers {count}")


def _is_whole(holds: Predicate, layer: int) -> bool:
    return all(_holds(holds, layer, name, kind) for name, kind in _KINDS.items())


def _holds(holds: Predicate, layer: int, name: str, kind: str) -> bool:
    row: dict[str, Value] = {
        "layer": layer,
        "name": f"layers.{layer}.{name}",
        "kind": kind,
    }
    return holds(row.get) is True
