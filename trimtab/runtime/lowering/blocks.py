"""Runs the programs of blocks on one rank, operator by operator."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab.plan.lifetimes import FORWARD_OF, BlockTurns, Turn, turns_of
from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.program import COLLECTIVES, Block, Operator, OperatorKind, Phase, Transfer, Value
from trimtab.runtime.lowering.attention import Attention
from trimtab.runtime.lowering.collectives import Collectives, Gathering, Members
from trimtab.runtime.lowering.computing import UNTAPED, Pieces, computation, where_of
from trimtab.runtime.lowering.experts import EVERYTHING, Region
from trimtab.runtime.lowering.extents import Extent
from trimtab.runtime.lowering.ring_attention import Ring, RingTape
from trimtab.runtime.lowering.share_sums import Leaves, ShareSums
from trimtab.runtime.lowering.sites import UPDATE, Site
from trimtab.runtime.lowering.tape import Tape, record
from trimtab.runtime.lowering.types import DTYPES
from trimtab.runtime.lowering.wires import Line, Sent

_RINGS = (OperatorKind.RING_ATTENTION, OperatorKind.RING_ATTENTION_GRAD)
_ONLY_PARAMETERS = frozenset({OperatorKind.EMBED, OperatorKind.ADD_POSITIONS, OperatorKind.ADD_BIAS})
"""Forward operators whose gradient operator gives those of parameters alone: the input's is the output's."""

TapeKey = tuple[OperatorKind, tuple[str, ...]]
"""A forward operator of a block: no two have kind and parameters in common."""


@dataclass(kw_only=True, slots=True)
class Scope:
    """What operators read and write: the values of one block on one microbatch, or of the update.

    Args:
        site: The block at work; None for the update.
        microbatch: Counted from 0; of the update 0.
        phase: Of the step.
        values: Declared types.
        tensors: What the rank has, by name.
        parameters: As operators take them, by name in the block.
        tapes: What forward operators have left.
        added_up: Gradients that earlier microbatches have left.
        leaves: The same by share, where shares are added in a fixed tree.
        scattered: Own pieces of gradients by share, which the ranks of a group have given each other.
    """

    site: Site | None
    microbatch: int
    phase: Phase
    values: Mapping[str, Value]
    tensors: dict[str, Tensor]
    parameters: dict[str, Tensor] = field(default_factory=dict)
    tapes: dict[TapeKey, Tape | RingTape] = field(default_factory=dict)
    added_up: dict[str, Tensor] = field(default_factory=dict)
    leaves: dict[str, Leaves] = field(default_factory=dict)
    scattered: dict[str, dict[int, Tensor]] = field(default_factory=dict)

    @property
    def block(self) -> str:
        """Name of the block; ``update``."""
        return self.site.block.name if self.site else UPDATE

    @property
    def where(self) -> str:
        """As ``block``, one layer told from another."""
        return str(self.site) if self.site else UPDATE


class Observer:
    """Looks on while a rank computes; called on the rank's own thread, and must not change what it sees."""

    def begins(self, scope: Scope, operator: Operator) -> None:
        """An operator is about to run."""

    def made(self, scope: Scope, operator: Operator) -> None:
        """An operator has run: its outputs are among the tensors of the scope."""


