"""Is a physical plan the same computation as one device? Every operator is checked on every axis.

The rules say what each operator does to placements, axis by axis, independently of how the plan was derived: a
sum that is missing, made twice or made over another axis gives an operand a type that its operator does not take.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trimtab.plan.block_builder import base_name
from trimtab.plan.forward import DATA_DIMS
from trimtab.plan.physical import SCALARS, Plan
from trimtab.plan.placements import (
    PARTIAL,
    REPLICATED,
    STORED,
    VARYING,
    Placement,
    PlacementKind,
    Placements,
    split,
)
from trimtab.plan.program import Block, Operator, OperatorKind, Value
from trimtab.spec import Problem, Program, StrategyError
from trimtab.terms import Span


class Verifier:
    """Checks the plans that a program goes through, each after the rule that made it.

    What is the same object as in the plan before was checked then, and is not checked again.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._good: dict[int, object] = {}

    def verify(self, plan: Plan) -> None:
        """Refuse a plan that does not compute what one device computes.

        Raises: StrategyError naming the tensor, the axis and the statement behind the operator.
        """
        problems = list(find_wrong(plan, self._good))
        if problems:
            found = [
                Problem(span=problem.line or _first_span(self._program), message=problem.message)
                for problem in problems[:MAX_PROBLEMS]
            ]
            raise StrategyError(found, self._program.documents)


MAX_PROBLEMS = 5
"""More would say the same of further tensors."""


class Wrong:
    """One operator that does not fit.

    Args:
        message: The tensor, the axis, what was found and what was required.
        line: The statement that it came from; None if a default did.
    """

    __slots__ = ("line", "message")

    def __init__(self, message: str, line: Span | None) -> None:
        self.message = message
        self.line = line


def find_wrong(plan: Plan, good: dict[int, object] | None = None) -> Iterator[Wrong]:
    """Everything in a plan that is not what one device computes; nothing for a good plan.

    Args:
        plan: To check.
        good: Operators and blocks by identity that were found good before; gains those that are now.
    """
    good = {} if good is None else good
    axes = [axis for axis, _ in plan.mesh.axes]
    for block in plan.blocks:
        if id(block) in good:
            continue
        good[id(block)] = block
        prefix = f"layers.{block.layers[0]}." if block.layers else ""
        parameters = {
            name.removeprefix(prefix): parameter.computed
            for name, parameter in plan.parameters.items()
            if name.startswith(prefix) and (bool(prefix) or parameter.layer is None)
        }
        dims = {
            name.removeprefix(prefix): parameter.dims
            for name, parameter in plan.parameters.items()
            if name.startswith(prefix) and (bool(prefix) or parameter.layer is None)
        }
        yield from _Checker(block.values, parameters, dims, axes, {}).check_block(block)
    yield from _between_blocks(plan)
    yield from _UpdateChecker(plan, axes, good).check()


