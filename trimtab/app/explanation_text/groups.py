"""The tree of rank groups: what each holds, computes, sends and waits for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trimtab.app.explanation_text.collectives import collective_lines
from trimtab.app.explanation_text.lines import Line, Piece, Style, row
from trimtab.app.explanation_text.quantities import both_flops, flops, levels, moment
from trimtab.cost.estimates import GroupTime
from trimtab.cost.explanation import Explanation
from trimtab.cost.explanation.document import CollectiveFacts, GroupFacts, MemoryFacts
from trimtab.plan.explanation import LevelBytes
from trimtab.terms import format_bytes, format_seconds

_LABELS = 10
"""Columns of the labels in the tree."""


def group_lines(found: Explanation, width: int) -> Iterator[Line]:
    """All groups as a tree; a collective that an earlier group runs alike is only counted in later ones."""
    shown: list[CollectiveFacts] = []
    for number, group in enumerate(found.groups):
        is_last = number == len(found.groups) - 1
        branch = Piece("└─ " if is_last else "├─ ", Style.FAINT)
        stem = Piece("   " if is_last else "│  ", Style.FAINT)
        yield from _title(group, branch, stem, width)
        yield from _facts(group, stem, width)
        yield from _collectives(group, stem, shown, width)
        shown += [_apart(facts) for facts in group.collectives]


def _title(group: GroupFacts, branch: Piece, stem: Piece, width: int) -> Iterator[Line]:
    ranks = "rank" if group.num_ranks == 1 else "ranks"
    nodes = "node" if group.nodes.isdecimal() else "nodes"
    text = (
        f"{group.name}: {group.title}, {group.num_ranks} {ranks} ({group.ranks}) on {nodes} {group.nodes}, "
        f"{group.accelerator}"
    )
    yield from row(text, width=width, indent=(branch,), further_indent=(stem,), style=Style.HEADING)


def _facts(group: GroupFacts, stem: Piece, width: int) -> Iterator[Line]:
    held = [
        f"{table.table.value} {format_bytes(table.device_bytes)}"
        + (f" and {format_bytes(table.host_bytes)} in host memory" if table.host_bytes else "")
        for table in group.memory.held
    ]
    yield from _fact("holds", ", ".join(held), stem, width)
    if any(stage.layers or len(group.stages) > 1 for stage in group.stages):
        stages = "; ".join(_stage(stage.layers, stage.parts) for stage in group.stages)
        yield from _fact("runs", stages, stem, width)
    yield from _fact(
        "memory",
        _memory(group.memory),
        stem,
        width,
        style=Style.BAD if group.memory.fits is False else Style.PLAIN,
    )
    if group.memory.host_bytes:
        yield from _fact("", f"in host memory {format_bytes(group.memory.host_bytes)}", stem, width)
    again = f"; {flops(group.recomputed_flops.causal)} again" if group.recomputed_flops.causal else ""
    yield from _fact("computes", f"{both_flops(group.step_flops)} a step{again}", stem, width)
    if group.time is not None:
        yield from _fact("time", _time(group.time), stem, width)


def _stage(layers: str, parts: Sequence[str]) -> str:
    held = [*(part for part in parts if part == "embedding"), *([f"layers {layers}"] if layers else [])]
    return ", ".join([*held, *(part for part in parts if part == "head")])


def _memory(facts: MemoryFacts) -> str:
    """The moment that needs most by class, and what the others need."""
    (peak,) = (found for found in facts.moments if found.moment is facts.peak)
    classes = [(name, getattr(peak.classes, name)) for name in peak.classes.__slots__]
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in classes if size)
    others = ", ".join(
        f"{moment(other.moment)} {format_bytes(other.total_bytes)}"
        for other in facts.moments
        if other is not peak
    )
    return (
        f"{format_bytes(facts.peak_bytes)} in the {moment(facts.peak)}: {sizes}; {others}; "
        f"the plan's own values {format_bytes(facts.values_bytes)}"
    )


def _time(time: GroupTime) -> str:
    parts = [
        ("compute", time.compute_s),
        ("recompute", time.recompute_s),
        ("communication", time.communication_s),
        ("waiting", time.waiting_s),
        ("optimizer", time.optimizer_s),
    ]
    told = ", ".join(f"{name} {format_seconds(spent)}" for name, spent in parts if spent)
    hidden = time.hidden_communication_s
    return told + (f"; {format_seconds(hidden)} of communication behind it" if hidden else "")


def _collectives(
    group: GroupFacts, stem: Piece, shown: Sequence[CollectiveFacts], width: int
) -> Iterator[Line]:
    """Those that no group above runs alike; sums of single numbers and the rest are counted."""
    if not group.collectives:
        yield from _fact("sends", "nothing", stem, width)
        return
    yield from _fact("sends", f"{levels(group.rank_bytes)} a step and rank, at most", stem, width)
    large = [facts for facts in group.collectives if facts.payload_bytes > _NUMBER_BYTES]
    new = [facts for facts in large if _apart(facts) not in shown]
    notes = []
    if len(large) > len(new):
        notes.append(f"{len(large) - len(new)} as in the groups above")
    if len(group.collectives) > len(large):
        notes.append(f"{len(group.collectives) - len(large)} of single numbers")
    yield from collective_lines(new, stem, width, is_open=bool(notes))
    if notes:
        text = ("and " if new else "collectives: ") + ", ".join(notes)
        end, further = Piece("└─ ", Style.FAINT), Piece("   ")
        yield from row(text, width=width, indent=(stem, end), further_indent=(stem, further))


_NUMBER_BYTES = 8
"""Of the loss, the number of tokens and the norm, whose sums are not worth a line each."""


def _apart(facts: CollectiveFacts) -> CollectiveFacts:
    """A collective without what tells one group's from another's that sends as much in the same way."""
    return replace(facts, num_groups=0, group_bytes=LevelBytes(), tensors="", decided_by="")


def _fact(label: str, text: str, stem: Piece, width: int, *, style: Style = Style.PLAIN) -> Iterator[Line]:
    return row(text, width=width, label=label, label_width=_LABELS, indent=(stem,), style=style)
