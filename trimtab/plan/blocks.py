"""The blocks of a plan: one program for the embedding, one for each class of layers decided alike, one for the head."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trimtab.plan.backward import Backward
from trimtab.plan.block_builder import BlockBuilder, base_name
from trimtab.plan.bound import Bound
from trimtab.plan.forward import COMPUTED, BlockContext, Forward
from trimtab.plan.lifetimes import loss_tokens
from trimtab.plan.physical import EMBEDDING, HEAD, Work
from trimtab.plan.placements import PlacementKind, Placements, split
from trimtab.plan.program import Because, Block, Operator, OperatorKind, Parameter
from trimtab.plan.reductions import apply_reductions
from trimtab.plan.tables import Table
from trimtab.plan.training import Training
from trimtab.plan.transitions import InterleavedError, Step
from trimtab.spec import Problem, Program, StrategyError
from trimtab.terms import Span


def derive_blocks(
    program: Program,
    training: Training,
    bound: Bound,
    parameters: Mapping[str, Parameter],
    work: Work,
) -> tuple[tuple[Block, ...], tuple[Placements, ...]]:
    """All blocks, and how the residual stream leaves the embedding and each layer.

    Raises: StrategyError if a layout cannot be reached, with the tensor and the statement.
    """
    return _Blocks(program, training, bound, parameters, work).derive()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Class:
    """Layers that every statement decides alike, and what arrives at them."""

    layers: tuple[int, ...]
    arriving: Placements


class _Blocks:
    def __init__(
        self,
        program: Program,
        training: Training,
        bound: Bound,
        parameters: Mapping[str, Parameter],
        work: Work,
    ) -> None:
        self._program = program
        self._training = training
        self._bound = bound
        self._parameters = parameters
        self._work = work
        self._by_layer: dict[int | None, list[Parameter]] = {}
        for parameter in parameters.values():
            self._by_layer.setdefault(parameter.layer, []).append(parameter)
        self._rows_by_layer: dict[int | None, list[str]] = {}
        for row in bound.rows[Table.ACTIVATIONS].values():
            self._rows_by_layer.setdefault(row.layer, []).append(row.name)
        self._reasons = _reasons(bound)
        self._seals = any(bound.sealed.values())

    def derive(self) -> tuple[tuple[Block, ...], tuple[Placements, ...]]:
        layouts = {name: self._row_layout(name) for name in self._bound.rows[Table.ACTIVATIONS]}
        stream = [
            layouts["embedding"],
            *(layouts[f"layers.{layer}.mlp_residual"] for layer in range(self._training.network.layers)),
        ]
        layers = (
            self._block(_class_name(found.layers), found.layers, found.arriving, layouts)
            for found in self._classes(stream, layouts)
        )
        embedding = self._block(EMBEDDING, (), None, layouts)
        head = self._block(HEAD, (), stream[-1], layouts)
        return (embedding, *layers, head), tuple(stream)

    def _row_layout(self, name: str) -> Placements:
        """How the decisions of a row make it lie; rows of experts lie in slots where samples or tokens are cut."""
        cuts = self._bound.splits[Table.ACTIVATIONS].get(name, {})
        row = self._bound.rows[Table.ACTIVATIONS][name]
        found = Placements()
        if "slots" in row.dims:
            norm = self._bound.splits[Table.ACTIVATIONS].get(f"layers.{row.layer}.router", {})
            for axis in norm:
                if axis not in cuts:
                    found = found.put(axis, split("slots"))
        for axis, decision in cuts.items():
            found = found.put(axis, split(decision.value))
        return found

    def _classes(self, stream: Sequence[Placements], layouts: Mapping[str, Placements]) -> Iterator[_Class]:
        by_key: dict[tuple[object, ...], list[int]] = {}
        for layer in range(self._training.network.layers):
            by_key.setdefault((stream[layer], *self._key(layer, layouts)), []).append(layer)
        for key, layers in by_key.items():
            arriving = key[0]
            assert isinstance(arriving, Placements), "the key begins with what arrives"
            yield _Class(layers=tuple(layers), arriving=arriving)

    def _key(self, layer: int, layouts: Mapping[str, Placements]) -> Iterator[object]:
        """Everything that a layer's program follows from."""
        bound = self._bound
        yield bound.computed.get(layer)
        for parameter in self._by_layer[layer]:
            yield parameter.computed
            yield tuple(parameter.stored.values())
            yield tuple(parameter.dtypes.values())
            yield parameter.offloaded
            yield id(bound.reductions.get(parameter.name))
            yield tuple(bound.sealed[Table.PARAMS].get(parameter.name, ()))
        for name in self._rows_by_layer[layer]:
            yield layouts[name]
            yield name in bound.recomputed
            yield name in bound.offloaded[Table.ACTIVATIONS]
            yield tuple(bound.sealed[Table.ACTIVATIONS].get(name, ()))

    def _block(
        self,
        name: str,
        layers: tuple[int, ...],
        arriving: Placements | None,
        layouts: Mapping[str, Placements],
    ) -> Block:
        prefix = f"layers.{layers[0]}." if layers else ""
        context = self._context(prefix, layouts)
        builder = BlockBuilder(self._dtype(layers))
        try:
            return self._derived(name, layers, arriving, prefix, context, builder)
        except InterleavedError as error:
            raise self._interleaved(error, context) from error

    def _derived(
        self,
        name: str,
        layers: tuple[int, ...],
        arriving: Placements | None,
        prefix: str,
        context: BlockContext,
        builder: BlockBuilder,
    ) -> Block:
        writer = Forward(builder, context)
        if name == EMBEDDING:
            writer.embedding()
        elif name == HEAD:
            assert arriving is not None, "something arrives at the head"
            writer.head(arriving, self._head_matrix())
        else:
            assert arriving is not None, "something arrives at a layer"
            writer.layer(arriving)
        forward, result = tuple(builder.operators), builder.result
        builder.result = ""
        backward = Backward(builder, context, forward).write(result or None)
        gradient = builder.result
        used = dict.fromkeys(parameter for operator in forward for parameter in operator.parameters)
        gathers = self._gathers(builder, prefix, tuple(used))
        kept, recompute = _kept_and_recomputed(forward, backward, self._recomputed(prefix, builder))
        backward = (*backward, *self._collected(builder, prefix, tuple(used)))
        seal = partial(self._sealed, prefix)
        gathers, forward, recompute, backward = (
            tuple(map(seal, operators)) for operators in (gathers, forward, recompute, backward)
        )
        offloaded = tuple(
            value
            for value in kept
            if f"{prefix}{base_name(value)}" in self._bound.offloaded[Table.ACTIVATIONS]
        )
        return Block(
            name=name,
            layers=layers,
            values=builder.values,
            gathers=gathers,
            forward=forward,
            recompute=recompute,
            backward=backward,
            kept=kept,
            offloaded=offloaded,
            result=result,
            gradient=gradient,
        )

    def _sealed(self, prefix: str, operator: Operator) -> Operator:
        """The operator, encrypted if a SEAL speaks of what it sends: sums of gradients know it already."""
        transfer = operator.transfer
        if transfer is None or not self._seals:
            return operator
        name = operator.inputs[0]
        if name.startswith("stored:"):
            table, row = Table.PARAMS, name.removeprefix("stored:")
        else:
            table, row = Table.ACTIVATIONS, _row_of(name)
        if not self._bound.is_sealed(table, f"{prefix}{row}", transfer.axes):
            return operator
        return replace(operator, transfer=replace(transfer, is_sealed=True))

    def _context(self, prefix: str, layouts: Mapping[str, Placements]) -> BlockContext:
        layer = int(prefix.split(".")[1]) if prefix else None
        parameters = [*self._by_layer[layer]]
        return BlockContext(
            network=self._training.network,
            batch=self._work.microbatch * self._work.replicas,
            sequence=self._work.sequence,
            activations={name.removeprefix(prefix): layouts[name] for name in self._rows_by_layer[layer]},
            parameters={
                parameter.name.removeprefix(prefix): (
                    parameter.dims,
                    parameter.shape,
                    _cuts(parameter.computed),
                )
                for parameter in parameters
            },
            attention={axis: decision.value for axis, decision in self._bound.attention.items()},
            reasons=self._reasons,
            sizes=dict(self._bound.mesh.axes),
            logits_at_once=self._logits_at_once(),
        )

    def _logits_at_once(self) -> int:
        """Tokens of a rank whose logits exist at once, where these are computed again; 0 where they are whole.

        A constant of the run: no number of ranks has a part in it.

        Raises: StrategyError if the matrix is cut along its inputs: ranks have summands of logits, which are added whole.
        """
        line = self._bound.recomputed.get("logits")
        if line is None:
            return 0
        matrix = self._parameters[self._head_matrix()]
        for axis, placement in matrix.computed:
            if placement.dim == matrix.dims[-1]:
                problem = Problem(
                    span=line,
                    message=f"logits are made anew some tokens at a time; with {matrix.name!r} split along "
                    f"{placement.dim} over {axis!r} each rank has a summand of them, and these are added whole",
                    hint="Split vocab instead, or leave them out: WHERE name <> 'logits'.",
                )
                raise StrategyError([problem], self._program.documents)
        return loss_tokens(self._work.microbatch * self._work.sequence, self._training.network.vocab)

    def _dtype(self, layers: tuple[int, ...]) -> str:
        decided = self._bound.computed.get(layers[0]) if layers else None
        return decided.value if decided else self._training.compute

    def _head_matrix(self) -> str:
        return "embedding.weight" if self._training.network.tied else "head.weight"

    def _recomputed(self, prefix: str, builder: BlockBuilder) -> Collection[str]:
        return {
            name.removeprefix(prefix)
            for name in self._bound.recomputed
            if name.startswith(prefix) and name.removeprefix(prefix) in builder.values
        }

    def _gathers(self, builder: BlockBuilder, prefix: str, used: Sequence[str]) -> tuple[Operator, ...]:
        """Stored parameters to where they are used."""
        builder.operators = []
        for name in used:
            parameter = self._parameters[f"{prefix}{name}"]
            stored, computed = parameter.stored[Table.PARAMS.value], parameter.computed
            if stored.is_same(computed):
                continue
            dtype = parameter.dtypes[Table.PARAMS.value]
            builder.value(f"stored:{name}", parameter.dims, parameter.shape, stored, dtype)
            builder.laid_out(f"stored:{name}", computed, _because_stored(parameter, Table.PARAMS))
        return tuple(builder.operators)

    def _collected(self, builder: BlockBuilder, prefix: str, used: Sequence[str]) -> tuple[Operator, ...]:
        """Gradients of a microbatch to where they are kept, added to those before it."""
        builder.operators = []
        for name in used:
            parameter = self._parameters[f"{prefix}{name}"]
            gradient = f"grad:param:{name}"
            kept = parameter.stored[Table.GRADS.value]
            axes = set(kept.axes_of(PlacementKind.STORED))
            target = builder.values[gradient].placements
            for axis, placement in kept:
                if axis in axes:
                    target = target.put(axis, placement)
            start = len(builder.operators)
            gradient = builder.laid_out(gradient, target, _because_stored(parameter, Table.GRADS))
            builder.operators[start:] = apply_reductions(
                builder.operators[start:], parameter, self._bound, builder
            )
            total = builder.like(f"acc:{name}", gradient, target)
            builder.add(OperatorKind.ACCUMULATE, [gradient], [total], COMPUTED, parameters=[name])
        return tuple(builder.operators)

    def _interleaved(self, error: InterleavedError, context: BlockContext) -> StrategyError:
        because = context.reasons.get((error.axis, error.dim)) or context.reasons.get((error.axis, None))
        span = because.line if because else None
        problem = Problem(
            span=span or _any_span(self._program),
            message=f"{error.dim} is cut over {error.axis!r} and again inside it; put together over {error.axis!r} alone, "
            "pieces would interleave",
            hint=f"Write the SPLIT over {error.axis!r} after the other, so that it cuts inside.",
        )
        return StrategyError([problem], self._program.documents)


