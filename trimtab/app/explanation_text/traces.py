"""A trace in text: for each rank that was run, what it sent and computed beside what the plan says."""

from collections.abc import Iterator, Sequence

from trimtab.app.explanation_text.lines import MIN_WIDTH, Line, Piece, Style, heading, row
from trimtab.app.explanation_text.quantities import counted, flops
from trimtab.cost.explanation.tracing import TracedCollective, TracedFlops, TracedRank, TraceFacts

_LABELS = 12
_INDENT = (Piece("  "),)
_HEADER = ("operation", "over", "route", "runs", "planned", "bytes", "planned", "")
_NUM_WORDS = 3
"""Columns of words, which stand to the left of numbers."""

_GAP = "  "


def trace_lines(trace: TraceFacts, *, width: int) -> Iterator[Line]:
    """The verdict, then every rank that was run, in lines of at most ``width`` columns (60 if there are fewer)."""
    width = max(width, MIN_WIDTH)
    yield heading("trace")
    yield from _verdict(trace, width)
    for rank in trace.ranks:
        yield ()
        yield from _rank(rank, width)


def _verdict(trace: TraceFacts, width: int) -> Iterator[Line]:
    num_ranks = sum(rank.num_ranks for rank in trace.ranks)
    ran = f"step {trace.step} on {len(trace.ranks)} of {counted(num_ranks, 'rank')}, one for all that do the same"
    yield from _fact("run", ran, width)
    yield from _fact(
        "in full", "every action of the schedule, every message between stages, the update", width
    )
    yield from _fact("once", "a layer of each block; layers and microbatches like it are multiplied", width)
    if trace.is_as_planned:
        yield from _fact(
            "verdict",
            "as planned: every collective in runs and bytes, FLOPs within 0.1 %",
            width,
            style=Style.GOOD,
        )
        return
    different = counted(len(trace.differences), "difference")
    yield from _fact("verdict", f"not as planned, {different}:", width, style=Style.BAD)
    for text in trace.differences:
        yield from row(text, width=width, indent=(Piece("  ! ", Style.BAD),), further_indent=(Piece("    "),))


def _rank(rank: TracedRank, width: int) -> Iterator[Line]:
    stages = (
        f", stages {rank.stages}" if "," in rank.stages or "-" in rank.stages else f", stage {rank.stages}"
    )
    stands_for = f" for {counted(rank.num_ranks, 'rank')} ({rank.ranks})" if rank.num_ranks > 1 else ""
    yield from row(f"rank {rank.rank}{stands_for}{stages}", width=width, style=Style.HEADING)
    ran = [
        f"{block.block} {block.phase.value}{'' if block.layer is None else f' (layer {block.layer})'} x {block.times:,}"
        for block in rank.blocks
    ]
    yield from _fact("blocks", ", ".join(ran), width)
    for item in rank.flops:
        yield from _fact(item.phase.value, _flops(item), width, style=_style(item.is_planned))
    if rank.compression_flops:
        yield from _fact("compression", f"{flops(rank.compression_flops)}, which no plan counts", width)
    yield from _collectives(rank.collectives, width)


def _flops(item: TracedFlops) -> str:
    return f"{item.traced:,} FLOPs of {item.planned:,} planned{_differs(item.traced, item.planned)}"


def _differs(traced: int, planned: int) -> str:
    """How far a count is from the planned one, in words.

    >>> _differs(1024, 1000), _differs(5, 0), _differs(7, 7)
    (': 2.4 % more', ': none is planned', '')
    """
    if traced == planned:
        return ""
    if not planned:
        return ": none is planned"
    return f": {100 * abs(traced / planned - 1):.2g} % {'more' if traced > planned else 'less'}"


def _collectives(collectives: Sequence[TracedCollective], width: int) -> Iterator[Line]:
    cells = [_cells(item) for item in collectives]
    if not cells:
        yield from _fact("sends", "nothing", width)
        return
    sizes = [max(map(len, column)) for column in zip(_HEADER, *cells, strict=True)]
    if sum(sizes) + len(_GAP) * len(sizes) <= width:
        yield (*_INDENT, Piece(_columns(_HEADER, sizes), Style.FAINT))
        for item, found in zip(collectives, cells, strict=True):
            yield (*_INDENT, Piece(_columns(found, sizes), _style(item.is_planned)))
        return
    for item, (operation, axes, route, runs, told_runs, sent, told_sent, verdict) in zip(
        collectives, cells, strict=True
    ):
        text = f"{operation} over {axes}, {route}: {runs} runs of {told_runs} planned, {sent} bytes of {told_sent} planned"
        ending = f": {verdict}" if verdict else ""
        yield from row(
            text + ending,
            width=width,
            indent=_INDENT,
            further_indent=(Piece("    "),),
            style=_style(item.is_planned),
        )


def _cells(item: TracedCollective) -> tuple[str, ...]:
    return (
        item.operation.value,
        ", ".join(item.axes),
        item.route,
        f"{item.traced_runs:,}",
        f"{item.planned_runs:,}",
        f"{item.traced_bytes:,}",
        f"{item.planned_bytes:,}",
        "" if item.is_planned else "differs",
    )


def _columns(cells: Sequence[str], sizes: Sequence[int]) -> str:
    """Words to the left, numbers to the right."""
    placed = [
        cell.ljust(size) if place < _NUM_WORDS else cell.rjust(size)
        for place, (cell, size) in enumerate(zip(cells, sizes, strict=True))
    ]
    return _GAP.join(placed).rstrip()


def _style(is_planned: bool) -> Style:
    return Style.PLAIN if is_planned else Style.BAD


def _fact(label: str, text: str, width: int, *, style: Style = Style.PLAIN) -> Iterator[Line]:
    return row(text, width=width, label=label, label_width=_LABELS, indent=_INDENT, style=style)
