"""What an operator of a lowered plan needs besides the plan's values: while it runs, and until its gradient is made.

A lowered plan runs operator by operator on torch. Values have a name in the plan; what autograd keeps of one operator
without one (``saved``), and what an operator makes and drops (``scratch``), follow from how it is computed. The formulas
are those of ``trimtab.runtime.lowering`` on torch 2.13; tests measure them on real ranks.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from trimtab.catalog import Activation, Network, Norm, Positions
from trimtab.cost.block_bytes import value_bytes
from trimtab.plan.lifetimes import gradient_rows, loss_tokens, norm_piece
from trimtab.plan.placements import Placements
from trimtab.plan.program import COLLECTIVES, Operator, OperatorKind, Transfer, Value
from trimtab.plan.tables import BYTES_OF

_FP32 = BYTES_OF["fp32"]
_INDEX = 8
"""Bytes of an index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorBytes:
    """Besides inputs and outputs.

    Args:
        saved: From the forward operator to its gradient.
        scratch: While it runs, what is saved not among it.
    """

    saved: int = 0
    scratch: int = 0


class OperatorCounter:
    """Counts for operators of one plan.

    Args:
        network: That is trained.
        sizes: Of the axes.
        values: Of a block, or of the update.
        weights: Bytes of parameters as they lie in use, by name in the block, with the type that they are kept in.
        in_place: Summands that the sum over ranks takes the place of.
        keeps_conversions: Whether autograd keeps parameters in the type of use, as of a module; else they are made again.
    """

    def __init__(
        self,
        network: Network,
        sizes: Mapping[str, int],
        values: Mapping[str, Value],
        weights: Mapping[str, tuple[int, str]],
        in_place: Collection[str] = (),
        *,
        keeps_conversions: bool = False,
    ) -> None:
        self._network, self._sizes, self._values, self._weights = network, sizes, values, weights
        self._in_place, self._keeps_conversions = frozenset(in_place), keeps_conversions

    def size(self, name: str) -> int:
        """Bytes of a value on one rank."""
        return value_bytes(self._values[name], self._sizes)

    def made(self, operator: Operator, name: str) -> int:
        """Bytes that an operator makes for one of its outputs; a sum over one rank is its input, as one in place is."""
        if operator.kind is not OperatorKind.ALL_REDUCE:
            return self.size(name)
        return 0 if self._is_in_place(operator) or self._num_members(operator) == 1 else self.size(name)

    def elements(self, name: str) -> int:
        """Elements of it."""
        return self.size(name) // BYTES_OF.get(self._values[name].dtype, _INDEX)

    def of(self, operator: Operator) -> OperatorBytes:
        """What an operator needs."""
        kind = operator.kind
        if kind in COLLECTIVES:
            return self._collective(operator)
        match kind:
            case OperatorKind.NORM:
                return OperatorBytes(saved=self._norm_saves(operator))
            case OperatorKind.NORM_GRAD:
                return OperatorBytes(scratch=self._norm_grad_needs(operator))
            case OperatorKind.LINEAR | OperatorKind.EXPERT_LINEAR:
                converted = self._converted(operator)
                return (
                    OperatorBytes(saved=converted)
                    if self._keeps_conversions
                    else OperatorBytes(scratch=converted)
                )
            case OperatorKind.LINEAR_GRAD:
                return OperatorBytes(scratch=self._converted_again(operator))
            case OperatorKind.EXPERT_LINEAR_GRAD:
                # The gradient of a transposed matrix is turned once.
                turned = self.size(operator.outputs[1])
                return OperatorBytes(scratch=turned + self._converted_again(operator))
            case OperatorKind.ATTENTION:
                return self._attention(operator)
            case OperatorKind.ATTENTION_GRAD:
                turned = self.size(operator.inputs[1]) if self._is_turned else 0
                return OperatorBytes(scratch=turned)
            case OperatorKind.ACTIVATE:
                is_gated = self._network.activation is Activation.SWIGLU
                return OperatorBytes(saved=self.size(operator.outputs[0]) if is_gated else 0)
            case OperatorKind.DROP | OperatorKind.DROP_GRAD:
                return OperatorBytes(scratch=self._mask(operator.outputs[0]))
            case OperatorKind.ROUTE:
                size = self.size(operator.inputs[0])
                return OperatorBytes(saved=2 * size, scratch=6 * self._network.top_k * size)
            case OperatorKind.DISPATCH:
                return OperatorBytes(
                    saved=self._slots(operator.outputs[0]), scratch=2 * self.size(operator.outputs[0])
                )
            case OperatorKind.DISPATCH_GRAD:
                return OperatorBytes(scratch=self.size(operator.inputs[0]) + self.size(operator.outputs[0]))
            case OperatorKind.COMBINE:
                picked, out = operator.inputs[0], operator.outputs[0]
                return OperatorBytes(
                    saved=2 * self.size(picked) + self._slots(picked), scratch=2 * self.size(out)
                )
            case OperatorKind.COMBINE_GRAD:
                return OperatorBytes(scratch=2 * self.size(operator.inputs[0]))
            case (
                OperatorKind.VOCAB_MAX | OperatorKind.VOCAB_SUMS | OperatorKind.LOSS | OperatorKind.LOSS_GRAD
            ):
                return OperatorBytes(scratch=self._loss_needs(operator))
            case OperatorKind.HEAD_SUMS | OperatorKind.HEAD_SUMS_GRAD:
                return OperatorBytes(scratch=self._chunk_needs(operator))
            case OperatorKind.NORM_SQUARE:
                largest = max((self.elements(name) for name in operator.inputs), default=0)
                return OperatorBytes(scratch=2 * _FP32 * min(largest, norm_piece(largest)))
            case OperatorKind.UPDATE:
                return OperatorBytes(scratch=self.elements(operator.inputs[0]) * _FP32)
            case _:
                return OperatorBytes()

    # Computation.

    def _norm_saves(self, operator: Operator) -> int:
        """Means and deviations of rows; RMS norms also what the weights are multiplied with."""
        (x,) = operator.inputs
        vectors = self.elements(x) * _FP32
        rows = vectors // self._weight_elements(operator)
        as_fp32 = 0 if self._values[x].dtype == "fp32" else vectors
        if self._network.norm is Norm.LAYERNORM:
            return 2 * rows + as_fp32
        return rows + (vectors + as_fp32 if as_fp32 else 0)

    def _norm_grad_needs(self, operator: Operator) -> int:
        if self._network.norm is Norm.LAYERNORM:
            return 0
        vectors = self.elements(operator.inputs[1]) * _FP32
        return (2 if self._values[operator.inputs[1]].dtype == "fp32" else 3) * vectors

    def _weight_elements(self, operator: Operator) -> int:
        size, dtype = self._weights[operator.parameters[0]]
        return size // BYTES_OF[dtype]

    def _converted(self, operator: Operator) -> int:
        """Matrices in the type of use, where they are kept in another."""
        return self._in_type(operator, self._values[operator.outputs[0]].dtype)

    def _converted_again(self, operator: Operator) -> int:
        """The same for the gradient, in the type of what comes in."""
        return (
            0 if self._keeps_conversions else self._in_type(operator, self._values[operator.inputs[0]].dtype)
        )

    def _in_type(self, operator: Operator, dtype: str) -> int:
        kept = (self._weights[name] for name in operator.parameters)
        return sum(size // BYTES_OF[held] * BYTES_OF[dtype] for size, held in kept if held != dtype)

    @property
    def _is_turned(self) -> bool:
        return self._network.positions is Positions.ROTARY

    def _attention(self, operator: Operator) -> OperatorBytes:
        """Queries and keys as they are turned, a logarithm for each query; a key head serves many without copies."""
        q, k, _ = operator.inputs
        saved = self.elements(q) // self._network.head_size * _FP32
        return OperatorBytes(saved=saved + (self.size(q) + self.size(k) if self._is_turned else 0))

    def _mask(self, name: str) -> int:
        """The mask of whole rows, as it is drawn, and a copy of the own part of it where rows are cut."""
        value, own = self._values[name], self.size(name)
        rows = Placements(tuple(item for item in value.placements if item[1].dim == "batch"))
        whole = value_bytes(replace(value, placements=rows), self._sizes)
        return whole if whole == own else whole + own

    def _slots(self, name: str) -> int:
        """Places of tokens, experts and slots."""
        return 3 * self.elements(name) // self._network.embed * _INDEX

    def _loss_needs(self, operator: Operator) -> int:
        """A copy of the logits in fp32; where ranks have a part of the vocabulary each, of some tokens' only.

        From logits in another type a copy is made first.
        """
        logits, kind = operator.inputs[0], operator.kind
        is_cut = kind in (OperatorKind.VOCAB_MAX, OperatorKind.VOCAB_SUMS) or len(operator.inputs) > 2
        if not is_cut:
            return self.elements(logits) * _FP32 if kind is OperatorKind.LOSS else 0
        if kind is OperatorKind.LOSS:
            return 0
        tokens = self.elements(
            operator.inputs[1] if kind is not OperatorKind.VOCAB_MAX else operator.outputs[0]
        )
        vocab = self.elements(logits) // tokens
        num_copies = (kind is not OperatorKind.VOCAB_MAX) + (self._values[logits].dtype != "fp32")
        return num_copies * loss_tokens(tokens, vocab) * vocab * _FP32

    def _chunk_needs(self, operator: Operator) -> int:
        """The logits of a chunk in fp32, made from or turned into those of another type; of a gradient its products."""
        x = operator.inputs[0]
        dtype = self._values[x].dtype
        tokens = self.elements(operator.inputs[1])
        width = self.elements(x) // tokens
        rows = self._weight_elements(operator) // width
        at_once = min(operator.at_once, tokens)
        logits = at_once * rows
        other = 0 if dtype == "fp32" else logits * BYTES_OF[dtype]
        needs = logits * _FP32 + other
        if operator.kind is OperatorKind.HEAD_SUMS_GRAD:
            products = max(at_once, gradient_rows(rows)) * width * BYTES_OF[dtype]
            needs = max(needs, (other or logits * _FP32) + products)
        return needs + self._in_type(operator, dtype)

    # Communication.

    def _collective(self, operator: Operator) -> OperatorBytes:
        transfer = operator.transfer
        assert transfer is not None, "collectives are sent"
        if self._num_members(operator) == 1 and operator.kind is OperatorKind.ALL_REDUCE:
            return OperatorBytes()
        before = sum(self.elements(name) for name in operator.inputs) * _wire_bytes(transfer)
        after = sum(self.elements(name) for name in operator.outputs) * _wire_bytes(transfer)
        is_packed = len(operator.inputs) > 1 or self._is_converted(operator, transfer)
        is_packed = is_packed and not self._is_in_place(operator)
        is_native = transfer.route == "native"
        match operator.kind:
            case OperatorKind.ALL_REDUCE | OperatorKind.AVERAGE:
                # The backend sums in place of what was packed, and pieces of that are the outputs.
                scratch = 0 if is_native else before * (1 + is_packed)
                if operator.kind is OperatorKind.AVERAGE or self._is_converted(operator, transfer):
                    scratch += before
            case OperatorKind.REDUCE_SCATTER:
                # What goes to whom is put together, and gloo sums in a copy of its own, as our routes do.
                scratch = 2 * before
            case OperatorKind.ALL_GATHER:
                # What was packed has gone when the pieces of all ranks are put together.
                scratch = after
            case OperatorKind.ALL_TO_ALL:
                scratch = 2 * before
            case OperatorKind.RING_ATTENTION:
                return self._ring(operator)
            case OperatorKind.RING_ATTENTION_GRAD:
                return OperatorBytes(scratch=self._ring_grad_needs(operator))
            case _:
                scratch = 0
        return OperatorBytes(scratch=scratch)

    def _is_in_place(self, operator: Operator) -> bool:
        return self._in_place.issuperset(operator.inputs)

    def _num_members(self, operator: Operator) -> int:
        """Ranks of one group of a collective."""
        assert operator.transfer is not None, "collectives are sent"
        return math.prod(self._sizes[axis] for axis in operator.transfer.axes)

    def _is_converted(self, operator: Operator, transfer: Transfer) -> bool:
        return any(self._values[name].dtype != transfer.wire for name in operator.inputs)

    def _ring(self, operator: Operator) -> OperatorBytes:
        """Outputs in fp32 and their logarithms stay; what passes was measured, in sizes of queries and of scores."""
        queries, scores = self._ring_sizes(*operator.inputs[:2])
        saved = queries + queries // self._network.head_size
        return OperatorBytes(saved=saved, scratch=13 * queries // 2 + 2 * scores)

    def _ring_grad_needs(self, operator: Operator) -> int:
        queries, scores = self._ring_sizes(*operator.inputs[1:3])
        return 23 * queries // 2 + 3 * scores

    def _ring_sizes(self, q: str, k: str) -> tuple[int, int]:
        """Bytes in fp32 of a rank's queries, and of their scores with the keys of one rank."""
        keys = self._values[k]
        ranks = math.prod(
            self._sizes[axis] for axis, placement in keys.placements if placement.dim == "sequence"
        )
        queries = self.elements(q) * _FP32
        return queries, queries // self._network.head_size * -(-keys.shape[1] // ranks)


def _wire_bytes(transfer: Transfer) -> int:
    return BYTES_OF["bf16" if transfer.compress == "bf16" else transfer.wire]