class _Checker:
    """Operators of one block against the types of their values."""

    def __init__(
        self,
        values: Mapping[str, Value],
        parameters: Mapping[str, Placements],
        dims: Mapping[str, tuple[str, ...]],
        axes: Sequence[str],
        good: dict[int, object],
    ) -> None:
        self._good = good
        self._values = values
        self._parameters = parameters
        self._dims = dims
        self._axes = axes
        self._made: set[str] = set()

    def check_block(self, block: Block) -> Iterator[Wrong]:
        self._made = {name for name in block.values if name in _GIVEN or name.startswith("stored:")}
        for operator in (*block.gathers, *block.forward):
            yield from self.check(operator)
        forward = set(self._made)
        self._made = set(block.kept) | {name for name in self._made if name.startswith(("stored:", "param:"))}
        self._made |= {"grad:out"} | set(_GIVEN) & forward & set(block.kept)
        for operator in (*block.recompute, *block.backward):
            yield from self.check(operator)
        yield from self._every_gradient(block)

    def made(self) -> frozenset[str]:
        """Values that are there by now."""
        return frozenset(self._made)

    def give(self, names: Iterable[str]) -> None:
        """Values that are there before the first operator."""
        self._made |= set(names)

    def check(self, operator: Operator) -> Iterator[Wrong]:
        """What is wrong with one operator; its outputs count as made afterwards."""
        for name in operator.inputs:
            if name not in self._made:
                yield Wrong(
                    f"{operator.kind.value} reads {name!r}, which nothing has made", operator.because.line
                )
                return
        self._made.update(operator.outputs)
        if id(operator) in self._good:
            return
        self._good[id(operator)] = operator
        for axis in self._axes:
            yield from self._check_axis(operator, axis)

    def _check_axis(self, operator: Operator, axis: str) -> Iterator[Wrong]:
        inputs = [self._values[name].placements.on(axis) for name in operator.inputs]
        parameters = [self._cut(name, axis) for name in operator.parameters]
        found = [self._values[name].placements.on(axis) for name in operator.outputs]
        rule = _RULES[operator.kind]
        required = rule(_Operands(operator, axis, inputs, parameters, self._dims, found))
        if required is None:
            shown = ", ".join(
                f"{name!r} {placement}" for name, placement in zip(operator.inputs, inputs, strict=True)
            )
            shown += "".join(
                f", {name!r} {placement}"
                for name, placement in zip(operator.parameters, parameters, strict=True)
            )
            yield Wrong(
                f"{operator.kind.value} cannot take what it is given over {axis!r}: {shown}",
                operator.because.line,
            )
        elif required != found:
            for name, one, other in zip(operator.outputs, found, required, strict=True):
                if one != other:
                    yield Wrong(
                        f"{name!r} is {other} over {axis!r} after {operator.kind.value}; the plan takes it for {one}",
                        operator.because.line,
                    )

    def _cut(self, parameter: str, axis: str) -> Placement:
        found = self._parameters[parameter].on(axis)
        return found if found.kind is PlacementKind.SPLIT else REPLICATED

    def _every_gradient(self, block: Block) -> Iterator[Wrong]:
        """Each parameter that the block uses is added up exactly once."""
        used = {parameter for operator in block.forward for parameter in operator.parameters}
        added = [
            parameter
            for operator in block.backward
            if operator.kind is OperatorKind.ACCUMULATE
            for parameter in operator.parameters
        ]
        for parameter in sorted(used):
            if added.count(parameter) != 1:
                yield Wrong(f"the gradient of {parameter!r} is added up {added.count(parameter)} times", None)


_GIVEN = ("in", "tokens", "targets")
"""Values that a block is given."""


class _Operands:
    """What one operator meets on one axis."""

    def __init__(
        self,
        operator: Operator,
        axis: str,
        inputs: Sequence[Placement],
        parameters: Sequence[Placement],
        dims: Mapping[str, tuple[str, ...]],
        outputs: Sequence[Placement],
    ) -> None:
        self.operator = operator
        self.axis = axis
        self.inputs = inputs
        self.parameters = parameters
        self.outputs = outputs
        self._dims = dims

    def given(self, inputs: Sequence[Placement]) -> "_Operands":
        """The same operator with other inputs: the forward operator behind a gradient."""
        return _Operands(self.operator, self.axis, inputs, self.parameters, self._dims, self.outputs)

    @property
    def takes_part(self) -> bool:
        """Whether the operator communicates over this axis, or cuts on it."""
        transfer = self.operator.transfer
        return transfer is not None and self.axis in transfer.axes

    def out_dim(self) -> str:
        """The dim of the first parameter along its outputs."""
        return self._dims[self.operator.parameters[0]][-2]

    def in_dim(self) -> str:
        """The dim of the first parameter along its inputs."""
        return self._dims[self.operator.parameters[0]][-1]


def _is_data(placement: Placement) -> bool:
    return placement.dim in DATA_DIMS


def _dual(placement: Placement) -> Placement:
    return REPLICATED if placement == PARTIAL else placement


Rule = Callable[[_Operands], list[Placement] | None]
"""Placements of the outputs on one axis; None if the inputs do not fit."""


