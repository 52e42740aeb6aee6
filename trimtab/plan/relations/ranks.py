"""The relations ``ranks`` and ``axes``: who stands where, holds what, and sends how much."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trimtab.plan.devices import Device
from trimtab.plan.meshes import coordinates, groups
from trimtab.plan.physical import Plan
from trimtab.plan.relations.flows import Flows, Reach, reach_of
from trimtab.plan.relations.lines import lines_of
from trimtab.plan.relations.pieces import Pieces
from trimtab.plan.tables import Table
from trimtab.spec import Mesh, Program
from trimtab.spec.language import MeshStatement
from trimtab.terms import Column, ColumnType, Relation, Schema, unique_names

_TEXT, _INTEGER = ColumnType.TEXT, ColumnType.INTEGER

TABLES = (Table.PARAMS, Table.GRADS, Table.STATES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """What a rank at one place of the pipeline's axis holds.

    Args:
        stages: Of the pipeline.
        device_bytes: Of params, grads and states in its device's memory.
        host_bytes: Of all that is offloaded.
        activation_bytes: At most at once, in its device's memory.
    """

    stages: tuple[int, ...]
    device_bytes: Mapping[Table, int]
    host_bytes: int
    activation_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A rank.

    Args:
        device: That it has.
        place: On every axis.
        holding: What it holds.
        sent_bytes: In a step, by reach.
    """

    device: Device
    place: Mapping[str, int]
    holding: Holding
    sent_bytes: Mapping[Reach, int]

    @property
    def off_node_bytes(self) -> int:
        """What it sends to other nodes in a step."""
        return sum(self.sent_bytes.values()) - self.sent_bytes.get(Reach.NODE, 0)


_WHERE: tuple[Column[Standing], ...] = (
    Column("rank", _INTEGER, "counted from 0, node by node", lambda found: found.device.rank),
    Column("node", _INTEGER, "index of its machine in the cluster", lambda found: found.device.node),
    Column("rack", _INTEGER, "NULL where the cluster does not tell", lambda found: found.device.rack),
    Column("site", _INTEGER, "index of its site", lambda found: found.device.site),
    Column("class", _TEXT, "name of the accelerator", lambda found: found.device.kind),
    Column("memory", _INTEGER, "bytes of the device; NULL if not known", lambda found: found.device.memory_bytes),
)  # fmt: skip

_WHAT: tuple[Column[Standing], ...] = (
    Column(
        "stages", _TEXT, "pipeline stages that it holds: `0, 4`", lambda found: ", ".join(map(str, found.holding.stages))
    ),
    Column(
        "param_bytes", _INTEGER, "parameters, as stored, in its memory",
        lambda found: found.holding.device_bytes[Table.PARAMS],
    ),
    Column(
        "grad_bytes", _INTEGER, "gradients, as stored, in its memory: one set, added up over microbatches",
        lambda found: found.holding.device_bytes[Table.GRADS],
    ),
    Column(
        "state_bytes", _INTEGER, "optimizer states, as stored, in its memory",
        lambda found: found.holding.device_bytes[Table.STATES],
    ),
    Column(
        "activation_bytes", _INTEGER, "most activations kept for the backward pass at once, in its memory",
        lambda found: found.holding.activation_bytes,
    ),
    Column(
        "host_bytes", _INTEGER, "all that is offloaded to its host's memory", lambda found: found.holding.host_bytes
    ),
    Column("sent_bytes_per_step", _INTEGER, "to all others", lambda found: sum(found.sent_bytes.values())),
    Column("sent_off_node_bytes_per_step", _INTEGER, "of these, to other nodes", lambda found: found.off_node_bytes),
)  # fmt: skip


def ranks_schema(mesh: Mesh) -> Schema[Standing]:
    """The relation ``ranks``, with a column ``at_<axis>`` for each axis of a mesh."""
    names = unique_names(f"at_{axis}" for axis, _ in mesh.axes)
    at = tuple(_at(axis, name) for (axis, _), name in zip(mesh.axes, names, strict=True))
    return Schema(name="ranks", meaning="a rank", columns=(*_WHERE, *at, *_WHAT))


@dataclass(frozen=True, kw_only=True, slots=True)
class Direction:
    """An axis of the mesh.

    Args:
        axis: Its name.
        position: In the mesh, from 0.
        size: Ranks along it.
        stride: From one rank to the next along it.
        reach: The smallest place that holds each of its groups.
        splits: Dims that are cut over it.
        stores: Tables that are stored in pieces over it.
        varies: Whether parameters differ along it on purpose.
        bytes_per_step: Sent over it alone.
        line: Of the MESH.
    """

    axis: str
    position: int
    size: int
    stride: int
    reach: Reach
    splits: tuple[str, ...]
    stores: tuple[str, ...]
    varies: bool
    bytes_per_step: int
    line: str


