"""Is a mistake found, and named by its tensor, its ratio, its axis and its line?"""

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from tests.plan.random_plans import Spoiling, Spoilt, spoil
from tests.runtime.lowering.small_plans import DROPPING, EXPERTS, LEARNED, ROTARY, question, small_plan
from trimtab.plan.physical import Plan
from trimtab.plan.placements import Placements
from trimtab.plan.program import Operator, OperatorKind, Parameter
from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.lowering import Crew, Divergence, Wires, computing, losses, verify
from trimtab.runtime.lowering.blocks import OperatorRunner
from trimtab.runtime.lowering.computing import Pieces
from trimtab.runtime.lowering.extents import Run
from trimtab.runtime.lowering.masks import Masks
from trimtab.runtime.lowering.scopes import Scope
from trimtab.runtime.lowering.updating import Updater
from trimtab.runtime.lowering.verification import Rate
from trimtab.runtime.random_keys import RandomKey

pytestmark = pytest.mark.process

DATA = "MESH dp 2, tp 2\nSPLIT batch OVER dp\nSPLIT heads, mlp, vocab OVER tp"
SEQUENCE = f"{DATA}\nSPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp"
STORED = "MESH dp 4\nSPLIT batch OVER dp\nSTORE params, grads, states OVER dp"
STAGES = "MESH pp 2, dp 2\nSPLIT batch OVER dp\nSPLIT layers OVER pp MICROBATCHES 2"
SPREAD = "MESH dp 2, ep 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep"


def _spoilt(plan: Plan, spoiling: Spoiling, what: str) -> Spoilt:
    """The plan with a sum spoilt that is described so."""
    for seed in range(400):
        for found in spoil(plan, random.Random(seed)):
            if found.spoiling is spoiling and found.what.startswith(what):
                return found
    raise AssertionError(f"no plan with {what} {spoiling}")


def _first(plan: Plan, crew: Crew) -> Divergence:
    divergence = verify(question(plan), crew).divergence
    assert divergence is not None
    return divergence


CASES = {
    "a norm's gradient is scattered twice": (
        SEQUENCE, LEARNED, Spoiling.DOUBLED, "reduce_scatter of grad:final_norm", "gradient of final_norm", "tp", 2.0, 3,
    ),
    "gradients are summed over data twice": (
        DATA, ROTARY, Spoiling.DOUBLED, "all_reduce of acc:embedding.weight", "gradient of embedding.weight", "dp", 2.0, 2,
    ),
    "gradients of experts are not summed": (
        SPREAD, EXPERTS, Spoiling.REMOVED, "all_reduce of acc:layers.0.experts.up.weight",
        "gradient of layers.0.experts.up.weight", "dp", None, 2,
    ),
    "gradients are summed over tensors instead of data": (
        DATA, ROTARY, Spoiling.MOVED, "all_reduce of acc:embedding.weight", "gradient of embedding.weight", "dp", None, 2,
    ),
    "a tied matrix counts twice over stages": (
        STAGES, LEARNED, Spoiling.DOUBLED, "all_reduce of tied:embedding.weight", "gradient of embedding.weight", "pp", 2.0, 3,
    ),
    "a tied matrix is not summed over stages": (
        STAGES, LEARNED, Spoiling.REMOVED, "all_reduce of tied:embedding.weight", "gradient of embedding.weight", "pp", None, 3,
    ),
    "targets are counted by each rank": (
        STORED, LEARNED, Spoiling.REMOVED, "all_reduce of num_tokens", "number of targets", "dp", None, 2,
    ),
    "the norm counts every piece four times": (
        STORED, LEARNED, Spoiling.DOUBLED, "all_reduce of norm_square", "square of the gradient norm", "dp", 4.0, 2,
    ),
    "sums over the vocabulary are missing": (
        SEQUENCE, LEARNED, Spoiling.REMOVED, "all_reduce of vocab_sums", "loss", "tp", None, 3,
    ),
    "attention is summed over data": (
        DATA, ROTARY, Spoiling.MOVED, "all_reduce of attention.wo.product", "layers.0.attention.wo", "tp", None, 3,
    ),
    "what the embedding looked up is not summed": (
        DATA, LEARNED, Spoiling.REMOVED, "all_reduce of looked_up", "positions", "tp", None, 3,
    ),
}  # fmt: skip
"""Strategy, network, how a sum is spoilt, which; the tensor, the axis, the ratio and the line that must be told."""


@pytest.mark.parametrize("name", CASES)
def test_names_what_went_wrong(name: str, crew_of: Callable[[int], Crew]) -> None:
    """Whoever is told that something differs, and not what, searches for days."""
    text, fields, spoiling, what, tensor, axis, ratio, line = CASES[name]
    spoilt = _spoilt(small_plan(text, 4, **fields), spoiling, what)
    found = _first(spoilt.plan, crew_of(4))
    assert found.tensor == tensor
    assert found.axis == axis
    assert ratio is None or found.ratio == pytest.approx(ratio, rel=1e-3)
    assert found.line is not None
    assert found.line.line == line
    assert found.cause