def _same(operands: _Operands) -> list[Placement] | None:
    """Element by element, not linear: inputs alike, none of them a summand."""
    first = operands.inputs[0]
    if first == PARTIAL or any(placement != first for placement in operands.inputs):
        return None
    return [first] * len(operands.operator.outputs)


def _add(operands: _Operands) -> list[Placement] | None:
    first = operands.inputs[0]
    return None if any(placement != first for placement in operands.inputs) else [first]


def _embed(operands: _Operands) -> list[Placement] | None:
    (tokens,), (matrix,) = operands.inputs, operands.parameters
    if matrix == REPLICATED:
        return [tokens] if tokens == REPLICATED or _is_data(tokens) else None
    if tokens != REPLICATED:
        return None
    return [PARTIAL if matrix.dim == "vocab" else matrix]


def _embed_grad(operands: _Operands) -> list[Placement] | None:
    (gradient, tokens), (matrix,) = operands.inputs, operands.parameters
    looked_up = _embed(operands.given([tokens]))
    if looked_up is None or gradient != _dual(looked_up[0]):
        return None
    return [_parameter_gradient(matrix, tokens)]


def _norm(operands: _Operands) -> list[Placement] | None:
    (x,) = operands.inputs
    if any(parameter != REPLICATED for parameter in operands.parameters):
        return None
    is_whole = x == REPLICATED or x.dim in ("batch", "sequence") or _is_heads(x)
    return [x] if is_whole else None


def _is_heads(placement: Placement) -> bool:
    return placement.dim in ("heads", "kv_heads")


def _norm_grad(operands: _Operands) -> list[Placement] | None:
    gradient, x = operands.inputs
    if _norm(operands.given([x])) is None or gradient != x:
        return None
    return [x, *(PARTIAL if _is_data(x) or _is_heads(x) else REPLICATED for _ in operands.parameters)]


def _linear(operands: _Operands) -> list[Placement] | None:
    (x,), matrix = operands.inputs, operands.parameters[0]
    for bias in operands.parameters[1:]:
        # A bias is added by every rank: it must be cut as the outputs are, and these must not be summands.
        if bias != (matrix if matrix.dim == operands.out_dim() else REPLICATED):
            return None
        if matrix.dim == operands.in_dim():
            return None
    if matrix == REPLICATED:
        return None if x == PARTIAL or x.dim in (operands.in_dim(), "experts") else [x]
    if matrix.dim == "experts":
        return [x] if x == matrix else None
    if matrix.dim == operands.out_dim():
        return [matrix] if x == REPLICATED else None
    return [PARTIAL] if x == matrix else None


def _linear_grad(operands: _Operands) -> list[Placement] | None:
    (gradient, x), matrix = operands.inputs, operands.parameters[0]
    y = _linear(operands.given([x]))
    if y is None or gradient != _dual(y[0]):
        return None
    of_input = PARTIAL if matrix != REPLICATED and matrix.dim == operands.out_dim() else x
    return [of_input, *(_parameter_gradient(parameter, x) for parameter in operands.parameters)]


def _parameter_gradient(parameter: Placement, x: Placement) -> Placement:
    if parameter != REPLICATED:
        return parameter
    return PARTIAL if _is_data(x) else REPLICATED


def _add_bias(operands: _Operands) -> list[Placement] | None:
    (x,), (bias,) = operands.inputs, operands.parameters
    return [x] if x != PARTIAL and bias == REPLICATED else None


def _add_parameter_grad(operands: _Operands) -> list[Placement] | None:
    (gradient,), (parameter,) = operands.inputs, operands.parameters
    if gradient == PARTIAL or parameter != REPLICATED:
        return None
    # A rank that has a piece of the stream sees other tokens than the others, or another part of the parameter.
    return [REPLICATED if gradient == REPLICATED else PARTIAL]


def _attention(operands: _Operands) -> list[Placement] | None:
    q, k, v = operands.inputs
    if k != v:
        return None
    fits = (
        (q == REPLICATED and k == REPLICATED)
        or (q == split("batch") and k == q)
        or (q == split("heads") and k == split("kv_heads"))
        or (q == split("sequence") and k == REPLICATED)
        or (operands.operator.kind in _RINGS and q == split("sequence") and k == q)
    )
    return [q] if fits else None


