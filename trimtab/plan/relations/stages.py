"""The relations ``layers``, ``experts`` and ``stages``: how the network is cut along its depth and its experts."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.plan.physical import Plan
from trimtab.plan.program import Block, Parameter
from trimtab.plan.relations.pieces import Pieces
from trimtab.plan.relations.tensors import LANGUAGE_COLUMNS
from trimtab.plan.tables import BYTES_OF, Row, Table
from trimtab.terms import Column, ColumnType, Relation, Schema

_TEXT, _INTEGER, _BIG, _BOOLEAN = (
    ColumnType.TEXT,
    ColumnType.INTEGER,
    ColumnType.BIG_INTEGER,
    ColumnType.BOOLEAN,
)

_PASSES = 3
"""A backward pass is twice a forward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A stage of the pipeline.

    Args:
        stage: Counted from 0.
        place: On the pipeline's axis.
        layers: That it holds, in order.
        parameters: That it holds.
        has_embedding: Whether tokens enter there.
        has_head: Whether the loss is made there.
        flops: Forward and backward, of all ranks, in a step.
    """

    stage: int
    place: int
    layers: Sequence[int]
    parameters: Sequence[Parameter]
    has_embedding: bool
    has_head: bool
    flops: int


STAGES: Schema[Part] = Schema(
    name="stages",
    meaning="a stage of the pipeline; one stage holds everything where layers are not split",
    columns=(
        Column("stage", _INTEGER, "counted from 0", lambda part: part.stage),
        Column("place", _INTEGER, "coordinate on the pipeline's axis that holds it", lambda part: part.place),
        Column("layers", _INTEGER, "number of its layers", lambda part: len(part.layers)),
        Column("first_layer", _INTEGER, "NULL if it has none", lambda part: min(part.layers, default=None)),
        Column("last_layer", _INTEGER, "NULL if it has none", lambda part: max(part.layers, default=None)),
        Column("has_embedding", _BOOLEAN, "whether tokens enter there", lambda part: part.has_embedding),
        Column("has_head", _BOOLEAN, "whether the loss is made there", lambda part: part.has_head),
        Column(
            "params", _INTEGER, "elements of its parameters, before anything is split",
            lambda part: sum(math.prod(parameter.shape) for parameter in part.parameters),
        ),
        Column(
            "bytes", _INTEGER, "bytes of its parameters, before anything is split, in the type that they are kept in",
            lambda part: sum(_bytes(parameter) for parameter in part.parameters),
        ),
        Column(
            "flops", _BIG,
            "of a step, forward and backward, all ranks: matrix products, causal attention, no recompute",
            lambda part: part.flops,
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A layer.

    Args:
        row: As the language sees it.
        block: The program that it runs.
        compute: The type of its matrix products.
        flops: Forward and backward, of all ranks, in a step.
        stored_bytes: Of its params, grads and states on one rank that holds it, those in host memory included.
        kept_bytes: Of its activations, for one microbatch.
        num_recomputed: Activations that are made again.
    """

    row: Row
    block: Block
    compute: str
    flops: int
    stored_bytes: int
    kept_bytes: int
    num_recomputed: int


