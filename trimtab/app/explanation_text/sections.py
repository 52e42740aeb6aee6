"""The sections of EXPLAIN in text, from the whole run down to single collectives."""

from collections.abc import Iterator, Sequence

from trimtab.app.explanation_text.analyses import analysis_lines
from trimtab.app.explanation_text.groups import group_lines
from trimtab.app.explanation_text.lines import MIN_WIDTH, Line, Piece, Style, heading, row
from trimtab.app.explanation_text.quantities import (
    both_flops,
    counted,
    dollars,
    elements,
    flops,
    levels,
    moment,
    seconds,
    share,
)
from trimtab.app.explanation_text.timelines import timeline_lines
from trimtab.cost.explanation import Explanation
from trimtab.cost.explanation.document import UnevenShares
from trimtab.plan.explanation import ranges
from trimtab.plan.tables import Table
from trimtab.terms import format_bytes, format_seconds

_LABELS = 12
"""Columns of the labels."""

_INDENT = (Piece("  "),)


def explanation_lines(found: Explanation, *, width: int) -> Iterator[Line]:
    """Everything, in lines of at most ``width`` columns (60 if there are fewer)."""
    width = max(width, MIN_WIDTH)
    yield from _summary(found, width)
    for section in (_warnings, _plan, _stages, _groups, _analysis, _replicated, _storage, _decisions, _notes):
        lines = list(section(found, width))
        if lines:
            yield ()
            yield from lines


def _analysis(found: Explanation, width: int) -> Iterator[Line]:
    if found.analysis is not None:
        yield from analysis_lines(found.analysis, width=width)


def _summary(found: Explanation, width: int) -> Iterator[Line]:
    where, cost = found.where, found.cost
    yield heading(f"{found.run} on {where.cluster}")
    if found.work is None:
        what = "its shapes are known to torch only, so there are no figures"
        if found.storage is not None:
            what = "its operators are not known, so no time is"
        yield from _fact("model", f"{found.model.network}: {what}", width)
        return
    if cost.step_s is None:
        yield from _fact("step", f"time not known: {cost.unknown}", width)
    else:
        assert cost.tokens_per_s is not None, "known together"
        rate = f"{cost.tokens_per_s.expected:,.0f} tokens/s"
        used = ", ".join(f"{share(item.value.expected)} ({item.convention.value})" for item in cost.mfu)
        yield from _fact("step", f"{seconds(cost.step_s)}; {rate}", width)
        if used:
            yield from _fact("MFU", f"{used} of the declared peak", width)
    if cost.usd_per_step is not None:
        run = f"; {dollars(cost.usd)} for {cost.steps:,} steps" if cost.usd and cost.steps else ""
        yield from _fact("dollars", f"{dollars(cost.usd_per_step)} a step{run}", width)
    yield from _fits(found, width)


def _fits(found: Explanation, width: int) -> Iterator[Line]:
    largest = max(found.groups, key=lambda group: group.memory.peak_bytes)
    memory = largest.memory
    needs = f"the largest rank needs {format_bytes(memory.peak_bytes)}"
    of = f" of {format_bytes(found.where.device_bytes)}" if found.where.device_bytes else ""
    verdict = {True: "fits", False: "does not fit", None: "device memory not known"}[found.fits]
    style = {True: Style.GOOD, False: Style.BAD, None: Style.PLAIN}[found.fits]
    yield from _fact("memory", f"{verdict}: {needs}{of}, in the {moment(memory.peak)}", width, style=style)


def _warnings(found: Explanation, width: int) -> Iterator[Line]:
    if not found.warnings:
        return
    yield heading("warnings")
    for caution in found.warnings:
        yield from row(
            caution.message,
            width=width,
            place=caution.at,
            indent=(Piece("  ! ", Style.WARNING),),
            further_indent=(Piece("    "),),
            style=Style.WARNING,
        )


def _plan(found: Explanation, width: int) -> Iterator[Line]:
    yield heading("plan")
    model = found.model
    if model.parameters is None:
        yield from _fact("model", model.network, width, model.decided_by)
    else:
        active = ""
        if model.active_parameters not in (None, model.parameters):
            active = f", {model.active_parameters:,} active"
        yield from _fact(
            "model", f"{model.network}, {model.parameters:,} parameters{active}", width, model.decided_by
        )
    axes = " x ".join(f"{axis.axis} {axis.size}" for axis in found.mesh.axes)
    yield from _fact("mesh", axes, width, found.mesh.decided_by)
    yield from _where(found, width)
    yield from _work(found, width)
    on_loss = found.on_loss
    yield from _fact(
        "on_loss", f"{on_loss.rule.value}: {on_loss.reason}", width, on_loss.limited_by or on_loss.decided_by
    )
    yield from _fact("", on_loss.guarantee, width)
    copies = on_loss.copies
    if copies is not None:
        how_often = "each half minute" if copies.every == "auto" else f"every {copies.every} steps"
        text = (
            f"{how_often} {format_bytes(copies.copy_bytes)} of a rank to a buddy, {format_bytes(copies.held_bytes)} of host "
            "memory"
        )
        yield from _fact("copies", text, width, copies.decided_by)
    saves = found.checkpoints
    cadence = f"every {saves.every} steps" if isinstance(saves.every, int) else saves.every
    yield from _fact("checkpoints", f"{cadence}, the newest {saves.keep} kept", width, saves.decided_by)
    yield from _detection(found, width)


