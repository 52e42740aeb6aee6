"""What one rank does in a step, as typed operators: the physical form of a plan.

A program is made of blocks: the embedding, one for each class of equal layers, the head. A block has operators
for the forward and for the backward pass of one microbatch; what happens once a step (sums of gradients, the
norm, the update) stands in the plan's update. Every value has a type: how it lies on each axis of the mesh.
Names inside a block are relative to it; `in` and `out` are the residual stream, `grad:x` the gradient of x.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.plan.placements import Placements, local_elements
from trimtab.plan.tables import BYTES_OF, Table
from trimtab.terms import Span


class OperatorKind(StrEnum):
    """What an operator computes or sends."""

    # Forward computation.
    EMBED = "embed"  # tokens, matrix -> vectors
    ADD_POSITIONS = "add_positions"
    NORM = "norm"
    LINEAR = "linear"  # x, matrix (, bias) -> y
    ADD_BIAS = "add_bias"
    ATTENTION = "attention"  # q, k, v -> o, causal
    RING_ATTENTION = "ring_attention"  # the same; keys and values travel around the axis
    ACTIVATE = "activate"  # up (, gate) -> hidden
    ADD = "add"
    DROP = "drop"  # x -> x with some elements zeroed and the others scaled; nothing in evaluation
    ROUTE = "route"  # router logits -> gates, balanced
    DISPATCH = "dispatch"  # x, gates -> the tokens of each expert
    EXPERT_LINEAR = "expert_linear"
    COMBINE = "combine"  # expert outputs, gates -> y
    VOCAB_MAX = "vocab_max"  # logits -> their maximum over the own part of the vocabulary
    VOCAB_SUMS = "vocab_sums"  # logits, maximum -> sum of exponentials and the target's logit
    LOSS = "loss"  # logits, targets (, maximum and sums over the vocabulary) -> sum of token losses
    HEAD_SUMS = (
        "head_sums"  # x, targets, matrix -> what the two above give, of logits of some tokens at a time
    )
    RESCALE = "rescale"  # sums less the own maximum, that, the maximum of all -> sums less the maximum of all
    LOSS_OF_SUMS = "loss_of_sums"  # targets, maximum and sums over the vocabulary -> sum of token losses
    # Backward computation: gradients of the outputs in, gradients of inputs and parameters out.
    EMBED_GRAD = "embed_grad"
    ADD_POSITIONS_GRAD = "add_positions_grad"
    NORM_GRAD = "norm_grad"
    LINEAR_GRAD = "linear_grad"
    ADD_BIAS_GRAD = "add_bias_grad"
    ATTENTION_GRAD = "attention_grad"
    RING_ATTENTION_GRAD = "ring_attention_grad"
    ACTIVATE_GRAD = "activate_grad"
    DROP_GRAD = "drop_grad"  # by the same mask, drawn again
    ROUTE_GRAD = "route_grad"
    DISPATCH_GRAD = "dispatch_grad"
    EXPERT_LINEAR_GRAD = "expert_linear_grad"
    COMBINE_GRAD = "combine_grad"
    LOSS_GRAD = "loss_grad"
    HEAD_SUMS_GRAD = (
        "head_sums_grad"  # x, targets, maximum, sums, matrix -> gradients of x and matrix, as above
    )
    SUM = "sum"  # values of one type, added element by element
    # Communication, and its local counterpart.
    ALL_REDUCE = "all_reduce"  # partial -> replicated
    ALL_GATHER = "all_gather"  # split or stored -> replicated
    REDUCE_SCATTER = "reduce_scatter"  # partial -> split or stored
    ALL_TO_ALL = "all_to_all"  # split along one dim -> split along another
    SLICE = "slice"  # replicated -> split or stored: the own piece, nothing is sent
    SEND = "send"  # the residual stream, or its gradient, to the neighbouring stage
    # Once a step.
    ACCUMULATE = "accumulate"  # the gradient of a microbatch is added to those before it
    SET_APART = "set_apart"  # summand -> a gradient of its own, where parameters are averaged instead
    NORM_SQUARE = "norm_square"  # own gradient elements, each logical one once -> their sum of squares
    UPDATE = "update"  # the optimizer on the stored piece
    AVERAGE = "average"  # parameters over an axis, every few steps


COLLECTIVES = frozenset(
    {
        OperatorKind.ALL_REDUCE,
        OperatorKind.ALL_GATHER,
        OperatorKind.REDUCE_SCATTER,
        OperatorKind.ALL_TO_ALL,
        OperatorKind.RING_ATTENTION,
        OperatorKind.RING_ATTENTION_GRAD,
        OperatorKind.AVERAGE,
        OperatorKind.SEND,
    }
)
"""Operators that send."""


class Phase(StrEnum):
    """The part of a step that an operator belongs to."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, kw_only=True, slots=True)
