"""The relations ``collectives`` and ``traffic``: what is sent in a step, why, and how far."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trimtab.plan.physical import Plan, Traffic
from trimtab.plan.relations.flows import Flow, Flows, Reach
from trimtab.plan.relations.lines import line_of
from trimtab.terms import Column, ColumnType, Relation, Schema, Span

_TEXT, _INTEGER, _REAL, _BOOLEAN = (
    ColumnType.TEXT,
    ColumnType.INTEGER,
    ColumnType.REAL,
    ColumnType.BOOLEAN,
)

MAX_RANKS_WITH_PEERS = 64
"""Up to so many ranks ``traffic`` has a row for each pair; beyond, one for each sender."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A collective of a plan.

    Args:
        number: From 1, in the order of the step.
        traffic: As the plan has it.
        num_layers: That its block stands for; 0 outside of layers.
        statement: Number of the statement behind it; None for a default.
        bytes_by_reach: Of all ranks together in a step.
    """

    number: int
    traffic: Traffic
    num_layers: int
    statement: int | None
    bytes_by_reach: Mapping[Reach, int]

    @property
    def bytes_per_step(self) -> int:
        """Of all ranks together."""
        return sum(self.bytes_by_reach.values())

    @property
    def crosses_node(self) -> bool:
        """Whether any of it leaves a node."""
        return self.bytes_per_step > self.bytes_by_reach.get(Reach.NODE, 0)


COLLECTIVES: Schema[Sent] = Schema(
    name="collectives",
    meaning="a collective, or the hand-over between two places of a pipeline",
    columns=(
        Column("collective", _INTEGER, "number of the row, from 1, in the order of the step", lambda sent: sent.number),
        Column(
            "block", _TEXT, "`embedding`, `layers 0-3`, `head`, `update`, `pipeline`", lambda sent: sent.traffic.block
        ),
        Column("layers", _INTEGER, "layers that the block stands for; 0 outside of layers", lambda sent: sent.num_layers),
        Column(
            "phase", _TEXT, "`forward`, `recompute`, `backward`, `update`", lambda sent: sent.traffic.phase.value
        ),
        Column(
            "operation", _TEXT, "`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `send`, …",
            lambda sent: sent.traffic.operator.kind.value,
        ),
        Column("axes", _TEXT, "axes of the mesh whose ranks take part: `dp, tp`", lambda sent: axes_of(sent.traffic)),
        Column("group_size", _INTEGER, "ranks of one process group", lambda sent: len(sent.traffic.groups[0])),
        Column("groups", _INTEGER, "process groups that do it side by side", lambda sent: len(sent.traffic.groups)),
        Column("route", _TEXT, "`native`, `ring`, `tree`, `hierarchical`, …", lambda sent: sent.traffic.transfer.route),
        Column("wire", _TEXT, "type on the wire", lambda sent: sent.traffic.transfer.wire),
        Column(
            "compress", _TEXT, "`none`, `bf16`, `int8`, `topk`, `powersgd`", lambda sent: sent.traffic.transfer.compress
        ),
        Column("sealed", _BOOLEAN, "whether it is encrypted on the wire", lambda sent: sent.traffic.transfer.is_sealed),
        Column(
            "payload_bytes", _INTEGER, "that one rank puts into one run, as it travels",
            lambda sent: sent.traffic.payload_bytes,
        ),
        Column(
            "runs_per_step", _REAL, "on the busiest place of the pipeline; below 1 where it skips steps",
            lambda sent: max(sent.traffic.runs.values(), default=0.0),
        ),
        Column("bytes_per_step", _INTEGER, "sent by all ranks together", lambda sent: sent.bytes_per_step),
        Column(
            "bytes_in_node", _INTEGER, "of these, between ranks of one node",
            lambda sent: sent.bytes_by_reach.get(Reach.NODE, 0),
        ),
        Column(
            "bytes_in_rack", _INTEGER, "of these, between nodes of one rack",
            lambda sent: sent.bytes_by_reach.get(Reach.RACK, 0),
        ),
        Column(
            "bytes_in_site", _INTEGER, "of these, between racks of one site, or between nodes where racks are not known",
            lambda sent: sent.bytes_by_reach.get(Reach.SITE, 0),
        ),
        Column(
            "bytes_between_sites", _INTEGER, "of these, between sites",
            lambda sent: sent.bytes_by_reach.get(Reach.WORLD, 0),
        ),
        Column("crosses_node", _BOOLEAN, "whether any of it leaves a node", lambda sent: sent.crosses_node),
        Column("num_tensors", _INTEGER, "tensors that travel together", lambda sent: len(sent.traffic.tensors)),
        Column(
            "tensors", _TEXT, "their names inside the block, joined by a comma and a space",
            lambda sent: ", ".join(sent.traffic.tensors),
        ),
        Column("why", _TEXT, "in a few words", lambda sent: sent.traffic.because.reason),
        Column("line", _TEXT, "the line that asked for it, or `default`", lambda sent: line_of(sent.traffic.because.line)),
        Column("statement", _INTEGER, "that line's row in `statements`; NULL for a default", lambda sent: sent.statement),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """Bytes that one rank sends over some axes, so far."""

    rank: int
    peer: int | None
    axes: str
    reach: Reach
    bytes_per_step: int


TRAFFIC: Schema[Amount] = Schema(
    name="traffic",
    meaning=f"what one rank sends to one other over some axes; beyond {MAX_RANKS_WITH_PEERS} ranks, to all others together",
    columns=(
        Column("rank", _INTEGER, "the sender", lambda amount: amount.rank),
        Column(
            "peer", _INTEGER, f"the receiver; NULL with more than {MAX_RANKS_WITH_PEERS} ranks", lambda amount: amount.peer
        ),
        Column("axes", _TEXT, "axes of the collectives, as there", lambda amount: amount.axes),
        Column(
            "level", _TEXT, "the smallest place that holds both: `node`, `rack`, `site`, `world`",
            lambda amount: amount.reach.value,
        ),
        Column("bytes_per_step", _INTEGER, "rounded where a collective skips steps", lambda amount: amount.bytes_per_step),
    ),
)  # fmt: skip


def axes_of(traffic: Traffic) -> str:
    """The axes of a collective as text: ``dp, tp``."""
    return ", ".join(traffic.transfer.axes)


def collective_relations(
    plan: Plan, flows: Flows, statements: Mapping[Span | None, int]
) -> Iterator[Relation]:
    """Both relations.

    Args:
        plan: Compiled.
        flows: What it sends.
        statements: Numbers of the statements, by place.
    """
    yield COLLECTIVES.filled(lambda: _sent(plan, flows, statements))
    yield TRAFFIC.filled(lambda: _amounts(plan, flows))


def _sent(plan: Plan, flows: Flows, statements: Mapping[Span | None, int]) -> Iterator[Sent]:
    layers = {block.name: len(block.layers) for block in plan.blocks}
    by_collective: list[Counter[Reach]] = [Counter() for _ in plan.traffic]
    for flow in flows.of_ranks():
        by_collective[flow.collective][flow.reach] += flow.bytes_per_step
    for index, traffic in enumerate(plan.traffic):
        yield Sent(
            number=index + 1,
            traffic=traffic,
            num_layers=layers.get(traffic.block, 0),
            statement=statements.get(traffic.because.line),
            bytes_by_reach=by_collective[index],
        )


def _amounts(plan: Plan, flows: Flows) -> Iterator[Amount]:
    is_small = plan.mesh.num_devices <= MAX_RANKS_WITH_PEERS
    axes = [axes_of(traffic) for traffic in plan.traffic]
    totals: Counter[tuple[int, int | None, str, Reach]] = Counter()
    found: Iterable[Flow] = flows.of_pairs() if is_small else flows.of_ranks()
    for flow in found:
        totals[flow.rank, flow.peer, axes[flow.collective], flow.reach] += flow.bytes_per_step
    for (rank, peer, over, reach), sent_bytes in sorted(totals.items(), key=lambda item: _order(item[0])):
        if sent_bytes:
            yield Amount(rank=rank, peer=peer, axes=over, reach=reach, bytes_per_step=sent_bytes)


def _order(key: tuple[int, int | None, str, Reach]) -> tuple[int, int, str, str]:
    rank, peer, axes, reach = key
    return rank, -1 if peer is None else peer, axes, reach.value