_RINGS = (OperatorKind.RING_ATTENTION, OperatorKind.RING_ATTENTION_GRAD)


def _attention_grad(operands: _Operands) -> list[Placement] | None:
    gradient, q, k, v = operands.inputs
    out = _attention(operands.given([q, k, v]))
    if out is None or gradient != out[0]:
        return None
    of_keys = PARTIAL if q == split("sequence") and k == REPLICATED else k
    return [q, of_keys, of_keys]


def _activate_grad(operands: _Operands) -> list[Placement] | None:
    first = operands.inputs[0]
    if first == PARTIAL or any(placement != first for placement in operands.inputs):
        return None
    return [first] * len(operands.operator.outputs)


def _dispatch(operands: _Operands) -> list[Placement] | None:
    tokens, gates = operands.inputs
    if tokens != gates or tokens == PARTIAL:
        return None
    if _is_data(tokens):
        return [split("slots")]
    # Ranks with the same tokens may each pick those of their own experts.
    picks = operands.outputs[0] == split("experts")
    return [split("experts") if picks else REPLICATED]


def _dispatch_grad(operands: _Operands) -> list[Placement] | None:
    gradient, gates = operands.inputs
    if gradient == split("slots"):
        return [gates] if _is_data(gates) else None
    if gates != REPLICATED or gradient == PARTIAL:
        return None
    return [PARTIAL if gradient == split("experts") else REPLICATED]


def _combine(operands: _Operands) -> list[Placement] | None:
    experts, gates = operands.inputs
    if experts == split("slots"):
        return [gates] if _is_data(gates) else None
    if gates != REPLICATED:
        return None
    return [PARTIAL] if experts == PARTIAL or experts.dim == "experts" else [REPLICATED]


def _combine_grad(operands: _Operands) -> list[Placement] | None:
    gradient, experts, gates = operands.inputs
    out = _combine(operands.given([experts, gates]))
    if out is None or gradient != _dual(out[0]):
        return None
    of_gates = PARTIAL if experts == PARTIAL or experts.dim == "experts" else gates
    return [_dual(experts), of_gates]


def _vocabulary(operands: _Operands) -> list[Placement] | None:
    logits, *others = operands.inputs
    if logits == split("vocab"):
        return [PARTIAL] if all(other == REPLICATED for other in others) else None
    return [logits] if all(other == logits for other in others) and logits != PARTIAL else None


def _loss(operands: _Operands) -> list[Placement] | None:
    logits, targets, *sums = operands.inputs
    if logits == split("vocab"):
        is_whole = targets == REPLICATED and sums == [REPLICATED, REPLICATED]
        return [REPLICATED] if is_whole else None
    if any(other != logits for other in (targets, *sums)):
        return None
    if logits == REPLICATED:
        return [REPLICATED]
    return [PARTIAL] if _is_data(logits) else None


def _loss_grad(operands: _Operands) -> list[Placement] | None:
    return [operands.inputs[0]] if _loss(operands) is not None else None


def _all_reduce(operands: _Operands) -> list[Placement] | None:
    if not operands.takes_part:
        return list(operands.inputs)
    return [REPLICATED] * len(operands.inputs) if all(x == PARTIAL for x in operands.inputs) else None


def _all_gather(operands: _Operands) -> list[Placement] | None:
    if not operands.takes_part:
        return list(operands.inputs)
    dim = operands.operator.dim_from
    cut = split(dim) if dim else STORED
    return [REPLICATED] * len(operands.inputs) if all(x == cut for x in operands.inputs) else None


def _target(operands: _Operands) -> Placement:
    dim = operands.operator.dim_to
    assert dim is not None, "scatters and slices cut along a dim"
    return STORED if dim == "stored" else split(dim)


def _reduce_scatter(operands: _Operands) -> list[Placement] | None:
    if not operands.takes_part:
        return list(operands.inputs)
    return [_target(operands)] * len(operands.inputs) if all(x == PARTIAL for x in operands.inputs) else None