def _detection(found: Explanation, width: int) -> Iterator[Line]:
    facts = found.detection
    limits = ", ".join(f"{name.replace('_', ' ')} {limit_s:g} s" for name, limit_s in facts.limits_s.items())
    yield from _fact("detection", f"at the latest after: {limits}", width, facts.decided_by)
    looks = []
    if facts.probe_share:
        looks.append(
            f"{facts.probe_share:.3g} of the shares are computed twice, about {facts.probe_share:.2%} more compute"
        )
    if facts.compare_every:
        looks.append(f"replicas are compared every {counted(facts.compare_every, 'step')}")
    if looks:
        yield from _fact("", "; ".join(looks), width)


def _where(found: Explanation, width: int) -> Iterator[Line]:
    for number, nodes in enumerate(found.where.nodes):
        text = (
            f"ranks {nodes.ranks} on nodes {nodes.nodes}, {nodes.ranks_per_node} a node: {nodes.accelerator}"
        )
        yield from _fact("" if number else "devices", text, width, "" if number else found.where.decided_by)
    for number, link in enumerate(found.where.links):
        joins = "in nodes" if link.level.value == "node" else "between nodes"
        text = f"{joins} {format_bytes(link.bytes_per_s)}/s, {format_seconds(link.latency_s)} a hop"
        yield from _fact("" if number else "links", text, width)


def _uneven(uneven: UnevenShares, busiest: int) -> str:
    """What some ranks pay where shares do not divide evenly."""
    found = []
    if uneven.tree_bytes:
        found.append(
            f"subtrees apart in sums of gradients, {format_bytes(uneven.tree_bytes)} more than listed"
        )
    if uneven.idle_bytes:
        found.append(
            f"part in the collectives of those that compute {busiest}, {format_bytes(uneven.idle_bytes)} of what is listed"
        )
    noun = counted(len(uneven.ranks), "rank")
    return f"{noun} ({ranges(uneven.ranks)}) with {counted(uneven.shares, 'share')}: {'; '.join(found)}"


def _work(found: Explanation, width: int) -> Iterator[Line]:
    work = found.work
    if work is None:
        return
    lines = work.decided_by
    over = f", split over {', '.join(found.mesh.batch_axes)}" if found.mesh.batch_axes else ""
    text = (
        f"{counted(work.batch, 'sample')} of {counted(work.sequence, 'token')}, {work.tokens:,} a step{over}"
    )
    yield from _fact("batch", text, width, lines.get("train.batch", ""))
    noun = "shares" if work.has_fixed_order else "parts, one a replica (shares off)"
    text = f"{work.parts} {noun}, {counted(work.batch // work.parts, 'sample')} each"
    yield from _fact("shares", text, width, lines.get("fault_tolerance.shares", ""))
    for uneven in work.uneven:
        yield from _fact("", _uneven(uneven, work.parts_per_replica), width)
    text = f"{counted(work.microbatch, 'sample')}, {counted(work.microbatches_per_part, 'microbatch', 'es')} a share"
    yield from _fact("microbatch", text, width, lines.get("train.microbatch", ""))
    yield from _fact(
        "FLOPs",
        f"{both_flops(work.useful_flops)} a step, in {work.compute}",
        width,
        lines.get("train.compute", ""),
    )
    if work.recomputed_flops.causal:
        yield from _fact("", f"and {flops(work.recomputed_flops.causal)} computed again", width)
    yield from _fact("sent", f"{levels(found.sent_bytes)} by all ranks in a step", width)


def _stages(found: Explanation, width: int) -> Iterator[Line]:
    pipeline = found.pipeline
    if pipeline is None:
        return
    text = (
        f"pipeline over {pipeline.axis}: {pipeline.schedule.value}, {pipeline.num_stages} stages, "
        f"{pipeline.microbatches} microbatches, bubble {share(pipeline.bubble_share)}"
    )
    yield from row(text, width=width, place=pipeline.decided_by, style=Style.HEADING)
    for stage in found.stages:
        layers = f"layers {stage.layers}" if stage.layers else ""
        held = ", ".join(
            [*stage.parts[:1], layers] if stage.parts == ("embedding",) else [layers, *stage.parts]
        )
        work = stage.forward_flops + stage.backward_flops + stage.recompute_flops
        yield from _fact(
            f"stage {stage.stage}",
            f"{pipeline.axis} {stage.place}: {held}; {elements(stage.parameters)} parameters, {flops(work.causal)} a "
            "microbatch and rank",
            width,
        )
    yield from timeline_lines(pipeline, width)


