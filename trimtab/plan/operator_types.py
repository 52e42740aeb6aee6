"""What each operator does to placements on one axis: the types that a plan is checked against.

Written without regard to how plans are derived: a rule takes the placements of inputs and parameters on one axis and
gives those of the outputs, or None if the operator cannot take what it is given.
"""

from collections.abc import Callable, Mapping, Sequence

from trimtab.plan.forward import DATA_DIMS
from trimtab.plan.placements import (
    PARTIAL,
    REPLICATED,
    STORED,
    VARYING,
    Placement,
    split,
)
from trimtab.plan.program import Operator, OperatorKind


class Operands:
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

    def given(self, inputs: Sequence[Placement]) -> "Operands":
        """The same operator with other inputs: the forward operator behind a gradient."""
        return Operands(self.operator, self.axis, inputs, self.parameters, self._dims, self.outputs)

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


Rule = Callable[[Operands], list[Placement] | None]
"""Placements of the outputs on one axis; None if the inputs do not fit."""


def _same(operands: Operands) -> list[Placement] | None:
    """Element by element, not linear: inputs alike, none of them a summand."""
    first = operands.inputs[0]
    if first == PARTIAL or any(placement != first for placement in operands.inputs):
        return None
    return [first] * len(operands.operator.outputs)


def _add(operands: Operands) -> list[Placement] | None:
    first = operands.inputs[0]
    return None if any(placement != first for placement in operands.inputs) else [first]


def _embed(operands: Operands) -> list[Placement] | None:
    (tokens,), (matrix,) = operands.inputs, operands.parameters
    if matrix == REPLICATED:
        return [tokens] if tokens == REPLICATED or _is_data(tokens) else None
    if tokens != REPLICATED:
        return None
    return [PARTIAL if matrix.dim == "vocab" else matrix]


def _embed_grad(operands: Operands) -> list[Placement] | None:
    (gradient, tokens), (matrix,) = operands.inputs, operands.parameters
    looked_up = _embed(operands.given([tokens]))
    if looked_up is None or gradient != _dual(looked_up[0]):
        return None
    return [_parameter_gradient(matrix, tokens)]


def _norm(operands: Operands) -> list[Placement] | None:
    (x,) = operands.inputs
    if any(parameter != REPLICATED for parameter in operands.parameters):
        return None
    is_whole = x == REPLICATED or x.dim in ("batch", "sequence") or _is_heads(x)
    return [x] if is_whole else None


def _is_heads(placement: Placement) -> bool:
    return placement.dim in ("heads", "kv_heads")


def _norm_grad(operands: Operands) -> list[Placement] | None:
    gradient, x = operands.inputs
    if _norm(operands.given([x])) is None or gradient != x:
        return None
    return [x, *(PARTIAL if _is_data(x) or _is_heads(x) else REPLICATED for _ in operands.parameters)]


def _linear(operands: Operands) -> list[Placement] | None:
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


def _linear_grad(operands: Operands) -> list[Placement] | None:
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


def _add_bias(operands: Operands) -> list[Placement] | None:
    (x,), (bias,) = operands.inputs, operands.parameters
    return [x] if x != PARTIAL and bias == REPLICATED else None


def _add_parameter_grad(operands: Operands) -> list[Placement] | None:
    (gradient,), (parameter,) = operands.inputs, operands.parameters
    if gradient == PARTIAL or parameter != REPLICATED:
        return None
    # A rank that has a piece of the stream sees other tokens than the others, or another part of the parameter.
    return [REPLICATED if gradient == REPLICATED else PARTIAL]


def _attention(operands: Operands) -> list[Placement] | None:
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


def _attention_grad(operands: Operands) -> list[Placement] | None:
    gradient, q, k, v = operands.inputs
    out = _attention(operands.given([q, k, v]))
    if out is None or gradient != out[0]:
        return None
    of_keys = PARTIAL if q == split("sequence") and k == REPLICATED else k
    return [q, of_keys, of_keys]