def _all_to_all(operands: _Operands) -> list[Placement] | None:
    (x,) = operands.inputs
    if not operands.takes_part:
        return [x]
    return [_target(operands)] if x.dim == operands.operator.dim_from else None


def _slice(operands: _Operands) -> list[Placement] | None:
    if operands.axis not in operands.operator.cuts:
        return list(operands.inputs)
    return (
        [_target(operands)] * len(operands.inputs) if all(x == REPLICATED for x in operands.inputs) else None
    )


def _between_blocks(plan: Plan) -> Iterator[Wrong]:
    """The residual stream leaves every block as it enters the next, and its gradient the other way round."""
    embedding, *_, head = plan.blocks
    for layer in range(plan.network.layers + 1):
        block = plan.block_of(layer) if layer < plan.network.layers else head
        before = plan.block_of(layer - 1) if layer else embedding
        leaves, enters = before.values[before.result].placements, block.values["in"].placements
        if not leaves.is_same(enters):
            yield Wrong(
                f"the residual stream leaves {before.name} {leaves} and enters {block.name} {enters}", None
            )
        back = block.values[block.gradient].placements
        wanted = before.values["grad:out"].placements
        if not back.is_same(wanted):
            yield Wrong(f"the gradient leaves {block.name} {back} and enters {before.name} {wanted}", None)


class _UpdateChecker:
    """Once a step: every gradient whole, every parameter updated once and put back where it is kept."""

    def __init__(self, plan: Plan, axes: Sequence[str], good: dict[int, object]) -> None:
        self._plan = plan
        self._axes = axes
        parameters = {name: parameter.computed for name, parameter in plan.parameters.items()}
        dims = {name: parameter.dims for name, parameter in plan.parameters.items()}
        self._checker = _Checker(plan.update.values, parameters, dims, axes, good)

    def check(self) -> Iterator[Wrong]:
        """What is wrong after the last microbatch."""
        update = self._plan.update
        self._checker.give(
            name
            for name in update.values
            if (name.startswith(("acc:", "param:")) and "@" not in name) or name in ("num_tokens", "loss")
        )
        for operator in update.operators:
            yield from self._checker.check(operator)
        yield from self._accumulated()
        yield from self._updated()
        yield from self._counted()

    def _counted(self) -> Iterator[Wrong]:
        """What every rank must know of the whole step ends as a sum over all that have a part of it."""
        for name in SCALARS:
            if name not in self._plan.update.values:
                continue
            layouts = [
                self._plan.update.values[value].placements
                for value in self._checker.made()
                if value.startswith(name) and base_name(value) == name
            ]
            if not any(not layout.axes_of(PlacementKind.PARTIAL) for layout in layouts):
                yield Wrong(f"{name!r} is never summed: every rank would go on with its own part", None)

    def _accumulated(self) -> Iterator[Wrong]:
        """What blocks add up is what the update starts from."""
        axis = self._plan.pipeline.axis
        for name, total, value in accumulations(self._plan):
            left = value.placements
            if axis is not None and len(self._plan.parameters[name].stages) > 1:
                left = left.put(axis, PARTIAL)
            taken = self._plan.update.values[total].placements
            if not left.is_same(taken):
                yield Wrong(f"the gradient of {name!r} is left {left} and taken for {taken}", None)

    def _updated(self) -> Iterator[Wrong]:
        update = self._plan.update
        times = Counter(
            name
            for operator in update.operators
            if operator.kind is OperatorKind.UPDATE
            for name in operator.parameters
        )
        for name, parameter in self._plan.parameters.items():
            if times[name] != 1:
                yield Wrong(f"{name!r} is updated {times[name]} times in a step", None)
            elif not update.values[update.results[name]].placements.is_same(parameter.stored["params"]):
                yield Wrong(f"{name!r} is not put back where it is kept", None)


