"""Floating-point operations, counted operator by operator from a plan.

Convention: matrix products only, 2 FLOPs for a multiply and an add; the backward pass of a product is two
products. Embedding lookup, norms, activations, softmax and the optimizer do not count. Attention counts
under both of ``catalog.FlopConvention``. What the backward pass computes again is counted apart, and never as
useful work.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trimtab.plan.physical import Plan
from trimtab.plan.placements import local_shape
from trimtab.plan.program import Block, Operator, OperatorKind, Value


@dataclass(frozen=True, slots=True)
class Flops:
    """A count under both conventions of attention.

    Args:
        causal: Scores of the triangle only.
        full: All scores.
        attention: What scores and weighted values take of ``causal``.
    """

    causal: int = 0
    full: int = 0
    attention: int = 0

    def __add__(self, other: "Flops") -> "Flops":
        """Both together."""
        return Flops(self.causal + other.causal, self.full + other.full, self.attention + other.attention)

    def times(self, count: int) -> "Flops":
        """So many times."""
        return Flops(self.causal * count, self.full * count, self.attention * count)


@dataclass(frozen=True, slots=True)
class StageFlops:
    """What one rank computes on one microbatch.

    Args:
        forward: The forward pass.
        recompute: What the backward pass computes again.
        backward_input: Gradients of inputs; of attention, all of its gradients.
        backward_weight: Gradients of parameters.
    """

    forward: Flops = Flops()
    recompute: Flops = Flops()
    backward_input: Flops = Flops()
    backward_weight: Flops = Flops()

    def __add__(self, other: "StageFlops") -> "StageFlops":
        """Both together."""
        return StageFlops(
            self.forward + other.forward,
            self.recompute + other.recompute,
            self.backward_input + other.backward_input,
            self.backward_weight + other.backward_weight,
        )

    def times(self, count: int) -> "StageFlops":
        """So many times."""
        return StageFlops(
            self.forward.times(count),
            self.recompute.times(count),
            self.backward_input.times(count),
            self.backward_weight.times(count),
        )

    @property
    def backward(self) -> Flops:
        """Both halves of the backward pass, without recompute."""
        return self.backward_input + self.backward_weight

    @property
    def useful(self) -> Flops:
        """Forward and backward pass."""
        return self.forward + self.backward

    @property
    def total(self) -> Flops:
        """Everything that is computed."""
        return self.useful + self.recompute


def block_flops(plan: Plan) -> Mapping[str, tuple[StageFlops, ...]]:
    """For each block by name and each stage, what one of its ranks computes on one microbatch.

    Where pieces are uneven it is the largest. Ranks that split the queries of a causal sequence see different
    numbers of keys: counted is the mean over their axis.
    """
    found = {}
    for block in plan.blocks:
        work = _block_work(block, plan.axis_sizes)
        stages = [StageFlops()] * plan.pipeline.num_stages
        for stage in range(plan.pipeline.num_stages):
            for window, count in _instances(plan, block, stage).items():
                stages[stage] += _flops(work, plan, window).times(count)
        found[block.name] = tuple(stages)
    return found


def stage_flops(plan: Plan) -> tuple[StageFlops, ...]:
    """For each stage, what one of its ranks computes on one microbatch, as ``block_flops`` counts it."""
    return tuple(sum(blocks, StageFlops()) for blocks in zip(*block_flops(plan).values(), strict=True))


def step_flops(plan: Plan) -> StageFlops:
    """One step on all ranks together; work that several ranks do alike counts each time.

    Without such work, and without pieces that are padded, its ``useful`` is ``flops_per_token`` of the network
    times the tokens of a step.
    """
    total = sum(stage_flops(plan), StageFlops())
    places = plan.mesh.size(plan.pipeline.axis) if plan.pipeline.axis else 1
    ranks_of_a_replica = plan.mesh.num_devices // places // plan.work.replicas
    return total.times(ranks_of_a_replica * plan.work.num_parts * plan.work.microbatches_per_part)


def ring_scores_again(plan: Plan) -> tuple[int, ...]:
    """For each stage, FLOPs of scores that a rank computes again in gradients of ring attention, on one microbatch.

    Nobody keeps the scores of every hop. ``StageFlops`` leaves them out: fused kernels compute scores again in every
    backward pass, no convention counts that, and the share of the peak that attention reaches was fitted without it.
    Counted are all scores, as under ``full``.
    """
    found = [0] * plan.pipeline.num_stages
    for block in plan.blocks:
        for operator in block.backward:
            if operator.kind is OperatorKind.RING_ATTENTION_GRAD:
                queries = math.prod(_local(block.values[operator.inputs[1]], plan.axis_sizes))
                for stage in range(plan.pipeline.num_stages):
                    found[stage] += 2 * queries * plan.work.sequence * plan.num_instances(block, stage)
    return tuple(found)


def scores_of_sample(sequence: int, window: int | None) -> tuple[int, int]:
    """Attention scores of one head on one sample: the keys that queries see, causally and if they saw all.

    >>> scores_of_sample(4, None), scores_of_sample(4, 2)
    ((10, 16), (7, 8))
    """
    seen = min(sequence, window or sequence)
    return seen * (2 * sequence - seen + 1) // 2, sequence * seen


@dataclass(frozen=True, slots=True)
class _Work:
    """Some operators on one rank and one microbatch, whatever the window.

    Args:
        products: FLOPs of matrix products.
        queries: Elements of queries that meet their keys; of backward passes, twice.
    """

    products: int
    queries: int


def _instances(plan: Plan, block: Block, stage: int) -> Mapping[int | None, int]:
    """How many layers of a block a stage holds, by their window."""
    if not block.layers:
        return {None: plan.num_instances(block, stage)}
    stages = plan.pipeline.stage_of_layer
    return Counter(plan.network.window_of(layer) for layer in block.layers if stages[layer] == stage)


def _block_work(block: Block, sizes: Mapping[str, int]) -> tuple[_Work, _Work, _Work]:
    """Of the forward pass, of what is computed again, and of one half of the backward pass."""
    shapes: dict[str, tuple[int, ...]] = {}

    def shape(name: str) -> tuple[int, ...]:
        if name not in shapes:
            shapes[name] = _local(block.values[name], sizes)
        return shapes[name]

    def logits(operator: Operator) -> int:
        """FLOPs of the product that makes them, where they are made in chunks."""
        matrix = shape(f"grad:param:{operator.parameters[0]}")
        return 2 * math.prod(shape(operator.inputs[0])) * matrix[0]

    def work(operators: Iterable[Operator]) -> _Work:
        products = queries = 0
        for operator in operators:
            match operator.kind:
                case OperatorKind.LINEAR | OperatorKind.EXPERT_LINEAR:
                    products += 2 * math.prod(shape(operator.outputs[0])) * shape(operator.inputs[0])[-1]
                case OperatorKind.LINEAR_GRAD | OperatorKind.EXPERT_LINEAR_GRAD:
                    products += 2 * math.prod(shape(operator.inputs[0])) * shape(operator.inputs[1])[-1]
                case OperatorKind.HEAD_SUMS | OperatorKind.HEAD_SUMS_GRAD:
                    products += logits(operator)
                case OperatorKind.ATTENTION | OperatorKind.RING_ATTENTION:
                    queries += math.prod(shape(operator.inputs[0]))
                case OperatorKind.ATTENTION_GRAD | OperatorKind.RING_ATTENTION_GRAD:
                    queries += 2 * math.prod(shape(operator.inputs[1]))
        return _Work(products, queries)

    again = work(block.recompute)
    in_chunks = sum(
        logits(operator) for operator in block.backward if operator.kind is OperatorKind.HEAD_SUMS_GRAD
    )
    return work(block.forward), _Work(again.products + in_chunks, again.queries), work(block.backward)


def _local(value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return local_shape(value.dims, value.shape, value.placements, sizes)


def _flops(work: tuple[_Work, _Work, _Work], plan: Plan, window: int | None) -> StageFlops:
    sequence = plan.work.sequence
    causal, full = scores_of_sample(sequence, window)

    def flops(work: _Work) -> Flops:
        # A score takes 2 FLOPs for each element of a head, and so does its part of the weighted values.
        attention = 4 * work.queries * causal // sequence
        return Flops(
            work.products + attention, work.products + 4 * work.queries * full // sequence, attention
        )

    forward, recompute, backward = work
    return StageFlops(
        forward=flops(forward),
        recompute=flops(recompute),
        backward_input=flops(backward),
        backward_weight=Flops(backward.products, backward.products),
    )
