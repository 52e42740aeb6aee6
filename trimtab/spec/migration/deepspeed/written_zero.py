"""Formulas that say where state is stored, as ZeRO says it.

A stage holds for the whole job, while every STORE statement speaks for itself: the stage is the lowest that divides
what any of them names, and each statement tells what the stage does beyond it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.spec.language import (
    Column,
    Comparator,
    Comparison,
    Expression,
    Literal,
    OffloadStatement,
    Program,
    StoreStatement,
)
from trimtab.spec.migration.conditions import where
from trimtab.spec.migration.deepspeed.devices import HPZ, MICS
from trimtab.spec.migration.deepspeed.zero import SECTION, STAGE, THRESHOLD
from trimtab.spec.migration.roles import Roles

_BY_STAGE = ("states", "grads", "params")
_EXPERTS, _OTHERS = "kind = 'expert'", "kind <> 'expert'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero:
    """What the STORE statements of a job amount to.

    Args:
        stage: 0 to 3.
        placed: The axes that each table lies over, outermost first, without those of one device.
        ranks: The axes that ZeRO divides over, outermost first, without those of one device.
    """

    stage: int
    placed: Mapping[str, tuple[str, ...]]
    ranks: tuple[str, ...]

    def is_group(self, axes: Sequence[str]) -> bool:
        """Whether axes are some of the innermost, so that neighbours hold one copy together."""
        return 0 < len(axes) < len(self.ranks) and self.ranks[-len(axes) :] == tuple(axes)


def zero_of(program: Program, roles: Roles) -> Zero:
    """The stage that a job's formulas amount to, and what lies over which axes."""
    ranks = tuple(axis for axis, size in roles.sizes.items() if axis in roles.sums and size > 1)
    placed = {
        table.text: _present(statement, roles)
        for statement in program.statements
        if isinstance(statement, StoreStatement) and not _is_of_experts(statement)
        if not _why_not(statement, roles)
        for table in statement.tables
    }
    stage = max((_BY_STAGE.index(table) + 1 for table in placed), default=0)
    is_pipeline = roles.size(roles.stages) > 1
    return Zero(stage=min(stage, 1) if is_pipeline else stage, placed=placed, ranks=ranks)


def store_settings(
    statement: StoreStatement, zero: Zero, roles: Roles
) -> tuple[Mapping[str, Any], list[str]]:
    """The settings of a STORE statement, and what is lost or done otherwise."""
    if reason := _why_not(statement, roles):
        return {}, [reason]
    if _is_of_experts(statement):
        return {}, ["experts are stored as the rest is there, over the devices that hold the same ones"]
    settings: dict[str, Any] = {STAGE: zero.stage}
    lost = list(_lost_of_stage(statement, zero, roles))
    tables, axes = {table.text for table in statement.tables}, _present(statement, roles)
    if zero.stage == 3 and zero.is_group(axes):
        if set(zero.placed.values()) == {axes}:
            settings[MICS] = roles.size(axes)
        elif tables == {"params"}:
            settings[HPZ] = roles.size(axes)
            lost.append("the group's copy is a second one: the first lies over all devices")
    if (smallest := _smallest(statement.where)) is not None and zero.stage == 3:
        settings[THRESHOLD] = smallest
    if axes != zero.ranks and not settings.keys() & {MICS, HPZ}:
        lost.append(f"divided over all {roles.size(zero.ranks)} data-parallel devices there")
    return settings, lost


def offload_settings(statement: OffloadStatement, zero: Zero) -> tuple[Mapping[str, Any], list[str]]:
    """The settings of an OFFLOAD statement for params, grads and states, and what is lost or done otherwise."""
    tables = {table.text for table in statement.tables}
    if statement.where is not None:
        return {}, [
            "a whole table, or a share of the states by bytes (offload_optimizer.ratio), goes to the host there"
        ]
    settings, lost = {}, []
    if tables & {"states", "grads"}:
        if zero.stage == 0:
            lost.append("without ZeRO nothing is kept on the host there")
        else:
            settings[f"{SECTION}.offload_optimizer.device"] = "cpu"
    if "params" in tables:
        if zero.stage < 3:
            lost.append("parameters are kept on the host at stage 3 alone there")
        else:
            settings[f"{SECTION}.offload_param.device"] = "cpu"
    if settings and "grads" in tables and "states" not in tables:
        lost.append("states go to the host with the gradients there")
    return settings, lost


def _present(statement: StoreStatement, roles: Roles) -> tuple[str, ...]:
    named = {axis.text for axis in statement.axes}
    return tuple(axis for axis, size in roles.sizes.items() if axis in named and size > 1)


def _why_not(statement: StoreStatement, roles: Roles) -> str:
    """Why ZeRO cannot say a statement at all; empty if it can."""
    if statement.on is not None:
        return "a stage holds for all devices alike"
    if any(axis not in roles.sums for axis in _present(statement, roles)):
        return "ZeRO divides over data-parallel and sequence-parallel devices alone"
    is_plain = statement.where in (None, where(_EXPERTS), where(_OTHERS))
    is_by_size = {table.text for table in statement.tables} == {"params"} and _smallest(
        statement.where
    ) is not None
    return "" if is_plain or is_by_size else "ZeRO divides a table whole, or the parameters above a size"


def _is_of_experts(statement: StoreStatement) -> bool:
    return statement.where == where(_EXPERTS)


def _smallest(condition: Expression | None) -> int | None:
    """Elements that a parameter must have more of to be divided; None if that is not what the condition says."""
    match condition:
        case Comparison(
            operator=Comparator.GREATER, left=Column(name=name), right=Literal(value=int(number))
        ) if name.text == "numel":
            return number
    return None


def _lost_of_stage(statement: StoreStatement, zero: Zero, roles: Roles) -> Iterator[str]:
    tables = {table.text for table in statement.tables}
    highest = max(_BY_STAGE.index(table) + 1 for table in tables)
    missing = [table for table in _BY_STAGE[: zero.stage] if table not in zero.placed]
    if highest > zero.stage:
        yield "pipelines there take stages 0 and 1"
    elif highest == zero.stage and missing:
        yield f"stage {zero.stage} divides {' and '.join(missing)} too"
