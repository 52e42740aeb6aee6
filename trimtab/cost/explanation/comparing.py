"""What a change of a job does: two explanations side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimtab.cost.explanation.document import VERSION, Explanation, Formula, GroupFacts
from trimtab.cost.explanation.places import at
from trimtab.plan.explanation import Decided, decision_changes
from trimtab.plan.physical import Plan
from trimtab.plan.tables import Table
from trimtab.spec import Program


class Unit(StrEnum):
    """What a figure counts."""

    BYTES = "bytes"
    SECONDS = "s"
    FLOPS = "flops"
    DOLLARS = "usd"
    SHARE = "share"
    RATE = "per_s"


@dataclass(frozen=True, kw_only=True, slots=True)
class FactChange:
    """Something said in words that differs.

    Args:
        subject: What it is about.
        before: In the first job.
        after: In the second.
        before_at: The line of the first.
        after_at: The line of the second.
    """

    subject: str
    before: str
    after: str
    before_at: str
    after_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureChange:
    """A number that differs.

    Args:
        subject: What it is about.
        unit: What it counts.
        before: In the first job; null if it has none.
        after: In the second.
    """

    subject: str
    unit: Unit
    before: float | None
    after: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChange:
    """A property of rows that is decided differently.

    Args:
        table: Of the rows.
        rows: Their names in short.
        num_rows: How many.
        property: ``split tp``, ``route dp``, …
        before: In the first job; empty where nothing was said.
        after: In the second.
        before_at: The line that decided it in the first.
        after_at: The line that decided it in the second.
    """

    table: Table
    rows: tuple[str, ...]
    num_rows: int
    property: str
    before: str
    after: str
    before_at: str
    after_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupChange:
    """A group of ranks, before and after.

    Args:
        before: Name and title in the first job; empty if it has no such group.
        after: In the second.
        figures: That differ, of one rank; all of them where one job has no such group.
    """

    before: str
    after: str
    figures: tuple[FigureChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What a second job does otherwise than a first one.

    Args:
        version: Of the document's form.
        before: Name of the first run.
        after: Name of the second.
        is_same: Whether both are the same plan.
        removed: Statements of the first that the second does not have.
        added: Statements of the second that the first does not have.
        facts: What differs in words.
        rows: What is decided differently.
        figures: Of all ranks together.
        groups: Groups of ranks whose figures differ.
    """

    version: int
    before: str
    after: str
    is_same: bool
    removed: tuple[Formula, ...]
    added: tuple[Formula, ...]
    facts: tuple[FactChange, ...]
    rows: tuple[RowChange, ...]
    figures: tuple[FigureChange, ...]
    groups: tuple[GroupChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """A job that was explained.

    Args:
        program: Its formulas.
        plan: What they were compiled to; None for a class of the user's own.
        explanation: What was told of it.
    """

    program: Program
    plan: Plan | None
    explanation: Explanation


def comparison(first: Explained, second: Explained) -> Comparison:
    """What a second job does otherwise than a first one."""
    before, after = first.explanation, second.explanation
    facts = tuple(_facts(before, after))
    rows = tuple(_rows(first, second))
    figures = tuple(_figures(before, after))
    groups = tuple(_groups(before.groups, after.groups))
    return Comparison(
        version=VERSION,
        before=before.run,
        after=after.run,
        is_same=not (facts or rows or figures or groups),
        removed=_only(before.formulas, after.formulas),
        added=_only(after.formulas, before.formulas),
        facts=facts,
        rows=rows,
        figures=figures,
        groups=groups,
    )


def _only(formulas: Sequence[Formula], others: Sequence[Formula]) -> tuple[Formula, ...]:
    known = {formula.text for formula in others}
    return tuple(formula for formula in formulas if formula.text not in known)


def _facts(before: Explanation, after: Explanation) -> Iterator[FactChange]:
    for (subject, was, was_at), (_, is_now, now_at) in zip(_told(before), _told(after), strict=True):
        if was != is_now:
            yield FactChange(subject=subject, before=was, after=is_now, before_at=was_at, after_at=now_at)


def _told(found: Explanation) -> Iterator[tuple[str, str, str]]:
    """What can differ in words: subject, text, line."""
    yield "model", found.model.network, found.model.decided_by
    yield "cluster", f"{found.where.cluster}, {found.where.num_devices} devices", found.where.decided_by
    axes = ", ".join(f"{axis.axis} {axis.size}" for axis in found.mesh.axes)
    yield "mesh", axes, found.mesh.decided_by
    work, lines = found.work, found.work.decided_by if found.work else {}
    batch = f"{work.batch} samples of {work.sequence} tokens" if work else ""
    yield "batch", batch, lines.get("train.batch", "")
    order = "in a fixed tree" if work and work.has_fixed_order else "in the backend's order"
    yield "shares", f"{work.parts} {order}" if work else "", lines.get("fault_tolerance.shares", "")
    microbatch = f"{work.microbatch} at once, {work.microbatches_per_part} times a share" if work else ""
    yield "microbatch", microbatch, lines.get("train.microbatch", "")
    yield "compute", work.compute if work else "", lines.get("train.compute", "")
    pipeline = found.pipeline
    stages = "none"
    if pipeline is not None:
        layers = "; ".join(stage.layers for stage in found.stages)
        stages = f"{pipeline.schedule.value} over {pipeline.axis}, layers {layers}"
    yield "pipeline", stages, pipeline.decided_by if pipeline else ""
    yield "on_loss", found.on_loss.rule.value, found.on_loss.limited_by or found.on_loss.decided_by
    yield "fits", {True: "yes", False: "no", None: "not known"}[found.fits], ""


def _rows(first: Explained, second: Explained) -> Iterator[RowChange]:
    if first.plan is None or second.plan is None:
        return
    changed = decision_changes((first.plan, first.program), (second.plan, second.program))
    for table, changes in changed.items():
        for change in changes:
            known = change.before or change.after
            assert known is not None, "a change has one side at least"
            if known.property == "stage":
                continue  # The stages stand among the facts.
            yield RowChange(
                table=table,
                rows=change.rows,
                num_rows=change.num_rows,
                property=known.property,
                before=_value(change.before),
                after=_value(change.after),
                before_at=_line(change.before),
                after_at=_line(change.after),
            )


def _value(decided: Decided | None) -> str:
    return decided.value if decided else ""


def _line(decided: Decided | None) -> str:
    return at(decided.line) if decided else ""


def _figures(before: Explanation, after: Explanation) -> Iterator[FigureChange]:
    yield from _changed(_totals(before), _totals(after))


_Figures = Sequence[tuple[str, Unit, float | None]]


def _totals(found: Explanation) -> _Figures:
    cost, work, pipeline = found.cost, found.work, found.pipeline
    return (
        ("step", Unit.SECONDS, cost.step_s.expected if cost.step_s else None),
        ("tokens", Unit.RATE, cost.tokens_per_s.expected if cost.tokens_per_s else None),
        ("dollars a step", Unit.DOLLARS, cost.usd_per_step.expected if cost.usd_per_step else None),
        ("dollars of the run", Unit.DOLLARS, cost.usd.expected if cost.usd else None),
        ("bubble", Unit.SHARE, pipeline.bubble_share if pipeline else None),
        ("FLOPs", Unit.FLOPS, work.useful_flops.causal if work else None),
        ("FLOPs again", Unit.FLOPS, work.recomputed_flops.causal if work else None),
        ("sent in nodes", Unit.BYTES, found.sent_bytes.node),
        ("sent between nodes", Unit.BYTES, found.sent_bytes.site),
    )


def _groups(before: Sequence[GroupFacts], after: Sequence[GroupFacts]) -> Iterator[GroupChange]:
    """Groups side by side in order; the ones that are left over stand alone."""
    for number in range(max(len(before), len(after))):
        was = before[number] if number < len(before) else None
        is_now = after[number] if number < len(after) else None
        figures = tuple(_changed(_figures_of(was), _figures_of(is_now)))
        if figures or _title(was) != _title(is_now):
            yield GroupChange(before=_title(was), after=_title(is_now), figures=figures)


def _title(group: GroupFacts | None) -> str:
    return f"{group.name}: {group.title}, ranks {group.ranks}" if group else ""


def _figures_of(group: GroupFacts | None) -> _Figures:
    held = {table.table: table.device_bytes for table in group.memory.held} if group else {}
    memory = group.memory if group else None
    time = group.time if group else None
    return (
        ("peak memory", Unit.BYTES, memory.peak_bytes if memory else None),
        ("host memory", Unit.BYTES, memory.host_bytes if memory else None),
        *((table.value, Unit.BYTES, held.get(table)) for table in (Table.PARAMS, Table.GRADS, Table.STATES)),
        ("kept activations", Unit.BYTES, _kept(group)),
        ("sent in nodes", Unit.BYTES, group.rank_bytes.node if group else None),
        ("sent between nodes", Unit.BYTES, group.rank_bytes.site if group else None),
        ("compute", Unit.SECONDS, time.compute_s if time else None),
        ("recompute", Unit.SECONDS, time.recompute_s if time else None),
        ("communication", Unit.SECONDS, time.communication_s if time else None),
        ("waiting", Unit.SECONDS, time.waiting_s if time else None),
    )


def _kept(group: GroupFacts | None) -> float | None:
    return max(moment.classes.activations for moment in group.memory.moments) if group else None


def _changed(before: _Figures, after: _Figures) -> Iterator[FigureChange]:
    for (subject, unit, was), (_, _, is_now) in zip(before, after, strict=True):
        if was != is_now:
            yield FigureChange(subject=subject, unit=unit, before=was, after=is_now)
