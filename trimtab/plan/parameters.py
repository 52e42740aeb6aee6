"""How every parameter lies: while it is used, and between uses."""

import math
from collections.abc import Iterator, Mapping

from trimtab.plan.bound import Bound
from trimtab.plan.physical import EMBEDDING, HEAD, Pipeline
from trimtab.plan.placements import STORED, VARYING, Placements, split
from trimtab.plan.program import Parameter
from trimtab.plan.tables import Row, Table
from trimtab.plan.training import Training
from trimtab.spec import Place, Problem, Program, StrategyError
from trimtab.terms import Span

TABLES = (Table.PARAMS, Table.GRADS, Table.STATES)
"""What belongs to a parameter."""


def lay_out_parameters(
    program: Program, training: Training, bound: Bound, pipeline: Pipeline
) -> Mapping[str, Parameter]:
    """Every parameter of the network under a program's decisions, in canonical order.

    Raises: StrategyError for a dim that cannot be cut into that many pieces.
    """
    problems = [*_uneven(training, bound), *_cut_heads(training, bound), *_stored_apart(bound)]
    if problems:
        raise StrategyError(problems, program.documents)
    return {
        name: _parameter(training, bound, pipeline, row) for name, row in bound.rows[Table.PARAMS].items()
    }


def _parameter(training: Training, bound: Bound, pipeline: Pipeline, row: Row) -> Parameter:
    cuts = bound.splits[Table.PARAMS].get(row.name, {})
    computed = Placements(tuple((axis, split(decision.value)) for axis, decision in cuts.items()))
    averaged = bound.averages.get(row.name, {})
    for axis in averaged:
        computed = computed.put(axis, VARYING)
    lines: dict[str, Span | None] = {f"split {axis}": decision.line for axis, decision in cuts.items()}
    lines |= {f"average {axis}": averaging.line for axis, averaging in averaged.items()}
    stored: dict[str, Placements] = {}
    dtypes: dict[str, str] = {}
    for table in TABLES:
        axes = bound.stored[table].get(row.name)
        if axes is None:  # Gradients and states lie as their parameter does.
            axes = bound.stored[Table.PARAMS].get(row.name, {})
        placements = computed
        for axis, _ in bound.mesh.axes:
            if axis in axes:
                placements = placements.put(axis, STORED)
                lines[f"store {table.value} {axis}"] = axes[axis].line
        stored[table.value] = placements
        kept = bound.kept[table].get(row.name)
        dtypes[table.value] = kept.value if kept else "fp32"
        if kept:
            lines[f"keep {table.value}"] = kept.line
    offloaded = tuple(table.value for table in TABLES if row.name in bound.offloaded[table])
    lines |= {f"offload {table}": bound.offloaded[Table(table)][row.name] for table in offloaded}
    return Parameter(
        name=row.name,
        dims=row.dims,
        shape=row.shape,
        layer=row.layer,
        kind=row.kind,
        stages=_stages(training, pipeline, row),
        computed=computed,
        stored=stored,
        dtypes=dtypes,
        num_states=training.num_states + _outer_states(bound, row.name),
        num_residuals=_residuals(bound, row.name),
        block=_block(row),
        offloaded=offloaded,
        lines=lines,
    )


def _outer_states(bound: Bound, name: str) -> int:
    """What an outer optimizer keeps: the parameters of the last meeting, and a momentum."""
    momenta = [
        averaging for averaging in bound.averages.get(name, {}).values() if averaging.outer == "nesterov"
    ]
    return 2 * len(momenta)


_LOSSY = frozenset({"int8", "topk", "powersgd"})
"""Compressions that keep what they did not send."""


def _residuals(bound: Bound, name: str) -> int:
    """Whether any sum of a row's gradient leaves something over."""
    reductions = [
        reduction for by_groups in bound.reductions.get(name, {}).values() for reduction in by_groups.values()
    ]
    return int(any(reduction.compress.value in _LOSSY for reduction in reductions))