class Because:
    """Why an operator is there.

    Args:
        reason: In a few words.
        line: The statement that asked for it; None if a default did.
    """

    reason: str
    line: Span | None = None

    def __str__(self) -> str:
        """``tensor parallelism (run.yaml:9)``."""
        where = f"{self.line.source}:{self.line.line}" if self.line else "default"
        return f"{self.reason} ({where})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One tensor between two operators, in the logical shape of one microbatch.

    Args:
        name: Unique in its block.
        dims: Named dims, outermost first.
        shape: Logical elements along each.
        dtype: fp32, bf16, fp16.
        placements: On every axis.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    placements: Placements


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """How a collective travels.

    Args:
        axes: Whose process groups take part, in mesh order.
        route: ``native``, ``ring``, ``tree``, ``recursive_doubling``, ``reduce_scatter``, ``hierarchical``.
        levels: Of a hierarchical route, smallest first.
        wire: Type on the wire.
        compress: ``none``, ``bf16``, ``int8``, ``topk``, ``powersgd``.
        compress_argument: The fraction or the rank; None where it takes none.
        operation: ``sum`` or ``max`` of a reduction.
        is_sealed: Whether the payload is encrypted.
        stages: Only ranks of these stages take part, on the pipeline's axis; empty for all.
        bucket_bytes: Tensors are sent together up to this size; None for no limit.
    """

    axes: tuple[str, ...]
    route: str = "native"
    levels: tuple[str, ...] = ()
    wire: str = "fp32"
    compress: str = "none"
    compress_argument: float | None = None
    operation: str = "sum"
    is_sealed: bool = False
    stages: tuple[int, ...] = ()
    bucket_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """One step of a rank's program.

    Args:
        kind: What it does.
        inputs: Names of values, in the order that the kind states.
        outputs: The same.
        parameters: Names of parameters that it reads, relative to the block (``attention.wq.weight``).
        because: Why it is there.
        transfer: Of a collective.
        dim_from: The dim that an all-to-all or a gather takes apart.
        dim_to: The dim that an all-to-all, a scatter or a slice cuts; ``stored`` for pieces of storage.
        cuts: The axes of a slice.
        variants: Process groups (by index, in order of their first rank) that do it in another way.
        variant_lines: For each variant the statement behind it.
        every: Steps from one time to the next.
        call: Of one that draws random numbers: which draw of its layer it is, counted from 0.
        at_once: Of one that makes logits of some tokens at a time: how many; a constant of the run.
    """

    kind: OperatorKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    because: Because
    transfer: Transfer | None = None
    dim_from: str | None = None
    dim_to: str | None = None
    cuts: tuple[str, ...] = ()
    variants: tuple[tuple[tuple[int, ...], Transfer], ...] = ()
    variant_lines: tuple[Span | None, ...] = ()
    every: int = 1
    call: int = 0
    at_once: int = 0

    def transfer_of(self, index: int) -> Transfer:
        """How the process group of an index does it, counted in order of first ranks."""
        assert self.transfer is not None, "collectives are sent"
        return next((found for indices, found in self.variants if index in indices), self.transfer)

    @property
    def sends_one_tensor(self) -> bool:
        """Whether a group of ranks compresses by the tensor's shape or by its largest elements: it travels alone."""
        ways = (self.transfer, *(transfer for _, transfer in self.variants))
        return any(way is not None and way.compress in ("topk", "powersgd") for way in ways)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The program of one piece of the network for one microbatch.

    Args:
        name: ``embedding``, ``head``, or ``layers`` of a class of equal layers.
        layers: The layers that it stands for; empty for embedding and head.
        values: By name: activations, gradients, gathered parameters (``param:x``).
        gathers: Of stored parameters, before the forward pass and again before the backward pass.
        forward: In order.
        recompute: What the backward pass computes again before it begins, from what was kept.
        backward: In order.
        kept: Names of values that stay from the forward pass to the backward pass.
        offloaded: Those of them that wait in host memory.
        result: The value that goes on to the next block; empty for the head, which ends in ``loss``.
        gradient: The gradient of ``in``, for the block before; empty for the embedding.
    """

    name: str
    layers: tuple[int, ...]
    values: Mapping[str, Value]
    gathers: tuple[Operator, ...]
    forward: tuple[Operator, ...]
    recompute: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    kept: tuple[str, ...]
    offloaded: tuple[str, ...] = ()
    result: str = ""
    gradient: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One parameter of the network under a plan.

    Args:
        name: Full name.
        dims: Named dims.
        shape: Logical.
        layer: None for embedding and head.
        kind: As in the table.
        stages: The pipeline stages that hold it; a tied embedding has two.
        computed: How it lies when it is used.
        stored: How it lies between uses: ``computed`` with STORED axes; one for params, grads and states.
        dtypes: Type in which each of the three is kept.
        num_states: Elements of optimizer state for each element, without a master copy; an outer optimizer's
            are included.
        num_residuals: What compression leaves over is added to the next gradient: elements kept for each
            element of the whole tensor.
        offloaded: Those of the three that are kept in host memory.
        block: Name of its block.
        lines: For each decision (``split tp``, ``store params dp``, …) the deciding statement.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    layer: int | None
    kind: str
    stages: tuple[int, ...]
    computed: Placements
    stored: Mapping[str, Placements]
    dtypes: Mapping[str, str]
    num_states: int
    block: str
    num_residuals: int = 0
    offloaded: tuple[str, ...] = ()
    lines: Mapping[str, Span | None] = field(default_factory=dict)

    def held_bytes(self, table: Table, sizes: Mapping[str, int]) -> int:
        """What one rank that holds the parameter keeps of it between uses.

        Args:
            table: PARAMS, GRADS or STATES; what compression has left over counts as states.
            sizes: Of the axes.
        """
        placements = self.stored[table.value]
        elements = local_elements(self.dims, self.shape, placements, sizes)
        held = elements * BYTES_OF[self.dtypes[table.value]]
        if table is not Table.STATES:
            return held
        master = elements * BYTES_OF["fp32"] if self.has_master else 0
        return held * self.num_states + master + self.residual_bytes(sizes)

    def residual_bytes(self, sizes: Mapping[str, int]) -> int:
        """What compression has left over of its gradient on one rank; it stays on the device."""
        whole = local_elements(self.dims, self.shape, self.computed, sizes)
        return whole * BYTES_OF["fp32"] * self.num_residuals

    def waiting_bytes(self, table: Table, sizes: Mapping[str, int]) -> int:
        """How much of ``held_bytes`` is kept in host memory."""
        if table.value not in self.offloaded:
            return 0
        left = self.residual_bytes(sizes) if table is Table.STATES else 0
        return self.held_bytes(table, sizes) - left

    @property
    def has_master(self) -> bool:
        """Whether the states include an fp32 copy, because the parameter itself is kept in another type."""
        return self.dtypes[Table.PARAMS.value] != "fp32"