def _activate_grad(operands: Operands) -> list[Placement] | None:
    first = operands.inputs[0]
    if first == PARTIAL or any(placement != first for placement in operands.inputs):
        return None
    return [first] * len(operands.operator.outputs)


def _dispatch(operands: Operands) -> list[Placement] | None:
    tokens, gates = operands.inputs
    if tokens != gates or tokens == PARTIAL:
        return None
    if _is_data(tokens):
        return [split("slots")]
    # Ranks with the same tokens may each pick those of their own experts.
    picks = operands.outputs[0] == split("experts")
    return [split("experts") if picks else REPLICATED]


def _dispatch_grad(operands: Operands) -> list[Placement] | None:
    gradient, gates = operands.inputs
    if gradient == split("slots"):
        return [gates] if _is_data(gates) else None
    if gates != REPLICATED or gradient == PARTIAL:
        return None
    return [PARTIAL if gradient == split("experts") else REPLICATED]


def _combine(operands: Operands) -> list[Placement] | None:
    experts, gates = operands.inputs
    if experts == split("slots"):
        return [gates] if _is_data(gates) else None
    if gates != REPLICATED:
        return None
    return [PARTIAL] if experts == PARTIAL or experts.dim == "experts" else [REPLICATED]


def _combine_grad(operands: Operands) -> list[Placement] | None:
    gradient, experts, gates = operands.inputs
    out = _combine(operands.given([experts, gates]))
    if out is None or gradient != _dual(out[0]):
        return None
    of_gates = PARTIAL if experts == PARTIAL or experts.dim == "experts" else gates
    return [_dual(experts), of_gates]


def _vocabulary(operands: Operands) -> list[Placement] | None:
    logits, *others = operands.inputs
    if logits == split("vocab"):
        return [PARTIAL] if all(other == REPLICATED for other in others) else None
    return [logits] if all(other == logits for other in others) and logits != PARTIAL else None


def _loss(operands: Operands) -> list[Placement] | None:
    logits, targets, *sums = operands.inputs
    if logits == split("vocab"):
        is_whole = targets == REPLICATED and sums == [REPLICATED, REPLICATED]
        return [REPLICATED] if is_whole else None
    if any(other != logits for other in (targets, *sums)):
        return None
    if logits == REPLICATED:
        return [REPLICATED]
    return [PARTIAL] if _is_data(logits) else None


def _loss_grad(operands: Operands) -> list[Placement] | None:
    return [operands.inputs[0]] if _loss(operands) is not None else None


def _head_sums(operands: Operands) -> list[Placement] | None:
    (x, targets), matrix = operands.inputs, operands.parameters[0]
    logits = _linear(operands.given([x]))
    if logits is None or logits == [PARTIAL]:
        return None
    if logits == [split("vocab")]:
        # Each rank's sums are less its own maximum: no summands yet.
        return [PARTIAL, VARYING] if targets == REPLICATED else None
    return [*logits, *logits] if logits == [targets] and matrix == REPLICATED else None


def _rescale(operands: Operands) -> list[Placement] | None:
    sums, own, highest = operands.inputs
    if sums == VARYING:
        return [PARTIAL] if own == PARTIAL and highest == REPLICATED else None
    return [sums] if sums == own == highest and sums != PARTIAL else None


def _loss_of_sums(operands: Operands) -> list[Placement] | None:
    first = operands.inputs[0]
    if any(other != first for other in operands.inputs):
        return None
    if first == REPLICATED:
        return [REPLICATED]
    return [PARTIAL] if _is_data(first) else None


def _head_sums_grad(operands: Operands) -> list[Placement] | None:
    x, targets, *sums = operands.inputs
    if _head_sums(operands.given([x, targets])) is None or any(found != targets for found in sums):
        return None
    matrix = operands.parameters[0]
    of_input = PARTIAL if matrix.dim == operands.out_dim() else x
    return [of_input, _parameter_gradient(matrix, x)]


