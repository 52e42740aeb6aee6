"""Formulas as settings of DeepSpeed, each with what became of it."""

from collections.abc import Mapping
from typing import Any

from trimtab.spec.job_files import LoadedJob
from trimtab.spec.language import (
    AverageStatement,
    ComputeStatement,
    Expression,
    KeepStatement,
    MeshStatement,
    OffloadStatement,
    PlaceStatement,
    RecomputeStatement,
    ReduceStatement,
    SealStatement,
    SplitStatement,
    Statement,
    StoreStatement,
    Value,
    compile_predicate,
    print_statement,
)
from trimtab.spec.migration.conditions import where
from trimtab.spec.migration.deepspeed.facts import Facts
from trimtab.spec.migration.deepspeed.layers import CHECKPOINTS_ON_HOST, INTERVAL, OUTPUTS
from trimtab.spec.migration.deepspeed.tensors import DEFAULTS, SPECS
from trimtab.spec.migration.deepspeed.written import Written
from trimtab.spec.migration.deepspeed.written_splits import AUTOTP, degrees, lost_of_mesh, split_settings
from trimtab.spec.migration.deepspeed.written_tensors import NO_SPEC, is_by_name, specs_of
from trimtab.spec.migration.deepspeed.written_types import keep_settings, reduce_settings
from trimtab.spec.migration.deepspeed.written_zero import offload_settings, store_settings
from trimtab.spec.migration.roles import role_of

_NO_ON = "a setting holds for all devices alike"
_BATCH = "the batch is divided over the devices that the degrees leave, as here"
_CALLED = "the model's code says so: deepspeed.checkpointing.checkpoint, or gradient_checkpointing_enable of transformers"


def write_statements(written: Written, loaded: LoadedJob, facts: Facts) -> None:
    """Every formula with its settings, or why there are none."""
    specs = _specs(loaded)
    for statement in loaded.program.statements:
        text = print_statement(statement)
        if getattr(statement, "on", None) is not None:
            written.refuse(text, "", _NO_ON)
        elif isinstance(statement, SplitStatement) and is_by_name(statement):
            _write_by_name(written, text, statement, facts, specs)
        else:
            _write(written, text, statement, facts)
    for axis in facts.roles.unused:
        written.sheet.warnings.append(
            f"nothing that DeepSpeed divides lies over {axis}: its devices become data parallel"
        )


def _write(written: Written, text: str, statement: Statement, facts: Facts) -> None:
    match statement:
        case MeshStatement():
            settings, lost = degrees(facts), list(lost_of_mesh(facts))
            _tell(
                written, text, settings, lost, default="data parallelism takes the devices there are, as here"
            )
        case SplitStatement() if role_of(statement) == "batch":
            written.drop(text, "", _BATCH)
        case SplitStatement():
            written.tell(text, "", *split_settings(statement, facts))
        case StoreStatement():
            written.tell(text, "", *store_settings(statement, facts.zero, facts.roles))
        case ReduceStatement():
            default = "gradients are summed over the data-parallel devices, as here"
            _tell(written, text, *reduce_settings(statement, facts), default=default)
        case KeepStatement():
            _tell(written, text, *keep_settings(statement, facts), default="kept in fp32 there, too")
        case OffloadStatement() if {table.text for table in statement.tables} == {"activations"}:
            _write_activations_on_host(written, text, statement)
        case OffloadStatement():
            written.tell(text, "", *offload_settings(statement, facts.zero))
        case RecomputeStatement():
            _write_recomputation(written, text, statement, facts)
        case _:
            written.refuse(text, "", _NEVER[type(statement)])


_NEVER: Mapping[type[Statement], str] = {
    AverageStatement: "replicas there take every step together",
    SealStatement: "nothing is encrypted on the wire there",
    PlaceStatement: "PipelineModule of your script shares layers out by a rule: partition_method",
    ComputeStatement: "matrix products have one type there, that of train.compute",
}


def _tell(written: Written, text: str, settings: Mapping[str, Any], lost: list[str], *, default: str) -> None:
    """As `Written.tell`; what neither needs a setting nor loses anything is how DeepSpeed has it anyway."""
    if settings or lost:
        written.tell(text, "", settings, lost)
    else:
        written.drop(text, "", default)


def _write_recomputation(written: Written, text: str, statement: RecomputeStatement, facts: Facts) -> None:
    if facts.roles.size(facts.roles.stages) > 1 and _is_of_whole_layers(statement.where):
        written.carry(text, "", {INTERVAL: 1})
    else:
        written.refuse(text, "", _CALLED)


_PARTS = {"attention_norm": "norm", "attention.out": "attention", "mlp.hidden": "linear"}
"""Rows of a layer that are computed again with all of it, and their kinds."""

_SAMPLE = range(4)
"""Layers that a condition is tried on."""


def _is_of_whole_layers(condition: Expression | None) -> bool:
    """Whether every layer is computed again, whatever words say so; its output may be kept."""
    if condition is None:
        return True
    holds = compile_predicate(condition)
    rows: list[dict[str, Value]] = [
        {"layer": layer, "name": f"layers.{layer}.{part}", "kind": kind}
        for layer in _SAMPLE
        for part, kind in _PARTS.items()
    ]
    return all(holds(row.get) is True for row in rows)


def _write_activations_on_host(written: Written, text: str, statement: OffloadStatement) -> None:
    if statement.where == where(OUTPUTS):
        reason = "where the model's code calls deepspeed.checkpointing.checkpoint"
        written.change(text, "", {CHECKPOINTS_ON_HOST: True}, reason=reason)
    else:
        written.refuse(
            text, "", "the outputs of layers that are computed again go to the host there, nothing else"
        )


def _specs(loaded: LoadedJob) -> list[Mapping[str, Any]]:
    """The specs of all statements by name, the last statement first."""
    by_name = [
        statement
        for statement in loaded.program.statements
        if isinstance(statement, SplitStatement) and statement.on is None and is_by_name(statement)
    ]
    return [spec for statement in reversed(by_name) for spec in specs_of(statement)]


def _write_by_name(
    written: Written, text: str, statement: SplitStatement, facts: Facts, specs: list[Mapping[str, Any]]
) -> None:
    if not specs_of(statement):
        written.refuse(text, "", NO_SPEC)
        return
    settings = {AUTOTP: degrees(facts).get(AUTOTP, 1), DEFAULTS: facts.splits_by_kind, SPECS: specs}
    written.carry(text, "", settings)