LAYERS: Schema[Slice] = Schema(
    name="layers",
    meaning="a layer, with the elements of its parameters",
    columns=(
        *LANGUAGE_COLUMNS,
        Column("block", _TEXT, "the layers that are decided alike: `layers 0-3`", lambda found: found.block.name),
        Column("compute", _TEXT, "type of its matrix products", lambda found: found.compute),
        Column(
            "flops", _BIG, "of a step, forward and backward, all ranks: matrix products, causal attention, no recompute",
            lambda found: found.flops,
        ),
        Column(
            "stored_bytes", _INTEGER, "params, grads and states on one rank that holds it", lambda found: found.stored_bytes
        ),
        Column(
            "kept_bytes", _INTEGER, "activations of one microbatch on one rank, from the forward to the backward pass",
            lambda found: found.kept_bytes,
        ),
        Column(
            "recomputed", _INTEGER, "number of its activations that the backward pass makes again",
            lambda found: found.num_recomputed,
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """An expert.

    Args:
        row: As the language sees it.
        axis: That experts are split over; None if they are not.
        place: On that axis.
    """

    row: Row
    axis: str | None
    place: int | None


EXPERTS: Schema[Placed] = Schema(
    name="experts",
    meaning="an expert of a layer, with the elements of its parameters",
    columns=(
        *LANGUAGE_COLUMNS,
        Column("expert", _INTEGER, "counted from 0", lambda found: found.row.expert),
        Column("axis", _TEXT, "axis that experts are split over; NULL if they are not", lambda found: found.axis),
        Column("place", _INTEGER, "coordinate on that axis that holds it", lambda found: found.place),
    ),
)  # fmt: skip


def stage_relations(plan: Plan, pieces: Pieces) -> Iterator[Relation]:
    """All three."""
    yield LAYERS.filled(lambda: _slices(plan, pieces))
    yield EXPERTS.filled(lambda: _placed(plan))
    yield STAGES.filled(lambda: _parts(plan))


def _parts(plan: Plan) -> Iterator[Part]:
    pipeline = plan.pipeline
    last = pipeline.num_stages - 1
    for stage, place in enumerate(pipeline.rank_of_stage):
        layers = [layer for layer, found in enumerate(pipeline.stage_of_layer) if found == stage]
        flops = sum(_layer_flops(plan, layer) for layer in layers)
        if stage == last:
            flops += _PASSES * plan.work.tokens * plan.network.head_forward_flops()
        yield Part(
            stage=stage,
            place=place,
            layers=layers,
            parameters=[parameter for parameter in plan.parameters.values() if stage in parameter.stages],
            has_embedding=stage == 0,
            has_head=stage == last,
            flops=flops,
        )


def _slices(plan: Plan, pieces: Pieces) -> Iterator[Slice]:
    stored: dict[int | None, int] = {}
    for parameter in plan.parameters.values():
        for table in (Table.PARAMS, Table.GRADS, Table.STATES):
            stored[parameter.layer] = stored.get(parameter.layer, 0) + pieces.stored_bytes(parameter, table)
    activations = plan.bound.rows[Table.ACTIVATIONS]
    recomputed = Counter(activations[name].layer for name in plan.bound.recomputed)
    kept = {block.name: pieces.kept_bytes(block, block.kept) for block in plan.blocks}
    blocks = {layer: block for block in plan.blocks for layer in block.layers}
    for row in plan.bound.rows[Table.LAYERS].values():
        assert row.layer is not None, "rows of layers are layers"
        block = blocks[row.layer]
        yield Slice(
            row=row,
            block=block,
            compute=block.values[block.result].dtype,
            flops=_layer_flops(plan, row.layer),
            stored_bytes=stored[row.layer],
            kept_bytes=kept[block.name],
            num_recomputed=recomputed[row.layer],
        )


def _placed(plan: Plan) -> Iterator[Placed]:
    splits = plan.bound.splits[Table.PARAMS]
    for row in plan.bound.rows[Table.EXPERTS].values():
        assert row.expert is not None, "rows of experts are experts"
        cuts = splits.get(f"layers.{row.layer}.experts.up.weight", {})
        axis = next((axis for axis, decision in cuts.items() if decision.value == "experts"), None)
        size = plan.mesh.size(axis) if axis else 1
        per_place = -(-plan.network.experts // size)
        yield Placed(row=row, axis=axis, place=row.expert // per_place if axis else None)


def _layer_flops(plan: Plan, layer: int) -> int:
    per_token = plan.network.layer_forward_flops(layer, plan.work.sequence, causal=True)
    return _PASSES * plan.work.tokens * per_token


def _bytes(parameter: Parameter) -> int:
    return math.prod(parameter.shape) * BYTES_OF[parameter.dtypes[Table.PARAMS.value]]
