"""What every rank sends in a step: each collective of a plan with its messages, and the hand-over between stages."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trimtab.plan.collectives import Request, RouteError, Send, sends_of
from trimtab.plan.meshes import coordinates, groups
from trimtab.plan.physical import EMBEDDING, Plan, Traffic
from trimtab.plan.placements import PlacementKind, local_elements, local_shape
from trimtab.plan.program import COLLECTIVES, Because, Block, Operator, OperatorKind, Phase, Transfer, Value
from trimtab.plan.tables import BYTES_OF, Table


def traffic_of(plan: Plan) -> tuple[Traffic, ...]:
    """Every collective of a step: by block in the order of computation, then the update, then the pipeline.

    Raises: RouteError if a route cannot carry what it is asked to.
    """
    found: list[Traffic] = []
    counter = _Counter(plan)
    for block in plan.blocks:
        for phase, operators in _phases(block):
            for operator in operators:
                found += counter.block_traffic(block, phase, operator)
    for operator in plan.update.operators:
        found += counter.update_traffic(operator)
    found += counter.hand_over()
    return tuple(traffic for traffic in found if any(len(group) > 1 for group in traffic.groups))


def update_traffic_of(plan: Plan) -> tuple[Traffic, ...]:
    """The collectives of the update alone, as ``traffic_of`` has them.

    Raises: As ``traffic_of``.
    """
    counter = _Counter(plan)
    found = (traffic for operator in plan.update.operators for traffic in counter.update_traffic(operator))
    return tuple(traffic for traffic in found if any(len(group) > 1 for group in traffic.groups))


def _phases(block: Block) -> Iterator[tuple[Phase, tuple[Operator, ...]]]:
    yield Phase.FORWARD, (*block.gathers, *block.forward)
    # What is stored is gathered again: it was let go after the forward pass.
    yield Phase.RECOMPUTE, block.recompute
    yield Phase.BACKWARD, (*block.gathers, *block.backward)


_Places = tuple[tuple[int | None, ...], ...]
"""For each rank of a group its node, rack and site."""


class _Counter:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sizes = plan.axis_sizes
        self._places = tuple((device.node, device.rack, device.site) for device in plan.bound.devices)
        axis = plan.pipeline.axis
        self._at = [
            coordinates(plan.mesh, rank)[axis] if axis else 0 for rank in range(plan.mesh.num_devices)
        ]
        self._groups: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        self._standing: dict[tuple[tuple[int, ...], ...], dict[_Places, list[int]]] = {}
        self._sent: dict[tuple[str, tuple[str, ...], Request, int], tuple[Send, ...]] = {}

    def block_traffic(self, block: Block, phase: Phase, operator: Operator) -> Iterator[Traffic]:
        if operator.kind not in COLLECTIVES:
            return
        runs: Counter[int] = Counter()
        for stage, coordinate in enumerate(self._plan.pipeline.rank_of_stage):
            runs[coordinate] += self._plan.num_runs(block, stage)
        found = {coordinate: float(count) for coordinate, count in runs.items() if count}
        yield from self._traffic(block.name, phase, operator, block.values, found)

    def update_traffic(self, operator: Operator) -> Iterator[Traffic]:
        if operator.kind not in COLLECTIVES:
            return
        runs = dict.fromkeys(holders(self._plan, operator.inputs[0]), 1 / operator.every)
        yield from self._traffic("update", Phase.UPDATE, operator, self._plan.update.values, runs)

    def _traffic(
        self,
        block: str,
        phase: Phase,
        operator: Operator,
        values: Mapping[str, Value],
        runs: Mapping[int, float],
    ) -> Iterator[Traffic]:
        transfer = operator.transfer
        assert transfer is not None, "collectives are sent"
        all_groups = self._groups_over(transfer.axes)
        special = {index for indices, _ in operator.variants for index in indices}
        others = tuple(index for index in range(len(all_groups)) if index not in special)
        ways = [(others, transfer, operator.because)]
        for (indices, way), line in zip(operator.variants, operator.variant_lines, strict=True):
            ways.append((indices, way, replace(operator.because, line=line)))
        for indices, way, because in ways:
            members = self._taking_part([all_groups[index] for index in indices], way, runs)
            if not members:
                continue
            elements, piece = self._elements(operator, values, len(members[0]))
            yield Traffic(
                block=block,
                phase=phase,
                operator=operator,
                transfer=way,
                groups=members,
                payload_bytes=self._wire_bytes(operator, values, elements, way),
                sends=tuple(self._sends(operator, values, way, members, elements, piece)),
                runs=runs,
                tensors=operator.inputs,
                because=because,
            )

    def _groups_over(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        if axes not in self._groups:
            self._groups[axes] = groups(self._plan.mesh, axes)
        return self._groups[axes]

    def _taking_part(
        self, chosen: Sequence[tuple[int, ...]], transfer: Transfer, runs: Mapping[int, float]
    ) -> tuple[tuple[int, ...], ...]:
        """The groups cut down to the ranks whose stages run the operator."""
        wanted = set(runs)
        if transfer.stages:
            wanted &= {self._plan.pipeline.rank_of_stage[stage] for stage in transfer.stages}
        cut = (tuple(rank for rank in group if self._at[rank] in wanted) for group in chosen)
        return tuple(group for group in cut if len(group) > 1)

    def _elements(self, operator: Operator, values: Mapping[str, Value], ranks: int) -> tuple[int, int]:
        """Elements that a rank puts in, and those of one rank's piece."""
        total = sum(self._local(values[name]) for name in operator.inputs)
        match operator.kind:
            case OperatorKind.ALL_GATHER:
                return total, total
            case OperatorKind.REDUCE_SCATTER:
                piece = sum(self._local(values[name]) for name in operator.outputs)
                # Pieces may be padded: what is scattered is then more than what was there.
                return piece * ranks, piece
            case OperatorKind.ALL_TO_ALL:
                return total, self._exchanged(operator, values[operator.inputs[0]], ranks)
        return total, -(-total // ranks)

    def _local(self, value: Value) -> int:
        return local_elements(value.dims, value.shape, value.placements, self._sizes)

    def _exchanged(self, operator: Operator, value: Value, ranks: int) -> int:
        """Elements that one rank sends to each other rank: its piece, cut again along the new dim."""
        shape = local_shape(value.dims, value.shape, value.placements, self._sizes)
        cut = (
            -(-length // ranks) if dim == operator.dim_to else length
            for dim, length in zip(value.dims, shape, strict=True)
        )
        return math.prod(cut)

    def _wire_bytes(
        self, operator: Operator, values: Mapping[str, Value], elements: int, transfer: Transfer
    ) -> int:
        """Bytes that a rank puts in, as they travel."""
        if transfer.compress == "topk":
            return topk_elements(elements, transfer.compress_argument) * TOPK_BYTES
        if transfer.compress == "powersgd":
            return sum(self._low_rank_elements(operator, values, transfer)) * BYTES_OF["fp32"]
        return elements * _bytes_per_element(transfer)

    def _low_rank_elements(
        self, operator: Operator, values: Mapping[str, Value], transfer: Transfer
    ) -> tuple[int, ...]:
        """Elements of the two factors of a matrix, which are summed one after the other (Vogels et al. 2019).

        A vector travels as it is, and so does a matrix that its factors would not make smaller.
        """
        value = values[operator.inputs[0]]
        shape = local_shape(value.dims, value.shape, value.placements, self._sizes)
        rank = int(transfer.compress_argument or 1)
        factors = (rank * math.prod(shape[:-1]), rank * shape[-1]) if len(shape) > 1 else ()
        is_smaller = factors and sum(factors) < math.prod(shape)
        return factors if is_smaller else (math.prod(shape),)

    def _sends(
        self,
        operator: Operator,
        values: Mapping[str, Value],
        transfer: Transfer,
        members: Sequence[tuple[int, ...]],
        elements: int,
        piece: int,
    ) -> Iterator[tuple[tuple[int, ...], tuple[Send, ...]]]:
        """Messages in bytes, once for all groups whose ranks stand alike."""
        for places, indices in self._alike(tuple(members)).items():
            yield tuple(indices), self._messages(operator, values, transfer, places, elements, piece)

    def _alike(self, members: tuple[tuple[int, ...], ...]) -> Mapping[_Places, list[int]]:
        """Groups by index, those together whose ranks stand alike on nodes, racks and sites."""
        found = self._standing.get(members)
        if found is None:
            found = self._standing[members] = {}
            for index, group in enumerate(members):
                found.setdefault(_relative([self._places[rank] for rank in group]), []).append(index)
        return found

    def _messages(
        self,
        operator: Operator,
        values: Mapping[str, Value],
        transfer: Transfer,
        places: tuple[tuple[int | None, ...], ...],
        elements: int,
        piece: int,
    ) -> tuple[Send, ...]:
        size = _bytes_per_element(transfer)
        if operator.kind in (OperatorKind.RING_ATTENTION, OperatorKind.RING_ATTENTION_GRAD):
            return tuple(_ring_of_keys(operator, values, self._sizes, len(places), size))
        kind = OperatorKind.ALL_REDUCE if operator.kind is OperatorKind.AVERAGE else operator.kind
        if (refusal := _compression_refusal(operator, values, transfer)) is not None:
            raise UncarriedError(operator.because, refusal)
        if transfer.compress == "topk":
            # Everyone needs everyone's largest elements: values with their indices, gathered.
            kind, size = OperatorKind.ALL_GATHER, TOPK_BYTES
            piece = topk_elements(elements, transfer.compress_argument)
        parts: tuple[tuple[int, int], ...] = ((elements, piece),)
        if transfer.compress == "powersgd":
            factors = self._low_rank_elements(operator, values, transfer)
            parts, size = tuple((factor, -(-factor // len(places))) for factor in factors), BYTES_OF["fp32"]
        found: list[tuple[Send, ...]] = []
        for elements, piece in parts:
            request = Request(kind=kind, elements=elements, piece=piece, places=places)
            try:
                found.append(self._in_bytes(transfer.route, transfer.levels, request, size))
            except RouteError as error:
                raise UncarriedError(operator.because, str(error)) from error
        return found[0] if len(found) == 1 else tuple(send for sends in found for send in sends)

    def _in_bytes(self, route: str, levels: tuple[str, ...], request: Request, size: int) -> tuple[Send, ...]:
        """The messages of a request; layers are alike, so most were asked for before."""
        key = (route, levels, request, size)
        if key not in self._sent:
            self._sent[key] = tuple(
                Send(send.source, send.target, send.elements * size)
                for send in sends_of(route, request, levels)
            )
        return self._sent[key]

    def hand_over(self) -> Iterator[Traffic]:
        """Activations to the next stage and their gradients back, once for each pair of neighbouring ranks."""
        pipeline = self._plan.pipeline
        if pipeline.axis is None:
            return
        work = self._plan.work
        for stage in range(pipeline.num_stages - 1):
            source, target = pipeline.rank_of_stage[stage], pipeline.rank_of_stage[stage + 1]
            if source == target:  # the turn of a V
                continue
            layer = pipeline.stage_of_layer.index(stage + 1)
            before, after = self._plan.block_of(layer - 1), self._plan.block_of(layer)
            yield self._border(Phase.FORWARD, before.values[before.result], source, target, work.microbatches)
            yield self._border(
                Phase.BACKWARD, after.values[after.gradient], target, source, work.microbatches
            )

    def _is_stream_sealed(self, axis: str) -> bool:
        rows = self._plan.bound.rows[Table.ACTIVATIONS].values()
        stream = (row.name for row in rows if row.kind == "residual")
        return any(self._plan.bound.is_sealed(Table.ACTIVATIONS, name, [axis]) for name in stream)

    def _border(self, phase: Phase, value: Value, source: int, target: int, runs: int) -> Traffic:
        """What one stage hands to the next, or back, for each microbatch."""
        pipeline = self._plan.pipeline
        assert pipeline.axis is not None, "borders are those of a pipeline"
        pairs = tuple((group[source], group[target]) for group in self._groups_over((pipeline.axis,)))
        payload = self._local(value) * BYTES_OF[value.dtype]
        transfer = Transfer(
            axes=(pipeline.axis,),
            wire=value.dtype,
            is_sealed=self._is_stream_sealed(pipeline.axis),
        )
        because = Because(reason="pipeline parallelism", line=pipeline.line)
        return Traffic(
            block="pipeline",
            phase=phase,
            operator=Operator(
                kind=OperatorKind.SEND, inputs=(value.name,), outputs=(), because=because, transfer=transfer
            ),
            transfer=transfer,
            groups=pairs,
            payload_bytes=payload,
            sends=tuple((tuple(indices), (Send(0, 1, payload),)) for indices in self._alike(pairs).values()),
            runs={source: float(runs)},
            tensors=("residual stream",),
            because=because,
        )


class UncarriedError(Exception):
    """A route that cannot carry its sum.

    Args:
        because: Of the operator.
        message: Why not, and what can.
    """

    def __init__(self, because: Because, message: str) -> None:
        self.because = because
        super().__init__(message)


TOPK_BYTES = 8
"""Of one element that top-k sends: its value in fp32 and its index in int32."""


def topk_elements(elements: int, fraction: float | None) -> int:
    """Elements that top-k sends of so many: the fraction, rounded up."""
    return math.ceil(elements * (fraction or 1.0))


def holders(plan: Plan, name: str) -> tuple[int, ...]:
    """The places on the pipeline's axis whose ranks hold a value of the update."""
    pipeline = plan.pipeline
    everywhere = tuple(dict.fromkeys(pipeline.rank_of_stage))
    base = name.partition("@")[0].partition("~")[0]
    if base == "loss":
        return (pipeline.rank_of_stage[-1],)
    if base in ("num_tokens", "norm_square"):
        return everywhere
    parameter, _, block = base.partition(":")[2].partition("#")
    if block:
        return (pipeline.rank_of_stage[0 if block == EMBEDDING else -1],)
    stages = plan.parameters[parameter.partition("/")[0]].stages
    return tuple(dict.fromkeys(pipeline.rank_of_stage[stage] for stage in stages))


def _compression_refusal(operator: Operator, values: Mapping[str, Value], transfer: Transfer) -> str | None:
    """Why a sum cannot be compressed so; None if it can."""
    if transfer.compress not in ("topk", "powersgd"):
        return None
    if operator.kind is OperatorKind.REDUCE_SCATTER:
        return (
            f"{transfer.compress} sums whole gradients, and these are scattered into stored pieces; use int8 or bf16, or "
            "do not store grads over this axis"
        )
    is_stored = any(values[name].placements.axes_of(PlacementKind.STORED) for name in operator.inputs)
    if transfer.compress == "powersgd" and is_stored:
        return (
            "powersgd needs a gradient as a matrix, and these are flat stored pieces; use topk, int8 or bf16"
        )
    if transfer.compress == "topk" and transfer.route not in ("native", "ring", "reduce_scatter"):
        return f"topk gathers the largest elements of every rank; {transfer.route} carries sums only: leave USING out"
    return None


def _relative(places: Sequence[tuple[int | None, ...]]) -> tuple[tuple[int | None, ...], ...]:
    """Places renamed in order of appearance, so that groups that stand alike are equal."""
    names: list[dict[int, int]] = [{} for _ in places[0]]
    return tuple(
        tuple(
            None if place is None else known.setdefault(place, len(known))
            for place, known in zip(row, names, strict=True)
        )
        for row in places
    )


def _bytes_per_element(transfer: Transfer) -> int:
    if transfer.compress == "int8":
        return 1
    return BYTES_OF["bf16" if transfer.compress == "bf16" else transfer.wire]


def _ring_of_keys(
    operator: Operator, values: Mapping[str, Value], sizes: Mapping[str, int], ranks: int, size: int
) -> Iterator[Send]:
    """Keys and values travel to every other rank; going back, their gradients travel once more and home."""
    is_backward = operator.kind is OperatorKind.RING_ATTENTION_GRAD
    names = operator.inputs[-2:]
    elements = sum(
        local_elements(values[name].dims, values[name].shape, values[name].placements, sizes)
        for name in names
    )
    hops = (ranks - 1) * elements + (ranks * elements if is_backward else 0)
    for index in range(ranks):
        yield Send(index, (index + 1) % ranks, hops * size)
