"""Runs the programs of blocks on one rank, operator by operator."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from trimtab.plan.lifetimes import FORWARD_OF, BlockTurns, Turn, turns_of
from trimtab.plan.physical import Plan
from trimtab.plan.program import COLLECTIVES, Block, Operator, OperatorKind
from trimtab.runtime.lowering.applying import Applied, added, parameter_of
from trimtab.runtime.lowering.attention import Attention
from trimtab.runtime.lowering.chunked_head import ChunkedHead
from trimtab.runtime.lowering.collectives import Collectives
from trimtab.runtime.lowering.computing import UNTAPED, Pieces, computation, where_of
from trimtab.runtime.lowering.experts import EVERYTHING, Region
from trimtab.runtime.lowering.extents import Extent
from trimtab.runtime.lowering.gatherings import Gatherings
from trimtab.runtime.lowering.homes import Homes
from trimtab.runtime.lowering.masks import Masks
from trimtab.runtime.lowering.ring_attention import Ring, RingTape
from trimtab.runtime.lowering.scopes import Apply, Observer, Scope
from trimtab.runtime.lowering.share_sums import ShareSums
from trimtab.runtime.lowering.sites import Site
from trimtab.runtime.lowering.types import DTYPES

_RINGS = (OperatorKind.RING_ATTENTION, OperatorKind.RING_ATTENTION_GRAD)
_HEADS = (OperatorKind.HEAD_SUMS, OperatorKind.HEAD_SUMS_GRAD)
_DROPS = (OperatorKind.DROP, OperatorKind.DROP_GRAD)
_ONLY_PARAMETERS = frozenset({OperatorKind.EMBED, OperatorKind.ADD_POSITIONS, OperatorKind.ADD_BIAS})
"""Forward operators whose gradient operator gives those of parameters alone: the input's is the output's."""


class OperatorRunner:
    """Runs operators on one rank.

    What an operator needs and what does not change from run to run (extents, types, groups, what it computes) is looked
    up when it runs at a site for the first time.

    Args:
        plan: Whose they are.
        collectives: Of the rank.
        masks: Of the plan's dropout.
        sums: Adds shares in their fixed tree; None adds in the order of the backend.
        regions: Tokens that are routed together, by layer; by default all of a rank's.
        observe: Looks at every operator.
    """

    def __init__(
        self,
        plan: Plan,
        collectives: Collectives,
        *,
        masks: Masks,
        sums: ShareSums | None = None,
        regions: Mapping[int, Sequence[Region]] | None = None,
        observe: Observer | None = None,
    ) -> None:
        self._plan = plan
        self._masks = masks
        self._sums = sums
        self._collectives = collectives
        self.gatherings = Gatherings(plan, collectives)
        self._attention = Attention(plan.network)
        self._regions = regions or {}
        self._observe = observe
        self._homes = Homes(plan, collectives.layouts, collectives.rank)
        self._turns: dict[str, BlockTurns] = {}
        self._bound: dict[tuple[int, int], _Bound] = {}
        self._programs: dict[tuple[int, int], _Program] = {}

    def constants(self) -> list[Tensor]:
        """What is the same in every step."""
        return self._attention.constants

    def renew(self) -> None:
        """Put sums of gradients elsewhere from now on: what was left behind may still write to where they were."""
        self._homes.forget()
        self._bound.clear()
        self._programs.clear()

    def run(self, operators: Iterable[Operator], scope: Scope) -> None:
        """Operators in order."""
        for operator in operators:
            self.run_one(operator, scope)

    def take_turns(self, turns: Sequence[Turn], scope: Scope) -> None:
        """Operators of a block in order; values that nobody reads any more are let go."""
        assert scope.site is not None, "turns are of blocks"
        key = id(turns), scope.site.index
        program = self._programs.get(key)
        if program is None:
            each = [(self._find(turn.operator, scope), turn.dead) for turn in turns]
            program = self._programs[key] = _Program(turns, each)
        tensors = scope.tensors
        for bound, dead in program.bound:
            self._make(bound, scope, None)
            if self._observe is not None:
                self._observe.made(scope, bound.operator)
            for name in dead:
                tensors.pop(name, None)

    def turns(self, block: Block) -> BlockTurns:
        """How a block runs."""
        if block.name not in self._turns:
            self._turns[block.name] = turns_of(block)
        return self._turns[block.name]

    def run_one(self, operator: Operator, scope: Scope, members: frozenset[int] | None = None) -> None:
        """One operator.

        Args:
            operator: Whose inputs are there.
            scope: Gets its outputs.
            members: Of a collective, ranks that take part if they are in the group; all by default.
        """
        self.make(operator, scope, members)
        self.tell(scope, operator)

    def make(self, operator: Operator, scope: Scope, members: frozenset[int] | None = None) -> None:
        """As ``run_one``, for who has something to add before the observer looks."""
        self._make(self._find(operator, scope), scope, members)

    def _find(self, operator: Operator, scope: Scope) -> "_Bound":
        key = id(operator), scope.site.index if scope.site else -1
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = _Bound(operator, self._bind(operator, scope))
        return bound

    def _make(self, bound: "_Bound", scope: Scope, members: frozenset[int] | None) -> None:
        operator, tensors = bound.operator, scope.tensors
        if self._sums is not None and scope.site is not None and self._by_share(operator, scope, self._sums):
            return
        self.begin(scope, operator)
        outputs = bound.apply(scope, [tensors[name] for name in operator.inputs], members)
        tensors.update(zip(operator.outputs, outputs, strict=True))

    def begin(self, scope: Scope, operator: Operator) -> None:
        """Tell the observer that an operator is about to run."""
        if self._observe is not None:
            self._observe.begins(scope, operator)

    def tell(self, scope: Scope, operator: Operator) -> None:
        """Let the observer look at what an operator has made."""
        if self._observe is not None:
            self._observe.made(scope, operator)

    def _bind(self, operator: Operator, scope: Scope) -> Apply:
        kind = operator.kind
        if kind in _RINGS:
            return partial(self._around, operator)
        if kind in COLLECTIVES:
            return self.gatherings.bind(operator)
        if kind is OperatorKind.SLICE:
            return lambda scope, tensors, _: self._collectives.slice(operator, tensors, scope.values)
        if kind is OperatorKind.SUM:
            home = self._home(operator.outputs[0]) if scope.site is None else None
            return lambda _, tensors, __: [added(tensors, home)]
        if kind is OperatorKind.ACCUMULATE:
            return self._adding(operator, scope)
        if kind in _DROPS:
            return partial(self._dropped, operator)
        if kind in _HEADS:
            return self._head(operator, scope)
        if kind in UNTAPED:
            compute = computation(kind, self._pieces(operator, scope))
            return lambda _, tensors, __: [compute(*tensors)]
        if kind in FORWARD_OF:
            return self._gradient(operator, scope)
        return self._forward(operator, scope)

    def _by_share(self, operator: Operator, scope: Scope, sums: ShareSums) -> bool:
        """Where shares stay apart: gradients that ranks give each other, and what microbatches leave."""
        if sums.adds(operator):
            tensors = [scope.tensors[name] for name in operator.inputs]
            given = sums.scatter(self.gatherings.of(operator, scope, None), tensors, scope.microbatch)
            for index, name in enumerate(operator.outputs):
                scope.scattered[name] = {share: pieces[index] for share, pieces in given.items()}
            return True
        if operator.kind is not OperatorKind.ACCUMULATE:
            return False
        (source,), (target,) = operator.inputs, operator.outputs
        found = scope.scattered.pop(source, None)
        if found is None:
            share = sums.ownership.at(self._collectives.rank, scope.microbatch)
            found = {} if share is None else {share: scope.tensors[source]}
        leaves = scope.leaves.setdefault(target, {})
        for share, gradient in found.items():
            before = leaves.get((share, 1))
            leaves[share, 1] = gradient.clone() if before is None else before.add_(gradient)
        return True

    def _dropped(
        self, operator: Operator, scope: Scope, tensors: list[Tensor], _: frozenset[int] | None
    ) -> Sequence[Tensor]:
        """An activation or its gradient, by the mask of the activation; the same in evaluation."""
        (x,) = tensors
        if scope.step is None:
            return [x]
        assert scope.site is not None, "masks are of blocks"
        value = scope.values[operator.outputs[0]]
        mask = self._masks.draw(
            x,
            self._collectives.extent(value),
            value.shape,
            step=scope.step,
            microbatch=scope.microbatch,
            layer=scope.site.layer,
            call=operator.call,
        )
        return [x * mask]

    def _head(self, operator: Operator, scope: Scope) -> Apply:
        """Logits some tokens at a time, forwards or backwards."""
        (matrix,) = operator.parameters
        assert scope.site is not None, "the head is a block"
        head = ChunkedHead(
            at_once=operator.at_once,
            vocab=self._parameter_extent(scope.site.full_name(matrix)).dims[0],
            dtype=DTYPES[scope.values[operator.inputs[0]].dtype],
        )
        is_forward = operator.kind is OperatorKind.HEAD_SUMS
        compute: Callable[..., Sequence[Tensor]] = head.sums if is_forward else head.gradients
        return lambda scope, tensors, _: compute(*tensors, scope.parameters[matrix])

    def _adding(self, operator: Operator, scope: Scope) -> Apply:
        """The gradient of a microbatch is added to those before it; the first one is put where the sum lies."""
        site = scope.site
        assert site is not None, "microbatches are of blocks"
        (name,) = operator.outputs
        home = self._home(site.added_up(name, self._plan.update.values))
        is_copied = self._lies_with_others(operator, site)

        def apply(scope: Scope, tensors: list[Tensor], _: frozenset[int] | None) -> Sequence[Tensor]:
            (gradient,) = tensors
            total = scope.added_up.get(name)
            if total is not None:
                total += gradient
            elif home is not None:
                total = home.copy_(gradient)
            else:
                total = gradient.clone() if is_copied else gradient
            scope.added_up[name] = total
            return [total]

        return apply

    def _lies_with_others(self, operator: Operator, site: Site) -> bool:
        """Whether a gradient has arrived in one vector with what is let go: as its sum it would keep all of it alive."""
        backward = site.block.backward
        maker = next(found for found in backward if operator.inputs[0] in found.outputs)
        if maker.kind not in COLLECTIVES:
            return False
        values = self._plan.update.values
        stays = {
            found.inputs[0]
            for found in backward
            if found.kind is OperatorKind.ACCUMULATE
            and self._home(site.added_up(found.outputs[0], values)) is None
        }
        is_added_to_head = site.index == 0 and self._plan.update.is_tied_at_once
        return is_added_to_head or not stays.issuperset(maker.outputs)

    def _home(self, name: str) -> Tensor | None:
        """Where a gradient is added up; shares that stay apart have no common place."""
        return self._homes.of(name) if self._sums is None else None

    def _forward(self, operator: Operator, scope: Scope) -> Apply:
        applied = Applied(operator, self._pieces(operator, scope), stays=_staying(scope))
        key = operator.kind, operator.parameters

        def apply(scope: Scope, tensors: list[Tensor], _: frozenset[int] | None) -> Sequence[Tensor]:
            parameters = [scope.parameters[name] for name in operator.parameters]
            output, tape = applied.forward([*tensors, *parameters])
            scope.tapes[key] = tape
            return [output]

        return apply

    def _gradient(self, operator: Operator, scope: Scope) -> Apply:
        kind = FORWARD_OF[operator.kind]
        key = kind, operator.parameters
        wanted = _wanted(kind, operator)
        incoming = _forward_dtype(scope, kind, operator)
        dtypes = [DTYPES[scope.values[name].dtype] for name in operator.outputs]

        def apply(scope: Scope, tensors: list[Tensor], _: frozenset[int] | None) -> Sequence[Tensor]:
            tape = scope.tapes.pop(key)
            assert not isinstance(tape, RingTape), kind
            found = tape.gradients(tensors[0].to(incoming), wanted, _lookup(scope))
            return [tensor.to(dtype).contiguous() for tensor, dtype in zip(found, dtypes, strict=True)]

        return apply

    def _pieces(self, operator: Operator, scope: Scope) -> Pieces:
        site = scope.site
        assert site is not None, "what is computed is computed in blocks"
        extent = self._collectives.extent
        output = scope.values[operator.outputs[0]]
        return Pieces(
            network=self._plan.network,
            attention=self._attention,
            inputs=[extent(scope.values[name]) for name in operator.inputs],
            parameters=[self._parameter_extent(site.full_name(name)) for name in operator.parameters],
            output=extent(output),
            dtype=DTYPES[output.dtype],
            regions=self._regions.get(site.layer, EVERYTHING) if site.layer is not None else EVERYTHING,
            window=self._window(site),
        )

    def _window(self, site: Site) -> int | None:
        """Tokens that a query sees there; None: all before it."""
        return None if site.layer is None else self._plan.network.window_of(site.layer)

    def _parameter_extent(self, name: str) -> Extent:
        parameter = self._plan.parameters[name]
        return self._collectives.layouts.extent(
            parameter.dims, parameter.shape, parameter.computed, self._collectives.rank
        )

    # Together.

    def _around(
        self, operator: Operator, scope: Scope, tensors: list[Tensor], _: frozenset[int] | None
    ) -> Sequence[Tensor]:
        """Ring attention, forwards or backwards."""
        gathering = self.gatherings.of(operator, scope, None)
        q, k = (scope.values[name] for name in operator.inputs[-3:-1])
        extent = self._collectives.extent
        assert scope.site is not None, "attention is computed in blocks"
        window = self._window(scope.site)
        ring = Ring(
            attention=self._attention,
            wheres=[where_of(extent(q, member), extent(k, member), window) for member in gathering.members],
            place=gathering.members.index(self._collectives.rank),
            line=self._collectives.wires.line(gathering.what, gathering.members)
            if len(gathering.members) > 1
            else None,
            wire=DTYPES[gathering.transfer.wire],
        )
        key = (OperatorKind.RING_ATTENTION, operator.parameters)
        dtypes = [DTYPES[scope.values[name].dtype] for name in operator.outputs]
        if operator.kind is OperatorKind.RING_ATTENTION:
            output, scope.tapes[key] = ring.forward(*tensors)
            return [output.to(dtypes[0])]
        tape = scope.tapes.pop(key)
        assert isinstance(tape, RingTape), key
        gradient, queries, keys, values = tensors
        found = ring.backward(gradient, queries, keys, values, tape)
        return [tensor.to(dtype).contiguous() for tensor, dtype in zip(found, dtypes, strict=True)]


@dataclass(frozen=True, slots=True)
class _Bound:
    """An operator at a site; it is kept so that its id stays its own."""

    operator: Operator
    apply: Apply


@dataclass(frozen=True, slots=True)
class _Program:
    """Turns of a block at a site, which are kept for the same reason, with what is let go after each."""

    turns: Sequence[Turn]
    bound: Sequence[tuple[_Bound, Sequence[str]]]


def _staying(scope: Scope) -> frozenset[str]:
    """Values that the backward pass finds again, beside parameters: what is kept, what is computed again."""
    site = scope.site
    assert site is not None, "tapes are of blocks"
    return frozenset((*site.block.kept, *(name for found in site.block.recompute for name in found.outputs)))


def _wanted(kind: OperatorKind, operator: Operator) -> list[int]:
    """Places among the tensors of a forward operator of those whose gradients are made."""
    num_inputs = 2 if kind is OperatorKind.DISPATCH else len(operator.inputs) - 1
    first = 0
    if kind in _ONLY_PARAMETERS:
        first = num_inputs = 1
    wanted = range(first, num_inputs + len(operator.parameters))
    return list(wanted)[: len(operator.outputs)]


def _forward_dtype(scope: Scope, kind: OperatorKind, operator: Operator) -> torch.dtype:
    """Type of the forward operator's output, whose gradient the tape takes."""
    assert scope.site is not None, "gradients are made in blocks"
    forward = next(
        found
        for found in scope.site.block.forward
        if found.kind is kind and found.parameters == operator.parameters
    )
    return DTYPES[scope.values[forward.outputs[0]].dtype]


def _lookup(scope: Scope) -> Callable[[str], Tensor]:
    def lookup(name: str) -> Tensor:
        parameter = parameter_of(name)
        return scope.parameters[parameter] if parameter else scope.tensors[name]

    return lookup
