"""What a value of a plan is a copy, a summand or a piece of, by a name that it has under every plan of a network."""

from collections.abc import Mapping

from trimtab.plan.program import Block, Operator, OperatorKind

MOVES = frozenset(
    {
        OperatorKind.ALL_REDUCE,
        OperatorKind.ALL_GATHER,
        OperatorKind.REDUCE_SCATTER,
        OperatorKind.ALL_TO_ALL,
        OperatorKind.SLICE,
    }
)
"""Operators after which a tensor lies otherwise and is the same."""

_BY_KIND = {
    OperatorKind.ATTENTION: "attention",
    OperatorKind.RING_ATTENTION: "attention",
    OperatorKind.ACTIVATE: "mlp.hidden",
    OperatorKind.ROUTE: "gates",
    OperatorKind.DISPATCH: "experts.in",
    OperatorKind.COMBINE: "experts",
    OperatorKind.LOSS: "loss",
    OperatorKind.LOSS_OF_SUMS: "loss",
}
"""Operators that a block has one of, by what they make."""


_HEADS = ("embedding.weight", "head.weight")
"""Matrices that make logits; a tied one also makes the embedding."""


_PRODUCTS = (OperatorKind.LINEAR, OperatorKind.LINEAR_GRAD)
_WITHOUT_LOGITS = (OperatorKind.HEAD_SUMS, OperatorKind.HEAD_SUMS_GRAD)


def quantities_of(block: Block) -> Mapping[str, str]:
    """For each forward value the logical tensor that it is; values that only some plans have are not there.

    Moved copies are what they were made of. A product to which a bias will be added on its own is nothing that one
    device knows.
    """
    found: dict[str, str] = {}
    biased_later = {
        operator.parameters[0].removesuffix("bias")
        for operator in block.forward
        if operator.kind is OperatorKind.ADD_BIAS
    }
    for operator in block.forward:
        if operator.kind in MOVES:
            for source, target in zip(operator.inputs, operator.outputs, strict=True):
                if source in found:
                    found[target] = found[source]
            continue
        name = made_by(operator)
        is_half = operator.kind is OperatorKind.LINEAR and (
            operator.parameters[0].removesuffix("weight") in biased_later
        )
        if name is not None and not is_half:
            found[operator.outputs[0]] = name
    return found


def made_by(operator: Operator) -> str | None:
    """The logical tensor that an operator computes; None if it belongs to one way of cutting."""
    if operator.kind in (OperatorKind.ADD, OperatorKind.DROP):
        return operator.outputs[0]
    if operator.kind in _WITHOUT_LOGITS:
        return None
    if operator.kind in _PRODUCTS and operator.parameters[0] in _HEADS:
        return "logits"
    if operator.parameters:
        return operator.parameters[0].removesuffix(".weight").removesuffix(".bias")
    return _BY_KIND.get(operator.kind)