class OperatorRunner:
    """Runs operators on one rank.

    Args:
        plan: Whose they are.
        collectives: Of the rank.
        sums: Adds shares in their fixed tree; None adds in the order of the backend.
        regions: Tokens that are routed together, by layer; by default all of a rank's.
        observe: Looks at every operator.
    """

    def __init__(
        self,
        plan: Plan,
        collectives: Collectives,
        *,
        sums: ShareSums | None = None,
        regions: Mapping[int, Sequence[Region]] | None = None,
        observe: Observer | None = None,
    ) -> None:
        self._plan = plan
        self._sums = sums
        self._collectives = collectives
        self._attention = Attention(plan.network)
        self._regions = regions or {}
        self._observe = observe
        self._turns: dict[str, BlockTurns] = {}
        self._stays: dict[int, frozenset[str]] = {}
        self._groups = {
            axes: groups(plan.mesh, axes) for axes in {transfer.axes for transfer in transfers_of(plan)}
        }

    def constants(self) -> list[Tensor]:
        """What is the same in every step."""
        return self._attention.constants

    def run(self, operators: Iterable[Operator], scope: Scope) -> None:
        """Operators in order."""
        for operator in operators:
            self.run_one(operator, scope)

    def take_turns(self, turns: Iterable[Turn], scope: Scope) -> None:
        """Operators in order; values that nobody reads any more are let go."""
        for turn in turns:
            self.run_one(turn.operator, scope)
            for name in turn.dead:
                scope.tensors.pop(name, None)

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
        if self._sums is not None and scope.site is not None and self._by_share(operator, scope, self._sums):
            return
        self.begin(scope, operator)
        outputs = self._outputs(operator, scope, members)
        scope.tensors.update(zip(operator.outputs, outputs, strict=True))

    def begin(self, scope: Scope, operator: Operator) -> None:
        """Tell the observer that an operator is about to run."""
        if self._observe is not None:
            self._observe.begins(scope, operator)

    def tell(self, scope: Scope, operator: Operator) -> None:
        """Let the observer look at what an operator has made."""
        if self._observe is not None:
            self._observe.made(scope, operator)

    def _outputs(self, operator: Operator, scope: Scope, members: frozenset[int] | None) -> Sequence[Tensor]:
        tensors = [scope.tensors[name] for name in operator.inputs]
        kind = operator.kind
        if kind in _RINGS:
            return self._around(operator, scope, tensors)
        if kind in COLLECTIVES:
            return self._collectives.run(self.gathering(operator, scope, tensors, members))
        if kind is OperatorKind.SLICE:
            return self._collectives.slice(operator, tensors, scope.values)
        if kind is OperatorKind.SUM:
            total = tensors[0] + tensors[1]
            for tensor in tensors[2:]:
                total += tensor
            return [total]
        if kind is OperatorKind.ACCUMULATE:
            return [self._accumulated(operator.outputs[0], tensors[0], scope)]
        if kind in UNTAPED:
            return [computation(kind, self._pieces(operator, scope))(*tensors)]
        if kind in FORWARD_OF:
            return self._gradients(operator, scope, tensors[0])
        return [self._computed(operator, scope, tensors)]

    def _by_share(self, operator: Operator, scope: Scope, sums: ShareSums) -> bool:
        """Where shares stay apart: gradients that ranks give each other, and what microbatches leave."""
        if sums.adds(operator):
            tensors = [scope.tensors[name] for name in operator.inputs]
            given = sums.scatter(self.gathering(operator, scope, tensors, None), scope.microbatch)
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

    def _accumulated(self, name: str, gradient: Tensor, scope: Scope) -> Tensor:
        before = scope.added_up.get(name)
        total = gradient.clone() if before is None else before.add_(gradient)
        scope.added_up[name] = total
        return total

    def _computed(self, operator: Operator, scope: Scope, tensors: Sequence[Tensor]) -> Tensor:
        parameters = [scope.parameters[name] for name in operator.parameters]
        names = [*operator.inputs, *(_parameter_key(name) for name in operator.parameters)]
        compute = computation(operator.kind, self._pieces(operator, scope))
        output, tape = record(
            compute, [*tensors, *parameters], names, operator.outputs[0], stays=self._staying(scope)
        )
        scope.tapes[operator.kind, operator.parameters] = tape
        return output

    def _staying(self, scope: Scope) -> Callable[[str], bool]:
        """Which values the backward pass finds again: parameters, what is kept, what is computed again."""
        site = scope.site
        assert site is not None, "tapes are of blocks"
        if site.index not in self._stays:
            again = (name for operator in site.block.recompute for name in operator.outputs)
            self._stays[site.index] = frozenset((*site.block.kept, *again))
        found = self._stays[site.index]
        return lambda name: name in found or name.startswith(_PARAMETER)

    def _gradients(self, operator: Operator, scope: Scope, gradient: Tensor) -> list[Tensor]:
        kind = FORWARD_OF[operator.kind]
        tape = scope.tapes.pop((kind, operator.parameters))
        assert isinstance(tape, Tape), operator.kind
        num_inputs = 2 if kind is OperatorKind.DISPATCH else len(operator.inputs) - 1
        first = 0
        if kind in _ONLY_PARAMETERS:
            first = num_inputs = 1
        wanted = [*range(first, num_inputs), *range(num_inputs, num_inputs + len(operator.parameters))]
        wanted = wanted[: len(operator.outputs)]
        forward_value = self._forward_dtype(scope, kind, operator)
        found = tape.gradients(gradient.to(forward_value), wanted, self._lookup(scope))
        return [
            tensor.to(DTYPES[scope.values[name].dtype]).contiguous()
            for tensor, name in zip(found, operator.outputs, strict=True)
        ]

    def _forward_dtype(self, scope: Scope, kind: OperatorKind, operator: Operator) -> torch.dtype:
        """Type of the forward operator's output, whose gradient the tape takes."""
        assert scope.site is not None, "gradients are made in blocks"
        forward = next(
            found
            for found in scope.site.block.forward
            if found.kind is kind and found.parameters == operator.parameters
        )
        return DTYPES[scope.values[forward.outputs[0]].dtype]

    def _lookup(self, scope: Scope) -> Callable[[str], Tensor]:
        def lookup(name: str) -> Tensor:
            parameter = name.removeprefix(_PARAMETER)
            return scope.parameters[parameter] if parameter != name else scope.tensors[name]

        return lookup

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
        )

    def _parameter_extent(self, name: str) -> Extent:
        parameter = self._plan.parameters[name]
        return self._collectives.layouts.extent(
            parameter.dims, parameter.shape, parameter.computed, self._collectives.rank
        )

    # Together.

    def gathering(
        self,
        operator: Operator,
        scope: Scope,
        tensors: Sequence[Tensor],
        taking_part: frozenset[int] | None,
    ) -> Gathering:
        """A collective with who takes part in it, as ``run_one``."""
        transfer, members = self._group(operator, taking_part)
        what = Sent(
            scope.block,
            scope.phase.value,
            operator.kind.value,
            operator.inputs,
            transfer.axes,
            transfer.route,
        )
        return Gathering(
            operator=operator,
            transfer=transfer,
            members=members,
            tensors=tensors,
            values=scope.values,
            what=what,
            where=scope.where,
        )

    def line(self, gathering: Gathering) -> Line:
        """The wires between the members of a collective."""
        return self._collectives.wires.line(gathering.what, gathering.members)

    def _group(self, operator: Operator, taking_part: frozenset[int] | None) -> tuple[Transfer, Members]:
        """How this rank's group does a collective, and who is in it."""
        assert operator.transfer is not None, "collectives are sent"
        rank = self._collectives.rank
        all_groups = self._groups[operator.transfer.axes]
        index = next(place for place, found in enumerate(all_groups) if rank in found)
        members = tuple(
            member for member in all_groups[index] if taking_part is None or member in taking_part
        )
        return operator.transfer_of(index), members

    def _around(self, operator: Operator, scope: Scope, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Ring attention, forwards or backwards."""
        gathering = self.gathering(operator, scope, tensors, None)
        q, k = (scope.values[name] for name in operator.inputs[-3:-1])
        extent = self._collectives.extent
        ring = Ring(
            attention=self._attention,
            wheres=[where_of(extent(q, member), extent(k, member)) for member in gathering.members],
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


_PARAMETER = "parameter "


def _parameter_key(name: str) -> str:
    """What a parameter is called beside the values of a block."""
    return f"{_PARAMETER}{name}"


def transfers_of(plan: Plan) -> Iterable[Transfer]:
    """How each collective of a plan travels, in order, those that only some groups use among them."""
    programs = [(*block.gathers, *block.forward, *block.recompute, *block.backward) for block in plan.blocks]
    for operators in (*programs, plan.update.operators):
        for operator in operators:
            if operator.transfer is not None:
                yield operator.transfer
                yield from (transfer for _, transfer in operator.variants)
