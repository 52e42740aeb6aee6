"""The backward pass of a block: each forward operator's gradient, in reverse, with the types that follow.

The gradient of a value lies as the value does: of a split tensor split, of a replicated one replicated, of a
partial one (whose summands all have the same gradient) replicated. What an operator gives otherwise, such as the
summands of ranks that hold different columns, is moved there; that is where the all-reduce of tensor
parallelism comes from.
"""

from collections.abc import Callable, Mapping, Sequence

from trimtab.plan.block_builder import BlockBuilder
from trimtab.plan.forward import COMPUTED, BlockContext
from trimtab.plan.placements import PARTIAL, REPLICATED, PlacementKind, Placements
from trimtab.plan.program import Operator, OperatorKind

_MOVES = frozenset(
    {
        OperatorKind.ALL_REDUCE,
        OperatorKind.ALL_GATHER,
        OperatorKind.REDUCE_SCATTER,
        OperatorKind.ALL_TO_ALL,
        OperatorKind.SLICE,
    }
)


def dual(placements: Placements) -> Placements:
    """How the gradient of a value lies.

    >>> from trimtab.plan.placements import split
    >>> str(dual(Placements((("tp", PARTIAL), ("dp", split("batch"))))))
    'split batch over dp'
    """
    return Placements(tuple(item for item in placements if item[1].kind is not PlacementKind.PARTIAL))


