"""Collectives in text: columns where the terminal is wide enough, else a few short lines each."""

from collections.abc import Iterator, Sequence

from trimtab.app.explanation_text.lines import Line, Piece, Style, row
from trimtab.app.explanation_text.quantities import levels, times
from trimtab.cost.explanation.document import CollectiveFacts
from trimtab.terms import format_bytes

_HEADER = ("", "operation", "over", "route", "runs", "in nodes", "between")

_GAP = "  "

_LONGEST_BLOCK = 24
"""Characters of a block's name before layers in its middle are left out."""


def collective_lines(
    collectives: Sequence[CollectiveFacts], stem: Piece, width: int, *, is_open: bool
) -> Iterator[Line]:
    """The branches of a tree, one for each collective; bytes are those of a rank in a step.

    Args:
        collectives: To show.
        stem: Before every line.
        width: Of the terminal.
        is_open: Whether another branch follows.
    """
    if not collectives:
        return
    cells = [_cells(facts) for facts in collectives]
    sizes = [max(map(len, column)) for column in zip(_HEADER, *cells, strict=True)]
    is_wide = len(stem.text) + 3 + sum(sizes) + len(_GAP) * (len(sizes) - 1) <= width
    if is_wide:
        yield (stem, Piece(f"│  {_columns(_HEADER, sizes)}", Style.FAINT))
    for number, (facts, found) in enumerate(zip(collectives, cells, strict=True)):
        is_last = number == len(collectives) - 1 and not is_open
        branch = Piece("└─ " if is_last else "├─ ", Style.FAINT)
        further = Piece("   " if is_last else "│  ", Style.FAINT)
        if is_wide:
            yield (stem, branch, Piece(_columns(found, sizes)))
        else:
            yield from _narrow(facts, found, stem, branch, further, width)
        yield from row(
            f"{facts.reason}: {facts.tensors}",
            width=width,
            place=facts.decided_by,
            indent=(stem, further, Piece("  ")),
            style=Style.FAINT,
        )


def _narrow(
    facts: CollectiveFacts, cells: Sequence[str], stem: Piece, branch: Piece, further: Piece, width: int
) -> Iterator[Line]:
    what, operation, axes, way, runs, *_ = cells
    text = f"{what} {operation} over {axes}, {way}"
    yield from row(text, width=width, indent=(stem, branch), further_indent=(stem, further))
    yield from row(f"{runs}: {levels(facts.rank_bytes)}", width=width, indent=(stem, further, Piece("  ")))


def _columns(cells: Sequence[str], sizes: Sequence[int]) -> str:
    """Words to the left, bytes to the right."""
    *words, inside, across = zip(cells, sizes, strict=True)
    padded = [cell.ljust(size) for cell, size in words]
    return _GAP.join([*padded, inside[0].rjust(inside[1]), across[0].rjust(across[1])]).rstrip()


def _cells(facts: CollectiveFacts) -> tuple[str, ...]:
    block = facts.block if facts.block == facts.phase.value else f"{_block(facts.block)} {facts.phase.value}"
    axes = ", ".join(f"{axis.axis} {axis.size}" for axis in facts.axes)
    runs = f"{times(facts.runs_per_step)} {format_bytes(facts.payload_bytes)}"
    sent = facts.rank_bytes
    inside = format_bytes(sent.node) if sent.node else ""
    across = format_bytes(sent.site) if sent.site else ""
    return block, facts.operation.value, axes, _way(facts), runs, inside, across


def _block(name: str) -> str:
    """The name of a block, shortened where it lists many layers.

    >>> _block("layers 0-3"), _block("layers 0, 2, 4, 6, 8, 10, 12, 14")
    ('layers 0-3', 'layers 0, …, 14')
    """
    if len(name) <= _LONGEST_BLOCK:
        return name
    first, *_, last = name.split(", ")
    return f"{first}, …, {last}"


def _way(facts: CollectiveFacts) -> str:
    levels_of_route = f"({', '.join(facts.levels)})" if facts.levels else ""
    parts = [f"{facts.route}{levels_of_route}", facts.wire]
    if facts.compress != "none":
        parts.append(facts.compress)
    if facts.bucket_bytes is not None:
        parts.append(f"buckets of {format_bytes(facts.bucket_bytes)}")
    if facts.is_sealed:
        parts.append("sealed")
    if facts.is_hidden:
        parts.append("hidden")
    return " ".join(parts)