# Mistakes of ranks whose plan is right: each is planted into what the ranks of a crew run.

Bug = Callable[[Wires], AbstractContextManager[None]]
"""Makes a mistake on a rank as long as it lasts."""


@contextlib.contextmanager
def _in_place_of(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _loss_gradient(change: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """The gradient of logits, changed with a look at the targets."""
    before = computing._COMPUTE[OperatorKind.LOSS_GRAD]

    def changed(pieces: Pieces, logits: Tensor, targets: Tensor, *given: Tensor) -> Tensor:
        return change(before(pieces, logits, targets, *given), targets)

    computing._COMPUTE[OperatorKind.LOSS_GRAD] = changed  # type: ignore[index]  # it is a dict
    try:
        yield
    finally:
        computing._COMPUTE[OperatorKind.LOSS_GRAD] = before  # type: ignore[index]  # it is a dict


def _norm_twice(wires: Wires) -> AbstractContextManager[None]:
    """Both ranks of dp count the gradients that they hold alike."""
    counts = Updater._counts

    def everywhere(self: Updater, parameter: Parameter, placements: Placements) -> bool:
        with _in_place_of(self, "_places", {**self._places, "dp": 0}):
            return counts(self, parameter, placements)

    return _in_place_of(Updater, "_counts", everywhere)


def _own_denominator(wires: Wires) -> AbstractContextManager[None]:
    """Each rank takes the mean over its own tokens."""
    return _loss_gradient(lambda gradient, targets: gradient / (targets != IGNORED_TARGET).sum())


def _padding_counts(wires: Wires) -> AbstractContextManager[None]:
    """Columns that are there only to make pieces of the vocabulary equal stay in the softmax."""

    def unmasked(logits: Tensor, vocab: Run) -> Tensor:
        return logits.float()

    return _in_place_of(losses, "_masked", unmasked)


def _own_mask(wires: Wires) -> AbstractContextManager[None]:
    """Each rank seeds its generator with its own number."""
    whole = Masks._whole

    def seeded(self: Masks, x: Tensor, key: RandomKey, shape: Any) -> Tensor:
        return whole(self, x, replace(key, seed=key.seed + wires.rank), shape)

    return _in_place_of(Masks, "_whole", seeded)


def _mean_over_microbatches(wires: Wires) -> AbstractContextManager[None]:
    """A stage schedule divides the loss by its microbatches, and the mean is taken again."""
    return _loss_gradient(lambda gradient, _: gradient / 4)


Hook = Callable[[Operator, Scope], None]


def _nothing(operator: Operator, scope: Scope) -> None:
    pass


def _around_operators(*, before: Hook = _nothing, after: Hook = _nothing) -> AbstractContextManager[None]:
    """Something that happens around every operator."""
    make = OperatorRunner._make

    def hooked(self: OperatorRunner, bound: Any, scope: Scope, members: frozenset[int] | None) -> None:
        before(bound.operator, scope)
        make(self, bound, scope, members)
        after(bound.operator, scope)

    return _in_place_of(OperatorRunner, "_make", hooked)


def _experts_by_ranks(wires: Wires) -> AbstractContextManager[None]:
    """Gradients of experts are multiplied by the ranks that share them out."""

    def scale(operator: Operator, scope: Scope) -> None:
        if operator.kind is OperatorKind.EXPERT_LINEAR_GRAD:
            name = operator.outputs[1]
            scope.tensors[name] = scope.tensors[name] * 2

    return _around_operators(after=scale)


def _stale_bucket(wires: Wires) -> AbstractContextManager[None]:
    """The first bucket of a step is read before its sum has arrived."""
    kept: dict[str, Tensor] = {}
    first: list[tuple[str, ...]] = []

    def put_back(operator: Operator, scope: Scope) -> None:
        is_sum = operator.kind is OperatorKind.ALL_REDUCE and operator.inputs[0].startswith("acc:")
        if not is_sum or first[:1] not in ([], [operator.outputs]):
            return
        first[:] = [operator.outputs]
        fresh = {name: scope.tensors[name].clone() for name in operator.outputs}
        scope.tensors.update({name: kept.get(name, fresh[name]).clone() for name in fresh})
        kept.update(fresh)

    return _around_operators(after=put_back)


def _transposed_pieces(wires: Wires) -> AbstractContextManager[None]:
    """A matrix is cut in the order of its memory, and its memory is that of the transposed one."""

    def turn(operator: Operator, scope: Scope) -> None:
        if operator.kind is OperatorKind.REDUCE_SCATTER and scope.site is not None:
            for name in operator.inputs:
                whole = scope.tensors[name]
                if whole.dim() == 2:
                    scope.tensors[name] = whole.t().reshape(whole.shape)

    return _around_operators(before=turn)


def _rate_by_rank(wires: Wires) -> AbstractContextManager[None]:
    """The schedule is shared, and every rank of dp lets it tick."""
    rate = Rate.__call__
    return _in_place_of(Rate, "__call__", lambda self, step: rate(self, 2 * step))


def _buggy(bug: Bug, task: Callable[[Wires, Any], Any], wires: Wires, order: Any) -> Any:
    with bug(wires):
        return task(wires, order)


@dataclass(frozen=True)
class _BuggyCrew:
    """A crew whose ranks make a mistake."""

    crew: Crew
    bug: Bug

    def run(self, task: Callable[[Wires, Any], Any], argument: Any) -> list[Any]:
        return self.crew.run(partial(_buggy, self.bug, task), argument)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What must be told: ratio, or ratios for one on each rank, and words of the cause."""

    tensor: str
    line: int
    axis: str | None = None
    step: int = 0
    ratio: float | None = None
    has_ratios: bool = False
    cause: str


BUCKETS = "MESH dp 2\nSPLIT batch OVER dp\nREDUCE grads OVER dp USING ring BUCKET 8KB"
MICROBATCHES = "MESH pp 2, dp 2\nSPLIT batch OVER dp\nSPLIT layers OVER pp MICROBATCHES 4"
REPLICAS = "MESH dp 2\nSPLIT batch OVER dp"

BUGS: dict[str, tuple[str, int, dict[str, Any], Bug, Told]] = {
    "the norm counts twice": (
        DATA, 4, LEARNED, _norm_twice,
        Told(tensor="square of the gradient norm", line=2, axis="dp", ratio=2.0, cause="it counts 2 times, once for each rank of dp"),
    ),
    "a denominator of each rank": (
        REPLICAS, 2, LEARNED, _own_denominator,
        Told(tensor="gradient of logits", line=2, axis="dp", has_ratios=True, cause="its own count, in place of one count of all ranks"),
    ),
    "padding in the softmax": (
        DATA, 4, LEARNED, _padding_counts,
        Told(tensor="loss", line=3, axis="tp", cause="vocab has 67 elements and is padded to 68 over tp: padding that counts"),
    ),
    "masks of each rank": (
        DATA, 4, DROPPING, _own_mask,
        Told(tensor="embedding.dropped", line=3, axis="tp", cause="the mask was drawn from other random numbers"),
    ),
    "the mean over microbatches": (
        MICROBATCHES, 4, LEARNED, _mean_over_microbatches,
        Told(tensor="gradient of logits", line=3, ratio=0.25, cause="1/4 of it counts: it was divided by the 4 microbatches of a share"),
    ),
    "experts by their ranks": (
        SPREAD, 4, EXPERTS, _experts_by_ranks,
        Told(tensor="gradient of layers.3.experts.down.weight in layer 3", line=3, axis="ep", ratio=2.0, cause="it counts 2 times, once for each rank of ep"),
    ),
    "a bucket of the step before": (
        BUCKETS, 2, LEARNED, _stale_bucket,
        Told(tensor="gradient of positions.weight", line=3, step=1, cause="it is that of the step before"),
    ),
    "pieces in another order of memory": (
        STORED, 4, LEARNED, _transposed_pieces,
        Told(tensor="gradient of embedding.weight", line=3, cause="the right elements in other places"),
    ),
    "a rate that ticks for each rank": (
        REPLICAS, 2, LEARNED, _rate_by_rank,
        Told(tensor="embedding.weight after the step", line=2, axis="dp", step=1, ratio=0.75, cause="the schedule ticks 2 times a step, once for each rank of dp"),
    ),
}  # fmt: skip
"""Strategy, ranks, network, the mistake, and what must be told of it."""


@pytest.mark.parametrize("name", BUGS)
def test_names_what_ranks_do_wrong(name: str, crew_of: Callable[[int], Crew]) -> None:
    """The plan is right, and what the ranks do is not: of such mistakes whole clusters have trained for weeks."""
    text, devices, fields, bug, told = BUGS[name]
    crew = _BuggyCrew(crew_of(devices), bug)
    found = verify(question(small_plan(text, devices, **fields)), crew).divergence  # type: ignore[arg-type]  # it runs tasks
    assert found is not None
    assert (found.tensor, found.step, found.axis) == (told.tensor, told.step, told.axis)
    assert told.ratio is None or found.ratio == pytest.approx(told.ratio, rel=1e-3)
    assert (found.ratios is not None) == told.has_ratios
    assert told.cause in found.cause
    assert found.line is not None
    assert found.line.line == told.line


@pytest.mark.slow
@pytest.mark.parametrize("text", [SEQUENCE, DATA, STORED, STAGES, SPREAD])
def test_finds_every_spoilt_sum(text: str, crew_of: Callable[[int], Crew]) -> None:
    """A sum that may be wrong unseen is a hole in the proof."""
    plan = small_plan(text, 4, **(EXPERTS if "experts" in text else LEARNED))
    for seed in range(6):
        for spoilt in spoil(plan, random.Random(seed)):
            assert verify(question(spoilt.plan), crew_of(4)).divergence is not None, spoilt.what
