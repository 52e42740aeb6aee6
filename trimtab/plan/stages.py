"""From SPLIT layers and PLACE layers to stages."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from trimtab.catalog import Network
from trimtab.plan.physical import Pipeline
from trimtab.plan.pipelines import (
    Balance,
    LayersError,
    LayerWeights,
    StageSchedule,
    ranks_of_stages,
    stages_of_layers,
    stages_per_rank_of,
)
from trimtab.plan.tables import Row, Table
from trimtab.spec import Mesh, Place, Problem, Program, StrategyError
from trimtab.spec.language import PlaceStatement, SplitStatement, compile_predicate


def pipeline_of(program: Program, *, mesh: Mesh, network: Network, sequence: int) -> Pipeline:
    """The stages of a program; without SPLIT layers one stage holds everything.

    Args:
        program: Checked by its text.
        mesh: Resolved.
        network: To cut.
        sequence: Tokens of a sample, for BALANCE BY time.

    Raises: StrategyError if layers cannot be cut so.
    """
    splits = [
        statement
        for statement in program.statements
        if isinstance(statement, SplitStatement) and any(dim.text == "layers" for dim in statement.dims)
    ]
    places = [statement for statement in program.statements if isinstance(statement, PlaceStatement)]
    if not splits:
        if places:
            _refuse(program, places[0], "PLACE puts layers on stages, and no line makes stages", _NEEDS_SPLIT)
        return Pipeline(
            axis=None,
            schedule=StageSchedule.GPIPE,
            stages_per_rank=1,
            num_stages=1,
            stage_of_layer=(0,) * network.layers,
            rank_of_stage=(0,),
        )
    first, *more = splits
    if more:
        others = (Place(span=first.span, note="the first split is here"),)
        _refuse(program, more[0], "'layers' is split twice", "Keep one of the two.", others)
    return _cut(program, first, places, mesh, network, sequence)


_NEEDS_SPLIT = "Add SPLIT layers OVER axis."


def _cut(
    program: Program,
    statement: SplitStatement,
    places: Sequence[PlaceStatement],
    mesh: Mesh,
    network: Network,
    sequence: int,
) -> Pipeline:
    if len(statement.axes) > 1 or len(statement.dims) > 1:
        _refuse(program, statement, "SPLIT layers takes one axis and no other dim", "Write two statements.")
    if statement.table is not None or statement.where is not None:
        _refuse(program, statement, "a pipeline cuts all layers", "Use PLACE layers WHERE … ON axis stage.")
    axis = statement.axes[0].text
    schedule = StageSchedule(statement.using.name.text) if statement.using else StageSchedule.ONE_F_ONE_B
    stages_per_rank = _stages_per_rank(statement, schedule)
    ranks = mesh.size(axis)
    num_stages = ranks * stages_per_rank
    placed = _placed(program, places, axis, num_stages, network)
    balance = Balance(statement.balance.text) if statement.balance else Balance.LAYERS
    try:
        stages = stages_of_layers(
            network.layers,
            num_stages,
            balance=balance,
            weights=_weights(network, balance, sequence),
            placed=placed,
        )
    except LayersError as error:
        blamed = places[0] if places and network.layers >= num_stages else statement
        _refuse(program, blamed, str(error), "Change the axis, the schedule or PLACE.")
    return Pipeline(
        axis=axis,
        schedule=schedule,
        stages_per_rank=stages_per_rank,
        num_stages=num_stages,
        stage_of_layer=stages,
        rank_of_stage=ranks_of_stages(schedule, ranks=ranks, stages_per_rank=stages_per_rank),
        line=statement.span,
    )


def _stages_per_rank(statement: SplitStatement, schedule: StageSchedule) -> int:
    demanded = stages_per_rank_of(schedule)
    if demanded is not None:
        return demanded
    arguments = statement.using.arguments if statement.using else ()
    return int(arguments[0].value) if arguments else 2


def _placed(
    program: Program, places: Sequence[PlaceStatement], axis: str, num_stages: int, network: Network
) -> Mapping[int, int]:
    """The stage of every layer that a PLACE names; of several the last decides."""
    found: dict[int, int] = {}
    for statement in places:
        if statement.axis.text != axis:
            _refuse(program, statement, f"layers are split over {axis!r}, not {statement.axis.text!r}", "")
        if not 0 <= statement.index < num_stages:
            _refuse(
                program,
                statement,
                f"there is no stage {statement.index}: {axis!r} has {num_stages} stages",
                f"Stages count from 0 to {num_stages - 1}.",
            )
        holds = compile_predicate(statement.where) if statement.where is not None else None
        rows = [_layer_row(layer) for layer in range(network.layers)]
        matched = [row.layer for row in rows if holds is None or holds(row.value) is True]
        if not matched and not statement.if_any:
            _refuse(program, statement, f"no layer matches; layers count from 0 to {network.layers - 1}", "")
        found |= {layer: statement.index for layer in matched if layer is not None}
    return {**found, **_neighbours(found, network.layers, num_stages)}


def _neighbours(placed: Mapping[int, int], num_layers: int, num_stages: int) -> Mapping[int, int]:
    """A stage that is filled by hand holds nothing else: the layers beside belong to the stages beside.

    >>> _neighbours({1: 1, 2: 1}, 4, 3)
    {0: 0, 3: 2}
    """
    found = {}
    for stage in sorted(set(placed.values())):
        layers = [layer for layer, on in placed.items() if on == stage]
        before, after = min(layers) - 1, max(layers) + 1
        if before >= 0 and before not in placed and stage > 0:
            found[before] = stage - 1
        if after < num_layers and after not in placed and stage < num_stages - 1:
            found[after] = stage + 1
    return found


def _layer_row(layer: int) -> Row:
    return Row(
        table=Table.LAYERS,
        name=f"layers.{layer}",
        layer=layer,
        kind="layer",
        dims=(),
        shape=(),
        dtype="fp32",
    )


def _weights(network: Network, balance: Balance, sequence: int) -> LayerWeights | None:
    if balance is Balance.LAYERS:
        return None
    if balance is Balance.TIME:
        # Seconds are proportional to FLOPs while every stage runs on cards of one kind.
        return LayerWeights(
            layers=tuple(
                network.layer_forward_flops(layer, sequence, causal=True) for layer in range(network.layers)
            ),
            head=network.head_forward_flops(),
        )
    by_layer = [0] * network.layers
    outside = {"embedding": 0, "head": 0}
    for tensor in network.tensors():
        if tensor.layer is not None:
            by_layer[tensor.layer] += tensor.numel
        else:
            outside["embedding" if tensor.kind.value == "embedding" else "head"] += tensor.numel
    return LayerWeights(layers=tuple(by_layer), embedding=outside["embedding"], head=outside["head"])


def _refuse(
    program: Program,
    statement: SplitStatement | PlaceStatement,
    message: str,
    hint: str,
    others: tuple[Place, ...] = (),
) -> NoReturn:
    problem = Problem(span=statement.span, message=message, hint=hint, others=others)
    raise StrategyError([problem], program.documents)