class Backward:
    """Writes the gradients of forward operators into a builder.

    Args:
        builder: Holds the forward values; gets the gradients' values.
        context: Of the block.
        forward: The operators to go back through.
    """

    def __init__(self, builder: BlockBuilder, context: BlockContext, forward: Sequence[Operator]) -> None:
        self._builder = builder
        self._context = context
        self._forward = forward
        self._parts: dict[str, list[str]] = {}

    def write(self, result: str | None) -> tuple[Operator, ...]:
        """All gradients.

        Args:
            result: The value whose gradient comes from the block behind, as ``grad:out``; None for the head,
                which begins with the loss.
        """
        builder = self._builder
        builder.operators = []
        if result is not None:
            builder.like("grad:out", result, dual(builder.values[result].placements))
            self._parts[result] = ["grad:out"]
        for operator in reversed(self._forward):
            self._gradient_of(operator)
        if "in" in builder.values:
            name = self._gathered("in", dual(builder.values["in"].placements))
            assert name is not None, "every block hands its input on"
            builder.result = name
        return tuple(builder.operators)

    def _gradient_of(self, operator: Operator) -> None:
        if operator.kind in _MOVES:
            self._move_back(operator)
            return
        rule = _RULES.get(operator.kind)
        if rule is None:  # The maximum and the sums of the vocabulary: the loss takes their gradient along.
            return
        gradient = None
        if operator.kind not in _FIRST:
            out = operator.outputs[0]
            gradient = self._gathered(out, dual(self._builder.values[out].placements))
            if gradient is None:
                return
        rule(self, operator, gradient or "")

    def _move_back(self, operator: Operator) -> None:
        """The gradient of a moved value, moved back."""
        (source,), (copy,) = operator.inputs, operator.outputs
        name = self._gathered(copy, dual(self._builder.values[source].placements))
        if name is not None:
            self._parts.setdefault(source, []).append(name)

    def _gathered(self, value: str, target: Placements) -> str | None:
        """The whole gradient of a value in a layout: its parts of one type added, then moved."""
        builder, parts = self._builder, self._parts.pop(value, [])
        by_type: dict[Placements, list[str]] = {}
        for part in parts:
            found = builder.values[part].placements
            key = next((known for known in by_type if known.is_same(found)), found)
            by_type.setdefault(key, []).append(part)
        moved = []
        for placements, names in by_type.items():
            moved.append(builder.laid_out(self._sum(value, names, placements), target, self._context.why))
        return self._sum(value, moved, target) if moved else None

    def _sum(self, value: str, names: Sequence[str], placements: Placements) -> str:
        if len(names) == 1:
            return names[0]
        total = self._new(value, value, placements, "sum:")
        self._builder.add(OperatorKind.SUM, names, [total], COMPUTED)
        return total

    def _new(self, value: str, like: str, placements: Placements, prefix: str = "grad:") -> str:
        """A new gradient value of ``value`` with a name of its own."""
        name, count = f"{prefix}{value}", 1
        while name in self._builder.values:
            count += 1
            name = f"{prefix}{value}#{count}"
        return self._builder.like(name, like, placements)

    def _part(self, value: str, placements: Placements) -> str:
        name = self._new(value, value, placements)
        self._parts.setdefault(value, []).append(name)
        return name

    def _placements(self, value: str) -> Placements:
        return self._builder.values[value].placements

    def _parameter_gradient(self, parameter: str, seen: str) -> str:
        """Gradient of a parameter: a summand on every axis on which ranks hold it alike and a value that it met in pieces.

        The pieces are other samples or tokens, other heads under one norm, or the part of a stream that a whole
        bias was added to.
        """
        dims, shape, placements = self._context.parameters[parameter]
        for axis, placement in self._placements(seen):
            if placement.kind is PlacementKind.SPLIT and placements.on(axis) == REPLICATED:
                placements = placements.put(axis, PARTIAL)
        return self._builder.value(f"grad:param:{parameter}", dims, shape, placements, "fp32")

    # One rule for each kind: gradient of the output in, gradients of inputs and parameters out.

    def _embed(self, operator: Operator, gradient: str) -> None:
        (parameter,) = operator.parameters
        tokens = operator.inputs[0]
        outputs = [self._parameter_gradient(parameter, tokens)]
        self._builder.add(
            OperatorKind.EMBED_GRAD, [gradient, tokens], outputs, COMPUTED, parameters=operator.parameters
        )

    def _positions(self, operator: Operator, gradient: str) -> None:
        (x,) = operator.inputs
        (parameter,) = operator.parameters
        outputs = [self._parameter_gradient(parameter, x)]
        self._builder.add(
            OperatorKind.ADD_POSITIONS_GRAD, [gradient], outputs, COMPUTED, parameters=operator.parameters
        )
        self._parts.setdefault(x, []).append(gradient)

    def _norm(self, operator: Operator, gradient: str) -> None:
        (x,) = operator.inputs
        outputs = [self._part(x, dual(self._placements(x)))]
        outputs += [self._parameter_gradient(parameter, x) for parameter in operator.parameters]
        self._builder.add(
            OperatorKind.NORM_GRAD, [gradient, x], outputs, COMPUTED, parameters=operator.parameters
        )

    def _linear(self, operator: Operator, gradient: str) -> None:
        (x,) = operator.inputs
        outputs = self._of_product(x, operator.parameters)
        kind = (
            OperatorKind.EXPERT_LINEAR_GRAD
            if operator.kind is OperatorKind.EXPERT_LINEAR
            else OperatorKind.LINEAR_GRAD
        )
        self._builder.add(kind, [gradient, x], outputs, COMPUTED, parameters=operator.parameters)

    def _of_product(self, x: str, parameters: Sequence[str]) -> list[str]:
        """Gradients of a product's input, matrix and bias."""
        weight_dims, _, matrix = self._context.parameters[parameters[0]]
        found = dual(self._placements(x))
        for axis, placement in matrix:
            if placement.dim == weight_dims[-2]:
                found = found.put(axis, PARTIAL)
        return [self._part(x, found), *(self._parameter_gradient(name, x) for name in parameters)]

    def _bias(self, operator: Operator, gradient: str) -> None:
        (x,) = operator.inputs
        (parameter,) = operator.parameters
        outputs = [self._parameter_gradient(parameter, x)]
        self._builder.add(
            OperatorKind.ADD_BIAS_GRAD, [gradient], outputs, COMPUTED, parameters=operator.parameters
        )
        self._parts.setdefault(x, []).append(gradient)

    def _attention(self, operator: Operator, gradient: str) -> None:
        q, k, v = operator.inputs
        queries = self._placements(q)
        outputs = [self._part(q, queries)]
        for name in (k, v):
            found = self._placements(name)
            for axis, placement in queries:
                # These ranks hold all keys and only some queries: each has a summand of the keys' gradient.
                if placement.dim == "sequence" and found.on(axis) == REPLICATED:
                    found = found.put(axis, PARTIAL)
            outputs.append(self._part(name, found))
        kind = (
            OperatorKind.RING_ATTENTION_GRAD
            if operator.kind is OperatorKind.RING_ATTENTION
            else OperatorKind.ATTENTION_GRAD
        )
        self._builder.add(kind, [gradient, q, k, v], outputs, operator.because, transfer=operator.transfer)

    def _activate(self, operator: Operator, gradient: str) -> None:
        outputs = [self._part(name, self._placements(name)) for name in operator.inputs]
        self._builder.add(OperatorKind.ACTIVATE_GRAD, [gradient, *operator.inputs], outputs, COMPUTED)

    def _drop(self, operator: Operator, gradient: str) -> None:
        (x,) = operator.inputs
        outputs = [self._part(x, self._placements(x))]
        self._builder.add(OperatorKind.DROP_GRAD, [gradient], outputs, COMPUTED, call=operator.call)

    def _add(self, operator: Operator, gradient: str) -> None:
        for name in operator.inputs:
            self._parts.setdefault(name, []).append(gradient)

    def _route(self, operator: Operator, gradient: str) -> None:
        (logits,) = operator.inputs
        outputs = [self._part(logits, self._placements(logits))]
        self._builder.add(OperatorKind.ROUTE_GRAD, [gradient, logits], outputs, COMPUTED)

    def _dispatch(self, operator: Operator, gradient: str) -> None:
        tokens, gates = operator.inputs
        found = self._placements(tokens)
        for axis, placement in self._placements(operator.outputs[0]):
            if placement.dim == "experts":
                found = found.put(axis, PARTIAL)
        outputs = [self._part(tokens, found)]
        self._builder.add(OperatorKind.DISPATCH_GRAD, [gradient, gates], outputs, COMPUTED)

    def _combine(self, operator: Operator, gradient: str) -> None:
        experts, gates = operator.inputs
        for_experts = dual(self._placements(experts))
        for_gates = self._placements(gates)
        for axis, placement in self._placements(experts):
            if placement == PARTIAL or placement.dim == "experts":
                for_gates = for_gates.put(axis, PARTIAL)
        outputs = [self._part(experts, for_experts), self._part(gates, for_gates)]
        self._builder.add(OperatorKind.COMBINE_GRAD, [gradient, experts, gates], outputs, COMPUTED)

    def _head_sums(self, operator: Operator, _: str) -> None:
        x = operator.inputs[0]
        (loss,) = (found for found in self._forward if found.kind is OperatorKind.LOSS_OF_SUMS)
        self._builder.add(
            OperatorKind.HEAD_SUMS_GRAD,
            [x, *loss.inputs],
            self._of_product(x, operator.parameters),
            COMPUTED,
            parameters=operator.parameters,
            at_once=operator.at_once,
        )

    def _loss(self, operator: Operator, _: str) -> None:
        logits = operator.inputs[0]
        outputs = [self._part(logits, self._placements(logits))]
        self._builder.add(OperatorKind.LOSS_GRAD, operator.inputs, outputs, COMPUTED)


_RULES: Mapping[OperatorKind, Callable[[Backward, Operator, str], None]] = {
    OperatorKind.EMBED: Backward._embed,
    OperatorKind.ADD_POSITIONS: Backward._positions,
    OperatorKind.NORM: Backward._norm,
    OperatorKind.LINEAR: Backward._linear,
    OperatorKind.EXPERT_LINEAR: Backward._linear,
    OperatorKind.ADD_BIAS: Backward._bias,
    OperatorKind.ATTENTION: Backward._attention,
    OperatorKind.RING_ATTENTION: Backward._attention,
    OperatorKind.ACTIVATE: Backward._activate,
    OperatorKind.ADD: Backward._add,
    OperatorKind.DROP: Backward._drop,
    OperatorKind.ROUTE: Backward._route,
    OperatorKind.DISPATCH: Backward._dispatch,
    OperatorKind.COMBINE: Backward._combine,
    OperatorKind.LOSS: Backward._loss,
    OperatorKind.HEAD_SUMS: Backward._head_sums,
}

_FIRST = (OperatorKind.LOSS, OperatorKind.HEAD_SUMS)
"""Operators that no gradient comes to: the backward pass begins with theirs."""