def _groups(found: Explanation, width: int) -> Iterator[Line]:
    if found.groups:
        yield heading("ranks")
        yield from group_lines(found, width)


def _replicated(found: Explanation, width: int) -> Iterator[Line]:
    """Who computes which share, and what this release allocates and sends."""
    facts = found.replicated
    if facts is None:
        return
    yield heading("what this release runs")
    if facts.ownership:
        text = "the sum of gradients is an exchange of shares, added in the fixed tree, whatever the route"
        yield from _fact("", text, width)
    for item in facts.ownership:
        yield from _fact(counted(item.ranks, "rank"), f"shares {_owned(item.owners)}", width)
    for replica in facts.ranks:
        sizes = ", ".join(
            f"{name} {format_bytes(size)}" for name, size in replica.memory_bytes.items() if size
        )
        sent = format_bytes(replica.reduce_bytes + replica.gather_bytes)
        each = " each" if "-" in replica.ranks else ""
        yield from _fact(
            f"rank {replica.ranks}",
            f"shares {replica.shares or 'none'}; {sizes}; sends {sent} a step{each}",
            width,
        )
    for phase, formula in facts.formulas.items():
        yield from _fact(phase, formula, width)


def _storage(found: Explanation, width: int) -> Iterator[Line]:
    """What each rank keeps of a class of the user's own, and sends."""
    facts = found.storage
    if facts is None:
        return
    yield heading(f"each of {counted(facts.num_ranks, 'rank')}")
    for item in facts.tables:
        text = f"keeps {format_bytes(item.held_bytes)} of {format_bytes(item.whole_bytes)}"
        yield from _fact(item.table.value, text, width, item.decided_by)
    if facts.gathered_bytes:
        text = (
            f"{format_bytes(facts.gathered_bytes)} of params are whole at once while they are used: what is outside of the "
            f"{counted(facts.layers, 'layer')}, and the largest of them"
        )
        yield from _fact("in use", text, width)
    for number, sent in enumerate(facts.transfers):
        times = "once" if sent.times == 1 else f"{sent.times} times"
        text = f"{format_bytes(sent.sent_bytes)} to {sent.what}, {times} a step ({sent.operation})"
        yield from _fact("" if number else "sends", text, width)
    for text in facts.assumptions:
        yield from _note(text, width)


def _owned(owners: Sequence[int]) -> str:
    """``0: 0-1, 1: 2-3``: for each rank its shares; neighbours in order, as they are assigned.

    >>> _owned([0, 0, 1, 1, 1])
    '0-1 on rank 0, 2-4 on rank 1'
    """
    shown = []
    for rank in range(min(max(owners) + 1, _SHOWN_RANKS)):
        shares = [share for share, owner in enumerate(owners) if owner == rank]
        text = str(shares[0]) if len(shares) == 1 else f"{shares[0]}-{shares[-1]}"
        shown.append(f"{text} on rank {rank}")
    return ", ".join(shown) + (" ..." if max(owners) >= _SHOWN_RANKS else "")


_SHOWN_RANKS = 8


def _decisions(found: Explanation, width: int) -> Iterator[Line]:
    """Which line decided what; rows that no line decided are left out."""
    lines: list[Line] = []
    for table in found.decisions:
        if table.table is Table.LAYERS and found.pipeline is not None:
            continue  # Which stage holds a layer stands above.
        for number, rows in enumerate(item for item in table.classes if item.decisions):
            names = ", ".join(rows.rows[:_SHOWN_ROWS])
            rest = len(rows.rows) - _SHOWN_ROWS
            more = f" and {rest} more" if rest > 0 else ""
            more += f" ({counted(rows.num_rows, 'row')})"
            lines += _fact("" if number else table.table.value, names + more, width)
            for item in rows.decisions:
                lines += row(
                    f"{item.property}: {item.value}",
                    width=width,
                    place=item.decided_by,
                    indent=(Piece(" " * (_LABELS + 4)),),
                )
    if lines:
        yield heading("decisions")
        yield from lines


_SHOWN_ROWS = 4


def _notes(found: Explanation, width: int) -> Iterator[Line]:
    if found.work is None:
        return
    yield heading("what the figures rest on")
    cost = found.cost
    if cost.usd_per_device_hour is not None:
        price = f"{cost.usd_per_device_hour:g} dollars per device and hour: {cost.price_source}"
        yield from _note("price: " + price, width)
    if cost.price_warning:
        yield from _note("warning: " + cost.price_warning, width)
    if cost.step_s is not None:
        yield from _note(f"interval: {cost.interval}", width)
    for text in cost.assumptions:
        yield from _note(text, width)


def _note(text: str, width: int) -> Iterator[Line]:
    yield from row(text, width=width, indent=(Piece("  - ", Style.FAINT),), further_indent=(Piece("    "),))


def _fact(
    label: str, text: str, width: int, place: str = "", *, style: Style = Style.PLAIN
) -> Iterator[Line]:
    return row(text, width=width, label=label, label_width=_LABELS, place=place, indent=_INDENT, style=style)
