"""A plan as the referee reads it: the document that Trimtab writes, with names for its parts and no opinion on it."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from symbolic_pieces import Extent
from verdicts import RefereeError

VERSION = 1
"""Of documents that this referee reads."""

MOVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice"})
"""Operators that change only where a value lies."""
BYTES_OF = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one element."""
COLLECTIVES = (MOVES - {"slice"}) | {"average", "ring_attention", "ring_attention_grad"}
"""Operators for which ranks send."""

Placements = tuple[tuple[str, str, str | None], ...]
"""For each axis on which a tensor is not replicated, in cutting order: the axis, the kind, the dim."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A tensor with its declared layout."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    placements: Placements

    def axes_of(self, kind: str) -> tuple[str, ...]:
        """The axes on which it is of a kind, in cutting order."""
        return tuple(axis for axis, found, _ in self.placements if found == kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """How a collective travels."""

    axes: tuple[str, ...]
    route: str
    levels: tuple[str, ...]
    wire: str
    compress: str
    compress_argument: float | None
    operation: str
    stages: tuple[int, ...]

    @property
    def bytes_per_element(self) -> int:
        """On the wire: of top-k an element with its index, of PowerSGD an element of a factor."""
        sizes = {"topk": 8, "powersgd": 4, "bf16": 2, "int8": 1}
        return sizes.get(self.compress) or BYTES_OF[self.wire]

    def keeps_everything(self, shape: tuple[int, ...]) -> bool:
        """Whether nothing of a local tensor is lost on the way, but digits, which integers do not have.

        Of PowerSGD that is so for vectors, and for matrices whose factors are no smaller than they are.
        """
        if self.compress == "topk":
            return self.compress_argument == 1
        if self.compress == "powersgd" and len(shape) > 1:
            rows, columns = math.prod(shape[:-1]), shape[-1]
            return int(self.compress_argument or 1) * (rows + columns) >= rows * columns
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """One step of a program."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    transfer: Transfer | None
    dim_to: str | None
    dim_from: str | None
    cuts: tuple[str, ...]
    every: int
    call: int
    variants: tuple[tuple[tuple[int, ...], Transfer], ...]

    def ways(self, num_groups: int) -> list[Transfer]:
        """How each process group, in order, sends."""
        assert self.transfer is not None, "collectives are sent"
        ways = [self.transfer] * num_groups
        for indices, transfer in self.variants:
            for index in indices:
                ways[index] = transfer
        return ways


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The program of one piece of the network for one microbatch."""

    name: str
    layers: tuple[int, ...]
    values: Mapping[str, Value]
    gathers: tuple[Operator, ...]
    forward: tuple[Operator, ...]
    recompute: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    kept: tuple[str, ...]
    result: str
    gradient: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A parameter: how it lies while it is used, while it is stored, and while the optimizer works on it."""

    name: str
    layer: int | None
    stages: tuple[int, ...]
    computed: Value
    stored: Value
    updated: Value

    @property
    def varying(self) -> tuple[str, ...]:
        """The axes along which every rank trains its own."""
        return self.computed.axes_of("varying")


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What the plan says of one collective."""

    block: str
    phase: str
    kind: str
    tensors: tuple[str, ...]
    axes: tuple[str, ...]
    route: str
    runs: Mapping[int, float]
    sent_bytes: Mapping[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A block at work for one layer (None: embedding or head) on one pipeline stage."""

    block: Block
    layer: int | None
    stage: int

    def full_name(self, parameter: str) -> str:
        """The name of a parameter that the block names relative to itself."""
        return parameter if self.layer is None else f"layers.{self.layer}.{parameter}"


