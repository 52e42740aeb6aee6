"""Bytes that one block takes on one rank: what it keeps, what lives for a moment, what it gathers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.physical import Plan
from trimtab.plan.placements import PlacementKind, local_elements
from trimtab.plan.program import Block, Operator, OperatorKind, Parameter, Value
from trimtab.plan.tables import BYTES_OF

_ROW_NUMBER_BYTES = 8
"""Of a token or a target."""

_LOSS_BYTES = BYTES_OF["fp32"]
"""Of a logit while the loss and its gradient are computed: sums in bf16 would lose the loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockBytes:
    """Bytes of one block (of one layer) and one microbatch on one rank.

    Args:
        kept: On the device from the forward to the backward pass.
        kept_on_host: Offloaded meanwhile.
        forward_peak: The most that lives besides in the forward pass.
        backward_peak: The most that lives besides in the backward pass, recompute included.
        gathered: Stored parameters put together, with their copies in the type of use.
        copies: Of parameters that are not stored in pieces, in the type of use.
    """

    kept: int
    kept_on_host: int
    forward_peak: int
    backward_peak: int
    gathered: int
    copies: int


def value_bytes(value: Value, sizes: Mapping[str, int]) -> int:
    """Bytes of the largest piece of a value."""
    elements = local_elements(value.dims, value.shape, value.placements, sizes)
    return elements * BYTES_OF.get(value.dtype, _ROW_NUMBER_BYTES)


def block_bytes(plan: Plan, block: Block, parameters: Sequence[Parameter]) -> BlockBytes:
    """What a block takes; ``parameters`` are those of one layer of it."""
    sizes = {name: value_bytes(value, plan.axis_sizes) for name, value in block.values.items()}
    gathered = [name for operator in block.gathers for name in operator.outputs]
    gathered = [name for name in gathered if not any(name in operator.inputs for operator in block.gathers)]
    in_pieces, whole = _copies(plan, block, parameters)
    return BlockBytes(
        kept=sum(sizes[name] for name in block.kept if name not in block.offloaded),
        kept_on_host=sum(sizes[name] for name in block.offloaded),
        forward_peak=_peak(block.forward, sizes, block, starts=("in", "tokens"), stays=block.kept),
        backward_peak=_peak(
            (*block.recompute, *block.backward),
            sizes,
            block,
            starts=("grad:out", *block.offloaded),
            stays=set(block.kept) - set(block.offloaded),
        ),
        gathered=sum(sizes[name] for name in gathered) + in_pieces,
        copies=whole,
    )


def _copies(plan: Plan, block: Block, parameters: Sequence[Parameter]) -> tuple[int, int]:
    """Bytes of matrices in the type of use, where they are kept in another: gathered ones, and the others."""
    dtype = compute_type(block)
    in_pieces = whole = 0
    for parameter in parameters:
        if len(parameter.shape) < 2 or parameter.dtypes["params"] == dtype or dtype == "fp32":
            continue
        elements = local_elements(parameter.dims, parameter.shape, parameter.computed, plan.axis_sizes)
        if parameter.stored["params"].axes_of(PlacementKind.STORED):
            in_pieces += elements * BYTES_OF[dtype]
        else:
            whole += elements * BYTES_OF[dtype]
    return in_pieces, whole


def compute_type(block: Block) -> str:
    """The type that a block's matrix products run in; the embedding looks up and multiplies nothing."""
    for operator in block.forward:
        if operator.kind in (OperatorKind.LINEAR, OperatorKind.EXPERT_LINEAR):
            return block.values[operator.outputs[0]].dtype
        if operator.kind is OperatorKind.HEAD_SUMS:
            return block.values[operator.inputs[0]].dtype
    return "fp32"


def _peak(
    operators: Sequence[Operator],
    sizes: Mapping[str, int],
    block: Block,
    *,
    starts: Iterable[str],
    stays: Collection[str],
) -> int:
    """The most bytes of values that live at once, each from the operator that makes it to the last that reads it.

    Args:
        operators: In order.
        sizes: Bytes by name.
        block: Its result lives on.
        starts: Values that are there before the first operator.
        stays: Values that are counted elsewhere.
    """
    made_at = {name: index for index, operator in enumerate(operators) for name in operator.outputs}
    last: dict[str, int] = dict(made_at)
    for index, operator in enumerate(operators):
        for name in operator.inputs:
            # A gradient that needs no sum over ranks is added to the others as soon as it is there.
            is_added = operator.kind is OperatorKind.ACCUMULATE
            last[name] = max(last.get(name, 0), made_at.get(name, 0) if is_added else index)
    for name in (block.result, block.gradient):
        last[name] = len(operators)
    dying: dict[int, list[str]] = {}
    for name, index in last.items():
        dying.setdefault(index, []).append(name)

    def counted(name: str) -> int:
        return 0 if name in stays or name.startswith("acc:") else sizes.get(name, 0)

    living = {name for name in starts if name in last}
    now = sum(counted(name) for name in living)
    peak = now
    for index, operator in enumerate(operators):
        living.update(operator.outputs)
        now += sum(counted(name) for name in operator.outputs)
        peak = max(peak, now + _scratch(operator, sizes, block))
        for name in dying.get(index, ()):
            if name in living:
                living.discard(name)
                now -= counted(name)
    return peak


def _scratch(operator: Operator, sizes: Mapping[str, int], block: Block) -> int:
    """What an operator needs for itself: a loss works on a copy of the logits in fp32, or makes some at a time."""
    if operator.kind in (OperatorKind.HEAD_SUMS, OperatorKind.HEAD_SUMS_GRAD):
        x, matrix = operator.inputs[0], f"grad:param:{operator.parameters[0]}"
        width = block.values[x].shape[-1]
        tokens = sizes[x] // BYTES_OF[block.values[x].dtype] // width
        rows = sizes[matrix] // BYTES_OF["fp32"] // width
        return min(operator.at_once, tokens) * rows * _LOSS_BYTES
    if operator.kind not in (OperatorKind.LOSS, OperatorKind.LOSS_GRAD):
        return 0
    logits = operator.inputs[0]
    return sizes[logits] // BYTES_OF[block.values[logits].dtype] * _LOSS_BYTES