def accumulations(plan: Plan) -> Iterator[tuple[str, str, Value]]:
    """Where blocks add gradients up: parameter, value of the update, value of the block; two for a tied matrix."""
    uses: dict[str, list[tuple[Block, Value]]] = {}
    for block in plan.blocks:
        added = [name for name in block.values if name.startswith("acc:")]
        prefixes = [f"layers.{layer}." for layer in block.layers] or [""]
        for prefix in prefixes:
            for name in added:
                uses.setdefault(prefix + name.removeprefix("acc:"), []).append((block, block.values[name]))
    for parameter, found in uses.items():
        for block, value in found:
            suffix = f"#{block.name}" if len(found) > 1 else ""
            yield parameter, f"acc:{parameter}{suffix}", value


def _set_apart(operands: _Operands) -> list[Placement] | None:
    (x,) = operands.inputs
    is_apart = x == PARTIAL and operands.outputs[0] == VARYING
    return [VARYING if is_apart else x]


def _norm_square(operands: _Operands) -> list[Placement] | None:
    if any(x == PARTIAL for x in operands.inputs):
        return None
    return [VARYING if VARYING in operands.inputs else PARTIAL]


def _update(operands: _Operands) -> list[Placement] | None:
    gradient, piece = operands.inputs
    return [piece] if gradient == piece and piece != PARTIAL else None


def _average(operands: _Operands) -> list[Placement] | None:
    if operands.takes_part and any(x != VARYING for x in operands.inputs):
        return None
    return list(operands.inputs)


def _first_span(program: Program) -> Span:
    if program.statements:
        return program.statements[0].span
    return Span(source=next(iter(program.documents), "the strategy"), line=1, column=1)


_RULES: Mapping[OperatorKind, Rule] = {
    OperatorKind.EMBED: _embed,
    OperatorKind.ADD_POSITIONS: _add_bias,
    OperatorKind.NORM: _norm,
    OperatorKind.LINEAR: _linear,
    OperatorKind.EXPERT_LINEAR: _linear,
    OperatorKind.ADD_BIAS: _add_bias,
    OperatorKind.ATTENTION: _attention,
    OperatorKind.RING_ATTENTION: _attention,
    OperatorKind.ACTIVATE: _same,
    OperatorKind.ADD: _add,
    OperatorKind.ROUTE: _same,
    OperatorKind.DISPATCH: _dispatch,
    OperatorKind.COMBINE: _combine,
    OperatorKind.VOCAB_MAX: _vocabulary,
    OperatorKind.VOCAB_SUMS: _vocabulary,
    OperatorKind.LOSS: _loss,
    OperatorKind.EMBED_GRAD: _embed_grad,
    OperatorKind.ADD_POSITIONS_GRAD: _add_parameter_grad,
    OperatorKind.NORM_GRAD: _norm_grad,
    OperatorKind.LINEAR_GRAD: _linear_grad,
    OperatorKind.EXPERT_LINEAR_GRAD: _linear_grad,
    OperatorKind.ADD_BIAS_GRAD: _add_parameter_grad,
    OperatorKind.ATTENTION_GRAD: _attention_grad,
    OperatorKind.RING_ATTENTION_GRAD: _attention_grad,
    OperatorKind.ACTIVATE_GRAD: _activate_grad,
    OperatorKind.ROUTE_GRAD: _same,
    OperatorKind.DISPATCH_GRAD: _dispatch_grad,
    OperatorKind.COMBINE_GRAD: _combine_grad,
    OperatorKind.LOSS_GRAD: _loss_grad,
    OperatorKind.SUM: _add,
    OperatorKind.ACCUMULATE: _add,
    OperatorKind.ALL_REDUCE: _all_reduce,
    OperatorKind.ALL_GATHER: _all_gather,
    OperatorKind.REDUCE_SCATTER: _reduce_scatter,
    OperatorKind.ALL_TO_ALL: _all_to_all,
    OperatorKind.SLICE: _slice,
    OperatorKind.SET_APART: _set_apart,
    OperatorKind.NORM_SQUARE: _norm_square,
    OperatorKind.UPDATE: _update,
    OperatorKind.AVERAGE: _average,
}