class Mesh:
    """Ranks by their coordinates; the last axis varies fastest."""

    def __init__(self, axes: Sequence[tuple[str, int]]) -> None:
        self.axes = tuple(axis for axis, _ in axes)
        self.sizes = dict(axes)
        places = itertools.product(*(range(size) for _, size in axes))
        self.coordinates = [dict(zip(self.axes, place, strict=True)) for place in places]
        self.ranks = tuple(range(len(self.coordinates)))
        self._groups: dict[frozenset[str], tuple[tuple[int, ...], ...]] = {}
        self._extents: dict[tuple[object, ...], tuple[Extent, ...]] = {}

    def groups(self, axes: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Ranks that differ on these axes only, in order of rank; groups in order of their first rank."""
        key = frozenset(axes)
        if key not in self._groups:
            found: dict[tuple[int, ...], list[int]] = {}
            for rank, coordinates in enumerate(self.coordinates):
                rest = tuple(at for axis, at in coordinates.items() if axis not in key)
                found.setdefault(rest, []).append(rank)
            self._groups[key] = tuple(tuple(group) for group in found.values())
        return self._groups[key]

    def index(self, rank: int, axes: Sequence[str]) -> int:
        """Which of the pieces that axes cut one after the other is a rank's."""
        index = 0
        for axis in axes:
            index = index * self.sizes[axis] + self.coordinates[rank][axis]
        return index

    def extents(self, value: Value) -> tuple[Extent, ...]:
        """What each rank has of a value that lies as declared."""
        key = (value.dims, value.shape, value.placements)
        if key not in self._extents:
            self._extents[key] = tuple(self._extent(value, rank) for rank in self.ranks)
        return self._extents[key]

    def _extent(self, value: Value, rank: int) -> Extent:
        extent = Extent(tuple(tuple(range(length)) for length in value.shape))
        for axis, kind, dim in value.placements:
            if kind == "split":
                assert dim is not None, "a split has a dim"
                extent = extent.cut(value.dims.index(dim), self.sizes[axis], self.coordinates[rank][axis])
        for axis in value.axes_of("stored"):
            extent = extent.cut_storage(self.sizes[axis], self.coordinates[rank][axis])
        return extent


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a document says, but the reasons.

    Raises: RefereeError for a document of another version, or without what is needed.
    """

    mesh: Mesh
    nodes: tuple[int, ...]
    network: Mapping[str, Any]
    work: Mapping[str, Any]
    pipeline_axis: str | None
    stage_of_layer: tuple[int, ...]
    rank_of_stage: tuple[int, ...]
    parameters: Mapping[str, Parameter]
    blocks: tuple[Block, ...]
    update_values: Mapping[str, Value]
    update: tuple[Operator, ...]
    results: Mapping[str, str]
    traffic: tuple[Traffic, ...]

    @property
    def head(self) -> Block:
        """The last block."""
        return self.blocks[-1]

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Every block in order of computation."""
        last = len(self.rank_of_stage) - 1
        by_layer = {layer: block for block in self.blocks[1:-1] for layer in block.layers}
        return (
            Site(block=self.blocks[0], layer=None, stage=0),
            *(
                Site(block=by_layer[layer], layer=layer, stage=stage)
                for layer, stage in enumerate(self.stage_of_layer)
            ),
            Site(block=self.head, layer=None, stage=last),
        )

    def ranks_at(self, *stages: int) -> tuple[int, ...]:
        """The ranks that hold any of these stages."""
        wanted = {self.rank_of_stage[stage] for stage in stages}
        return tuple(rank for rank in self.mesh.ranks if self.place(rank) in wanted)

    def place(self, rank: int) -> int:
        """A rank's coordinate on the pipeline's axis; 0 without a pipeline."""
        return self.mesh.coordinates[rank][self.pipeline_axis] if self.pipeline_axis else 0

    @cached_property
    def _gradients(self) -> Mapping[str, str]:
        return {
            operator.inputs[0]: operator.parameters[0]
            for operator in self.update
            if operator.kind == "update"
        }

    def parameter_of_gradient(self, value: str) -> Parameter:
        """The parameter that an update applies a value to."""
        return self.parameters[self._gradients[value]]

    def places_of(self, ranks: Iterable[int], level: str) -> list[int]:
        """The node (or the site: a plan has one) that each rank stands on.

        Raises: RefereeError for a level that the document does not tell.
        """
        if level == "node":
            return [self.nodes[rank] for rank in ranks]
        if level == "site":
            return [0 for _ in ranks]
        raise RefereeError(f"the document does not tell the {level} of a rank")

    @property
    def averaged_axes(self) -> tuple[str, ...]:
        """Axes along which some parameter varies, in mesh order."""
        found = {axis for parameter in self.parameters.values() for axis in parameter.varying}
        return tuple(axis for axis in self.mesh.axes if axis in found)

    @property
    def samples(self) -> int:
        """Samples of one microbatch over all ranks, rows without a sample among them."""
        return int(self.work["microbatch"]) * int(self.work["replicas"])


def read_plan(document: Mapping[str, Any]) -> Plan:
    """The plan in a document."""
    try:
        return _plan(document)
    except (KeyError, TypeError) as error:
        raise RefereeError(f"the document is not a plan that this referee can read: {error!r}") from error


def _plan(document: Mapping[str, Any]) -> Plan:
    if document["version"] != VERSION:
        raise RefereeError(
            f"the document has version {document['version']}; this referee reads version {VERSION}"
        )
    mesh = Mesh([(axis, size) for axis, size in document["mesh"]])
    pipeline, update = document["pipeline"], document["update"]
    parameters = [_parameter(found) for found in document["parameters"]]
    return Plan(
        mesh=mesh,
        nodes=tuple(document["nodes"]),
        network=document["network"],
        work=document["work"],
        pipeline_axis=pipeline["axis"],
        stage_of_layer=tuple(pipeline["stage_of_layer"]),
        rank_of_stage=tuple(pipeline["rank_of_stage"]),
        parameters={parameter.name: parameter for parameter in parameters},
        blocks=tuple(_block(found) for found in document["blocks"]),
        update_values=_values(update["values"]),
        update=_operators(update["operators"]),
        results=update["results"],
        traffic=tuple(_traffic(found) for found in document["traffic"]),
    )


def _parameter(found: Mapping[str, Any]) -> Parameter:
    def value(placements: Any) -> Value:
        return Value(
            name=found["name"],
            dims=tuple(found["dims"]),
            shape=tuple(found["shape"]),
            dtype=found["dtypes"]["params"],
            placements=_placements(placements),
        )

    return Parameter(
        name=found["name"],
        layer=found["layer"],
        stages=tuple(found["stages"]),
        computed=value(found["computed"]),
        stored=value(found["stored"]["params"]),
        updated=value(found["stored"]["states"]),
    )


def _block(found: Mapping[str, Any]) -> Block:
    return Block(
        name=found["name"],
        layers=tuple(found["layers"]),
        values=_values(found["values"]),
        gathers=_operators(found["gathers"]),
        forward=_operators(found["forward"]),
        recompute=_operators(found["recompute"]),
        backward=_operators(found["backward"]),
        kept=tuple(found["kept"]),
        result=found["result"],
        gradient=found["gradient"],
    )


def _values(found: Mapping[str, Any]) -> dict[str, Value]:
    return {
        name: Value(
            name=name,
            dims=tuple(value["dims"]),
            shape=tuple(value["shape"]),
            dtype=value["dtype"],
            placements=_placements(value["placements"]),
        )
        for name, value in found.items()
    }


def _placements(found: Sequence[Sequence[Any]]) -> Placements:
    return tuple((axis, kind, dim) for axis, kind, dim in found)


def _operators(found: Sequence[Mapping[str, Any]]) -> tuple[Operator, ...]:
    return tuple(
        Operator(
            kind=operator["kind"],
            inputs=tuple(operator["inputs"]),
            outputs=tuple(operator["outputs"]),
            parameters=tuple(operator["parameters"]),
            transfer=_transfer(operator["transfer"]) if operator["transfer"] else None,
            dim_to=operator["dim_to"],
            dim_from=operator["dim_from"],
            cuts=tuple(operator["cuts"]),
            every=operator["every"],
            call=operator["call"],
            variants=tuple((tuple(groups), _transfer(transfer)) for groups, transfer in operator["variants"]),
        )
        for operator in found
    )


def _transfer(found: Mapping[str, Any]) -> Transfer:
    return Transfer(
        axes=tuple(found["axes"]),
        route=found["route"],
        levels=tuple(found["levels"]),
        wire=found["wire"],
        compress=found["compress"],
        compress_argument=found["compress_argument"],
        operation=found["operation"],
        stages=tuple(found["stages"]),
    )


def _traffic(found: Mapping[str, Any]) -> Traffic:
    return Traffic(
        block=found["block"],
        phase=found["phase"],
        kind=found["kind"],
        tensors=tuple(found["tensors"]),
        axes=tuple(found["axes"]),
        route=found["route"],
        runs={int(place): runs for place, runs in found["runs"].items()},
        sent_bytes={int(rank): sent for rank, sent in found["sent_bytes"].items()},
    )