def _all_reduce(operands: Operands) -> list[Placement] | None:
    if not operands.takes_part:
        return list(operands.inputs)
    return [REPLICATED] * len(operands.inputs) if all(x == PARTIAL for x in operands.inputs) else None


def _all_gather(operands: Operands) -> list[Placement] | None:
    if not operands.takes_part:
        return list(operands.inputs)
    dim = operands.operator.dim_from
    cut = split(dim) if dim else STORED
    return [REPLICATED] * len(operands.inputs) if all(x == cut for x in operands.inputs) else None


def _target(operands: Operands) -> Placement:
    dim = operands.operator.dim_to
    assert dim is not None, "scatters and slices cut along a dim"
    return STORED if dim == "stored" else split(dim)


def _reduce_scatter(operands: Operands) -> list[Placement] | None:
    if not operands.takes_part:
        return list(operands.inputs)
    return [_target(operands)] * len(operands.inputs) if all(x == PARTIAL for x in operands.inputs) else None


def _all_to_all(operands: Operands) -> list[Placement] | None:
    (x,) = operands.inputs
    if not operands.takes_part:
        return [x]
    return [_target(operands)] if x.dim == operands.operator.dim_from else None


def _slice(operands: Operands) -> list[Placement] | None:
    if operands.axis not in operands.operator.cuts:
        return list(operands.inputs)
    return (
        [_target(operands)] * len(operands.inputs) if all(x == REPLICATED for x in operands.inputs) else None
    )


def _set_apart(operands: Operands) -> list[Placement] | None:
    (x,) = operands.inputs
    is_apart = x == PARTIAL and operands.outputs[0] == VARYING
    return [VARYING if is_apart else x]


def _norm_square(operands: Operands) -> list[Placement] | None:
    if any(x == PARTIAL for x in operands.inputs):
        return None
    return [VARYING if VARYING in operands.inputs else PARTIAL]


def _update(operands: Operands) -> list[Placement] | None:
    gradient, piece = operands.inputs
    return [piece] if gradient == piece and piece != PARTIAL else None


def _average(operands: Operands) -> list[Placement] | None:
    if operands.takes_part and any(x != VARYING for x in operands.inputs):
        return None
    return list(operands.inputs)


RULES: Mapping[OperatorKind, Rule] = {
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
    OperatorKind.DROP: _same,
    OperatorKind.ROUTE: _same,
    OperatorKind.DISPATCH: _dispatch,
    OperatorKind.COMBINE: _combine,
    OperatorKind.VOCAB_MAX: _vocabulary,
    OperatorKind.VOCAB_SUMS: _vocabulary,
    OperatorKind.LOSS: _loss,
    OperatorKind.HEAD_SUMS: _head_sums,
    OperatorKind.RESCALE: _rescale,
    OperatorKind.LOSS_OF_SUMS: _loss_of_sums,
    OperatorKind.EMBED_GRAD: _embed_grad,
    OperatorKind.ADD_POSITIONS_GRAD: _add_parameter_grad,
    OperatorKind.NORM_GRAD: _norm_grad,
    OperatorKind.LINEAR_GRAD: _linear_grad,
    OperatorKind.EXPERT_LINEAR_GRAD: _linear_grad,
    OperatorKind.ADD_BIAS_GRAD: _add_parameter_grad,
    OperatorKind.ATTENTION_GRAD: _attention_grad,
    OperatorKind.RING_ATTENTION_GRAD: _attention_grad,
    OperatorKind.ACTIVATE_GRAD: _activate_grad,
    OperatorKind.DROP_GRAD: _same,
    OperatorKind.ROUTE_GRAD: _same,
    OperatorKind.DISPATCH_GRAD: _dispatch_grad,
    OperatorKind.COMBINE_GRAD: _combine_grad,
    OperatorKind.LOSS_GRAD: _loss_grad,
    OperatorKind.HEAD_SUMS_GRAD: _head_sums_grad,
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