def _stages(training: Training, pipeline: Pipeline, row: Row) -> tuple[int, ...]:
    last = pipeline.num_stages - 1
    if row.layer is not None:
        return (pipeline.stage_of_layer[row.layer],)
    if row.name == "embedding.weight" and training.network.tied and last > 0:
        return (0, last)
    return (0,) if row.kind == "embedding" else (last,)


def _block(row: Row) -> str:
    if row.layer is not None:
        return f"layers.{row.layer}"
    return EMBEDDING if row.kind == "embedding" else HEAD


def _stored_apart(bound: Bound) -> Iterator[Problem]:
    """Pieces along an axis on which every rank has a tensor of its own, once for each statement."""
    told: set[Span] = set()
    for table, by_name in bound.stored.items():
        for name, axes in by_name.items():
            for axis in axes.keys() & bound.averages.get(name, {}).keys():
                line = axes[axis].line
                if line is None or line in told:
                    continue
                told.add(line)
                yield Problem(
                    span=line,
                    message=f"{table.value} of {name!r} would be stored in pieces over {axis!r}, along which every rank "
                    "has its own",
                    hint="Store them over another axis.",
                    others=(Place(span=bound.averages[name][axis].line, note="it is averaged here"),),
                )


def _uneven(training: Training, bound: Bound) -> Iterator[Problem]:
    """Dims that an axis cannot cut evenly, once each; a vocabulary is padded."""
    network = training.network
    units = {
        "heads": (network.heads, "query heads"),
        "kv_heads": (network.kv_heads, "key and value heads"),
    }
    told: set[tuple[str, tuple[str, ...]]] = set()
    for table in (Table.PARAMS, Table.ACTIVATIONS):
        for name, cuts in bound.splits[table].items():
            row = bound.rows[table][name]
            for dim in dict.fromkeys(decision.value for decision in cuts.values()):
                axes = [axis for axis, decision in cuts.items() if decision.value == dim]
                # Key and value heads follow the query heads: of the two the first that does not fit is told.
                cut = ("heads" if dim == "kv_heads" else dim, tuple(axes))
                if dim in ("vocab", "batch", "slots") or cut in told:
                    continue
                pieces = math.prod(bound.mesh.size(axis) for axis in axes)
                length, what = units.get(dim, (row.shape[row.dims.index(dim)], f"elements of {dim}"))
                line = next((cuts[axis].line for axis in axes if cuts[axis].line), None)
                if length % pieces and line is not None:
                    told.add(cut)
                    yield _uneven_problem(line, dim, length, what, axes, pieces)


def _cut_heads(training: Training, bound: Bound) -> Iterator[Problem]:
    """Heads that Ulysses cannot spread over the ranks of an axis, once for each statement."""
    network, told = training.network, set()
    for name, cuts in bound.splits[Table.ACTIVATIONS].items():
        ulysses = [
            axis
            for axis, decision in cuts.items()
            if decision.value == "sequence"
            and axis in bound.attention
            and bound.attention[axis].value == "ulysses"
        ]
        row = bound.rows[Table.ACTIVATIONS][name]
        if not ulysses or not {"heads", "kv_heads"} & set(row.dims):
            continue
        cutting = [axis for axis, decision in cuts.items() if decision.value in ("heads", "kv_heads")]
        axes = [*cutting, *ulysses]
        pieces = math.prod(bound.mesh.size(axis) for axis in axes)
        heads, what = (
            (network.heads, "query heads")
            if "heads" in row.dims
            else (network.kv_heads, "key and value heads")
        )
        line = bound.attention[ulysses[-1]].line
        if heads % pieces and line is not None and line not in told:
            told.add(line)
            yield _uneven_problem(line, "attention with ulysses", heads, what, axes, pieces)


def _uneven_problem(line: Span, dim: str, length: int, what: str, axes: list[str], pieces: int) -> Problem:
    fits = [count for count in range(1, length + 1) if length % count == 0]
    nearest = sorted(fits, key=lambda count: abs(count - pieces))[:2]
    return Problem(
        span=line,
        message=f"{dim} cannot be split over {', '.join(axes)}: {length} {what} in {pieces} equal pieces",
        hint=f"Nearest sizes of the axis: {', '.join(map(str, sorted(nearest)))}.",
    )
