"""A layout as the formulas that say it, each with its reason, and the keys of the job that go with them."""

from collections.abc import Iterator, Sequence

from trimtab.cost.search.space import Layout, Question
from trimtab.cost.search.uneven import pool_of_rank, stage_layers
from trimtab.cost.search.words import CONDITIONS, WAYS
from trimtab.plan.pipelines import ranks_of_stages

_STORED = {1: "states", 2: "grads, states", 3: "params, grads, states"}


def formulas_of(question: Question, layout: Layout) -> str:
    """In the strategy language, a comment with the reason behind each statement."""
    statements = list(_statements(question, layout))
    width = max(len(statement) for statement, _ in statements)
    return "\n".join(f"{statement:{width}}  -- {reason}" for statement, reason in statements)


def settings_of(question: Question, layout: Layout) -> dict[str, int]:
    """Keys that have to be set beside the formulas, by path."""
    return {"orchestration.devices": layout.devices, "train.microbatch": layout.microbatch}


def _statements(question: Question, layout: Layout) -> Iterator[tuple[str, str]]:
    replicas = layout.data // layout.expert
    axes = [
        ("pp", layout.pipeline),
        ("dp", replicas),
        ("ep", layout.expert),
        ("cp", layout.context),
        ("tp", layout.tensor),
    ]
    named = [(name, size) for name, size in axes if size > 1] or [("dp", 1)]
    yield (
        "MESH " + ", ".join(f"{name} {size}" for name, size in named),
        f"{layout.devices} devices; the axis that sends most varies fastest, over neighbours",
    )
    over = [name for name, size in (("dp", replicas), ("ep", layout.expert)) if size > 1]
    if over:
        yield f"SPLIT batch OVER {', '.join(over)}", f"{layout.data} replicas of {_each(question, layout)}"
    if layout.expert > 1:
        yield "SPLIT experts OVER ep", f"{question.network.experts // layout.expert} experts a device"
    if layout.tensor > 1:
        yield "SPLIT heads, mlp, vocab OVER tp", f"each layer over {layout.tensor} devices"
    if layout.context > 1:
        yield (
            "SPLIT sequence OVER cp USING allgather",
            f"{question.sequence // layout.context} tokens a device",
        )
    if layout.sequence_parallel:
        yield (
            "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp",
            "activations between layers take a part of the memory; the same bytes are sent",
        )
    if layout.pipeline > 1:
        parts = question.shares or layout.data
        runs = question.batch // parts // layout.microbatch
        pieces = f"({layout.pieces})" if layout.schedule.value in _COUNTED else ""
        # Where layers alone do not divide, embedding and head stand for a layer each.
        is_even = question.network.layers % (layout.pipeline * layout.pieces) == 0
        balance = "" if is_even or layout.first_layers else " BALANCE BY params"
        yield (
            f"SPLIT layers OVER pp USING {layout.schedule.value}{pieces} MICROBATCHES {runs}{balance}",
            f"{layout.pipeline * layout.pieces} stages, {runs} microbatches of {layout.microbatch}",
        )
    if layout.first_layers:
        yield from _placed(question, layout)
    if layout.store:
        yield from _stored(layout, replicas)
    if layout.reduce:
        summed = [name for name, size in (("dp", replicas), ("cp", layout.context)) if size > 1]
        yield (
            f"REDUCE grads OVER {', '.join(summed)} {layout.reduce}",
            "shorter than by default, as explain counts it",
        )
    if layout.recompute:
        yield from _again(layout)
    elif layout.recompute_quarters:
        again = layout.recompute_quarters
        where = "" if again == 4 else f" WHERE layer % 4 < {again}"
        yield (
            f"RECOMPUTE activations{where}",
            "what is kept of activations would not fit, or costs more elsewhere",
        )


def _again(layout: Layout) -> Iterator[tuple[str, str]]:
    """What each layer computes again."""
    for way in range(1, len(WAYS)):
        layers = [layer for layer, own in enumerate(layout.recompute) if own == way]
        if layers:
            condition = f" AND {CONDITIONS[way]}" if CONDITIONS[way] else ""
            counted = f"{len(layers)} layer{'s' if len(layers) > 1 else ''}"
            yield (
                f"RECOMPUTE activations WHERE {_layers(layers)}{condition}",
                f"{WAYS[way]} of {counted}: what fits with the least time",
            )


def _layers(numbers: Sequence[int]) -> str:
    """A condition that holds for these layers.

    >>> _layers([0, 1, 2]), _layers([4]), _layers([0, 1, 6, 7])
    ('layer < 3', 'layer = 4', '(layer < 2 OR layer BETWEEN 6 AND 7)')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = [
        f"layer < {run[-1] + 1}"
        if run[0] == 0
        else f"layer = {run[0]}"
        if len(run) == 1
        else f"layer BETWEEN {run[0]} AND {run[-1]}"
        for run in runs
    ]
    return said[0] if len(said) == 1 else f"({' OR '.join(said)})"


def _placed(question: Question, layout: Layout) -> Iterator[tuple[str, str]]:
    """Stages hold as many layers as their devices are fast."""
    places = ranks_of_stages(layout.schedule, ranks=layout.pipeline, stages_per_rank=layout.pieces)
    start = 0
    for stage, (place, count) in enumerate(zip(places, stage_layers(question, layout), strict=True)):
        pool = question.pools[pool_of_rank(question, layout, place)]
        layers = f"{count} layer{'s' if count > 1 else ''}"
        yield (
            f"PLACE layers BETWEEN {start} AND {start + count - 1} ON pp {stage}",
            f"{layers} on {pool.name}",
        )
        start += count


def _stored(layout: Layout, replicas: int) -> Iterator[tuple[str, str]]:
    tables = _STORED[layout.store]
    apart = [name for name, size in (("dp", replicas), ("cp", layout.context)) if size > 1]
    if layout.expert == 1:
        yield f"STORE {tables} OVER {', '.join(apart)}", "divides what is kept between steps"
        return
    spread = ", ".join([*apart[:1], "ep", *apart[1:]] if replicas > 1 else ["ep", *apart])
    yield f"STORE {tables} WHERE kind <> 'expert' OVER {spread}", "divides what is kept between steps"
    if apart:
        yield (
            f"STORE {tables} WHERE kind = 'expert' OVER {', '.join(apart)}",
            "experts are spread over ep already",
        )


_COUNTED = ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")
"""Schedules whose stages a rank the user chooses."""


def _each(question: Question, layout: Layout) -> str:
    samples = question.batch // layout.data
    return f"{samples} sample{'s' if samples > 1 else ''} each"
