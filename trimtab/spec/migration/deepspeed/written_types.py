"""Formulas that say in which type something is kept or summed, as settings of DeepSpeed."""

from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.spec.language import KeepStatement, ReduceStatement
from trimtab.spec.migration.conditions import where
from trimtab.spec.migration.deepspeed.facts import Facts
from trimtab.spec.migration.deepspeed.reductions import BUCKET, BYTES, QUANTIZED, WIRE

ACCUMULATED = "data_types.grad_accum_dtype"

_NO_WHERE = "a setting holds for all tensors alike"
_WHOLE = frozenset({"params", "grads"})


def reduce_settings(statement: ReduceStatement, facts: Facts) -> tuple[Mapping[str, Any], list[str]]:
    """The settings of a REDUCE statement, and what is lost; neither if it says what DeepSpeed does anyway."""
    settings: dict[str, Any] = {}
    compress = statement.compress.name.text if statement.compress else "none"
    wire = "bf16" if compress == "bf16" else statement.wire.text if statement.wire else None
    if wire in BYTES:
        settings[WIRE] = wire
    if statement.bucket_bytes is not None and facts.zero.stage:
        settings[BUCKET] = max(1, statement.bucket_bytes // BYTES.get(wire or "fp32", 1))
    if compress == "int8" and facts.zero.stage == 3:
        settings[QUANTIZED] = True
    return settings, list(_lost_of_reduction(statement, facts, compress=compress, wire=wire))


def keep_settings(statement: KeepStatement, facts: Facts) -> tuple[Mapping[str, Any], list[str]]:
    """The settings of a KEEP statement, and what is lost; neither if it says what DeepSpeed does anyway."""
    tables, dtype = {table.text for table in statement.tables}, statement.dtype.text
    if statement.where is not None:
        return {}, [_NO_WHERE]
    if dtype == "fp32":
        return {}, []
    if dtype != "bf16" or not facts.is_bf16:
        return {}, ["tables are kept in fp32 there, or in bf16 where products run in it"]
    if facts.kept_in_bf16 >= _WHOLE:
        return {f"bf16.{key}": True for key, kept in _KEPT.items() if tables & kept}, []
    rest = tables - {"grads"}
    settings = {ACCUMULATED: "bf16"} if "grads" in tables else {}
    return settings, [
        f"{' and '.join(sorted(rest))} in bf16 only with both parameters and gradients"
    ] if rest else []


_KEPT = {"bf16_master_weights_and_grads": _WHOLE, "bf16_optimizer_states": frozenset({"states"})}


def _lost_of_reduction(
    statement: ReduceStatement, facts: Facts, *, compress: str, wire: str | None
) -> Iterator[str]:
    if statement.where not in (None, where("kind <> 'expert'"), where("kind = 'expert'")):
        yield _NO_WHERE
    if facts.averaged:
        yield f"gradients are summed over all {facts.replicas} replicas in every step there"
    if statement.using is not None and statement.using.name.text not in ("native", "default"):
        yield f"sums travel as NCCL has it, not by {statement.using.name.text}"
    if compress == "int8" and facts.zero.stage == 3:
        yield "int4 in two stages, and the error lost unless zeropp_loco_param keeps it"
    elif compress == "int8":
        yield "gradients are quantized at stage 3 alone there"
    elif compress not in ("none", "bf16"):
        yield f"no compression like {compress} there"
    if wire is not None and wire not in BYTES:
        yield "gradients travel in fp32, fp16 or bf16 there"
    if statement.bucket_bytes is not None and not facts.zero.stage:
        yield "without ZeRO buckets have a fixed size there"