AXES: Schema[Direction] = Schema(
    name="axes",
    meaning="an axis of the mesh",
    columns=(
        Column("axis", _TEXT, "its name", lambda found: found.axis),
        Column("position", _INTEGER, "in the mesh, from 0; the last varies fastest", lambda found: found.position),
        Column("size", _INTEGER, "ranks along it", lambda found: found.size),
        Column("stride", _INTEGER, "from the number of one rank to that of the next along it", lambda found: found.stride),
        Column(
            "level", _TEXT, "the smallest place that holds each of its groups: `node`, `rack`, `site`, `world`",
            lambda found: found.reach.value,
        ),
        Column("splits", _TEXT, "dims that are cut over it: `heads, kv_heads, mlp`", lambda found: ", ".join(found.splits)),
        Column(
            "stores", _TEXT, "tables that are stored in pieces over it: `grads, states`",
            lambda found: ", ".join(found.stores),
        ),
        Column(
            "averaged", ColumnType.BOOLEAN, "whether parameters differ along it between averages",
            lambda found: found.varies,
        ),
        Column(
            "bytes_per_step", _INTEGER, "sent by all ranks in collectives over this axis alone",
            lambda found: found.bytes_per_step,
        ),
        Column("line", _TEXT, "the MESH, or `default`", lambda found: found.line),
    ),
)  # fmt: skip


def rank_relations(plan: Plan, program: Program, pieces: Pieces, flows: Flows) -> Iterator[Relation]:
    """Both relations.

    Args:
        plan: Compiled.
        program: What it was compiled from.
        pieces: What its ranks hold.
        flows: What they send.
    """
    yield ranks_schema(plan.mesh).filled(lambda: _standings(plan, pieces, flows))
    yield AXES.filled(lambda: _directions(plan, program, flows))


def _at(axis: str, name: str) -> Column[Standing]:
    return Column(name, _INTEGER, f"coordinate on the axis `{axis}`", lambda found: found.place[axis])


def _standings(plan: Plan, pieces: Pieces, flows: Flows) -> Iterator[Standing]:
    sent: list[Counter[Reach]] = [Counter() for _ in plan.bound.devices]
    for flow in flows.of_ranks():
        sent[flow.rank][flow.reach] += flow.bytes_per_step
    holdings = _holdings(plan, pieces)
    for device in plan.bound.devices:
        place = coordinates(plan.mesh, device.rank)
        axis = plan.pipeline.axis
        yield Standing(
            device=device,
            place=place,
            holding=holdings[place[axis] if axis else 0],
            sent_bytes=sent[device.rank],
        )


def _holdings(plan: Plan, pieces: Pieces) -> Mapping[int, Holding]:
    """By place on the pipeline's axis."""
    pipeline = plan.pipeline
    kept = pieces.activation_bytes(is_offloaded=False)
    on_device = {place: Counter[Table](dict.fromkeys(TABLES, 0)) for place in kept}
    on_host = Counter(pieces.activation_bytes(is_offloaded=True))
    for parameter in plan.parameters.values():
        for place in {pipeline.rank_of_stage[stage] for stage in parameter.stages}:
            for table in TABLES:
                waiting = parameter.waiting_bytes(table, plan.axis_sizes)
                on_host[place] += waiting
                on_device[place][table] += pieces.stored_bytes(parameter, table) - waiting
    return {
        place: Holding(
            stages=pipeline.stages_of(place),
            device_bytes=on_device[place],
            host_bytes=on_host[place],
            activation_bytes=kept[place],
        )
        for place in kept
    }


def _directions(plan: Plan, program: Program, flows: Flows) -> Iterator[Direction]:
    alone: Counter[str] = Counter()
    for flow in flows.of_ranks():
        axes = plan.traffic[flow.collective].transfer.axes
        if len(axes) == 1:
            alone[axes[0]] += flow.bytes_per_step
    meshes = [statement.span for statement in program.statements if isinstance(statement, MeshStatement)]
    for position, (axis, size) in enumerate(plan.mesh.axes):
        yield Direction(
            axis=axis,
            position=position,
            size=size,
            stride=math.prod(size for _, size in plan.mesh.axes[position + 1 :]),
            reach=_reach_of_axis(plan, axis),
            splits=_dims_over(plan, axis),
            stores=_tables_over(plan, axis),
            varies=any(axis in by_axis for by_axis in plan.bound.averages.values()),
            bytes_per_step=alone[axis],
            line=lines_of(meshes or [None]) or "",
        )


def _reach_of_axis(plan: Plan, axis: str) -> Reach:
    devices = plan.bound.devices
    found = {reach_of(devices[rank] for rank in group) for group in groups(plan.mesh, [axis])}
    return max(found, key=list(Reach).index)


def _dims_over(plan: Plan, axis: str) -> tuple[str, ...]:
    bound = plan.bound
    dims = {"layers"} if plan.pipeline.axis == axis else set()
    for splits in bound.splits.values():
        for cuts in splits.values():
            if axis in cuts:
                dims.add(cuts[axis].value)
    return tuple(sorted(dims))


def _tables_over(plan: Plan, axis: str) -> tuple[str, ...]:
    keys = {key for parameter in plan.parameters.values() for key in parameter.lines}
    return tuple(table.value for table in TABLES if f"store {table.value} {axis}" in keys)