def _class_name(layers: Sequence[int]) -> str:
    """``layers 0-3, 8``.

    >>> _class_name([0, 1, 2, 3, 8]), _class_name([5])
    ('layers 0-3, 8', 'layer 5')
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"layer {text}" if len(layers) == 1 else f"layers {text}"


def _cuts(placements: Placements) -> Placements:
    """The cuts alone: what varies on purpose computes as if it were replicated."""
    return Placements(tuple(item for item in placements if item[1].kind is PlacementKind.SPLIT))


def _kept_and_recomputed(
    forward: Sequence[Operator], backward: Sequence[Operator], dropped: Collection[str]
) -> tuple[tuple[str, ...], tuple[Operator, ...]]:
    """What stays from the forward to the backward pass, and the operators that make the rest again."""
    producers = {output: operator for operator in forward for output in operator.outputs}
    kept: dict[str, None] = {}
    again: set[int] = set()

    def need(name: str) -> None:
        if name not in producers or base_name(name) not in dropped:
            kept[name] = None
            return
        operator = producers[name]
        if id(operator) not in again:
            again.add(id(operator))
            for value in operator.inputs:
                need(value)

    inputs = {name for operator in backward for name in operator.inputs}
    for name in inputs:
        if name in producers or name in ("in", "tokens", "targets"):
            need(name)
    return tuple(sorted(kept)), tuple(operator for operator in forward if id(operator) in again)


def _because_stored(parameter: Parameter, table: Table) -> "_StoredReason":
    return _StoredReason(parameter, table)


@dataclass(frozen=True, slots=True)
class _StoredReason:
    """Why a stored tensor is gathered or scattered: the STORE line of its axis."""

    parameter: Parameter
    table: Table

    def __call__(self, step: Step) -> Because:
        lines, axis = self.parameter.lines, step.axes[0]
        line = lines.get(f"store {self.table.value} {axis}", lines.get(f"store params {axis}"))
        return Because(reason=f"{self.table.value} stored in pieces", line=line)


_REASONS = {
    "batch": "data parallelism",
    "sequence": "sequence parallelism",
    "experts": "expert parallelism",
    "slots": "expert parallelism",
}


def _reasons(bound: Bound) -> dict[tuple[str, str | None], Because]:
    """For each axis and dim the first statement that cuts it; for the axis alone, what cuts parameters first."""
    found: dict[tuple[str, str | None], Because] = {}
    for table in (Table.PARAMS, Table.ACTIVATIONS):
        for cuts in bound.splits[table].values():
            for axis, decision in cuts.items():
                dim = decision.value
                if (axis, dim) not in found:
                    reason = _REASONS.get(dim, "tensor parallelism")
                    if dim == "sequence" and axis in bound.attention:
                        reason = "context parallelism"
                    because = Because(reason=reason, line=decision.line)
                    found[axis, dim] = because
                    found.setdefault((axis, None), because)
                    if dim == "experts":
                        found[axis, "slots"] = because
    return found


_SUMMANDS = {
    "looked_up": "embedding",
    "embedding.dropped": "embedding",
    "attention.dropped": "attention_residual",
    "mlp.dropped": "mlp_residual",
    "attention.wo.product": "attention_residual",
    "attention.core": "attention.out",
    "mlp.down.product": "mlp_residual",
    "combined": "mlp_residual",
    "experts.picked": "experts.in",
    "experts.down.product": "experts.out",
    "gates": "router",
}
"""Values that are not rows themselves: the row that they become."""


def _row_of(name: str) -> str:
    """The activation that a value, a copy of it or a gradient of it belongs to."""
    base = base_name(name.partition("~")[0].removeprefix("grad:").removeprefix("sum:")).partition("#")[0]
    return _SUMMANDS.get(base, base)


def _any_span(program: Program) -> Span:
    if program.statements:
        return program.statements[0].span
    source = next(iter(program.documents), "the strategy")
    return Span(source=source, line=1, column=1)
