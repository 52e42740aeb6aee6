"""One rank of a plan: its pieces of the parameters, its microbatches, its place in the pipeline."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab.catalog import Network
from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action, ActionKind, actions_of
from trimtab.plan.program import Operator, OperatorKind, Phase, Value
from trimtab.plan.tables import Table
from trimtab.runtime.decoder import IGNORED_TARGET, initial_tensor
from trimtab.runtime.lowering.batches import Microbatch
from trimtab.runtime.lowering.blocks import Observer, OperatorRunner, Scope, TapeKey
from trimtab.runtime.lowering.collectives import Collectives
from trimtab.runtime.lowering.experts import Region
from trimtab.runtime.lowering.extents import Extent, Layouts, take
from trimtab.runtime.lowering.ring_attention import RingTape
from trimtab.runtime.lowering.sites import Site, Stages, sites_of, update_holders
from trimtab.runtime.lowering.tape import Tape
from trimtab.runtime.lowering.types import DTYPES
from trimtab.runtime.lowering.updating import Outcome, Rules, Updater
from trimtab.runtime.lowering.wires import Sent, Wires
from trimtab.terms import InputError


def refuse_unlowerable(network: Network) -> None:
    """Refuse a network that a plan may have and a lowered one cannot compute.

    Raises: InputError that names what it has and what would do.
    """
    if network.dropout:
        raise InputError(
            f"{network.name} has dropout {network.dropout:g}: a lowered plan draws no masks, for a mask belongs to whole "
            "rows and ranks hold parts of them. Set model.dropout: 0."
        )
    if 0 < network.window < network.context:
        raise InputError(
            f"{network.name} has a window of {network.window} tokens in a context of {network.context}; attention "
            f"under a window cannot be lowered. Set model.context: {network.window}, where both are the same."
        )


@dataclass(kw_only=True, slots=True)
class _Kept:
    """What a block keeps of a microbatch between its forward and its backward pass."""

    tensors: dict[str, Tensor]
    tapes: dict[TapeKey, Tape | RingTape]


@dataclass(kw_only=True, slots=True)
class Flow:
    """What is under way in a step.

    Args:
        microbatches: Of all replicas.
        kept: By site and microbatch.
        streams: Outputs of stages and gradients of their inputs that this rank hands to itself.
        loss: Sum of the token losses so far.
        num_tokens: Targets of the rank's own rows.
    """

    microbatches: Sequence[Microbatch]
    kept: dict[tuple[int, int], _Kept] = field(default_factory=dict)
    streams: dict[tuple[Phase, int, int], Tensor] = field(default_factory=dict)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    num_tokens: int = 0


class Rank:
    """Runs the steps of a plan on one rank.

    All ranks of the mesh make the same calls in the same order. Halves of backward passes are not told apart: where a
    stage schedule asks for the gradient of the input alone, that of the weights is made with it.

    Args:
        plan: What to do.
        rank: Who does it.
        wires: Connections to the others.
        rules: Of the run.
        seed: Of initial weights.
        regions: Tokens that are routed together, by layer; by default all of a rank's.
        observe: Is told of every operator that has run.
        read: The number in a tensor of one element.

    Raises: InputError for a network that cannot be computed so.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        wires: Wires,
        rules: Rules,
        *,
        seed: int,
        regions: Mapping[int, Sequence[Region]] | None = None,
        observe: Observer | None = None,
        read: Callable[[Tensor], float] = float,
    ) -> None:
        refuse_unlowerable(plan.network)
        self.plan, self.rank, self.wires = plan, rank, wires
        self.layouts = Layouts(plan.mesh)
        wires.open_groups(process_groups(plan))
        collectives = Collectives(rank=rank, layouts=self.layouts, wires=wires, devices=plan.bound.devices)
        self._runner = OperatorRunner(plan, collectives, regions=regions, observe=observe)
        self._read = read
        self._updater = Updater(plan, rank, rules, self.layouts, self._runner, read)
        self._sites = sites_of(plan)
        self._stages = Stages(plan)
        self._order = _order(plan, self._stages.place(rank))
        self._added_up: list[dict[str, Tensor]] = []
        self.stored = self._initial(seed)
        self._updater.begin(self.stored)

    def extent(self, value: Value) -> Extent:
        """What the rank has of a value."""
        return self.layouts.extent(value.dims, value.shape, value.placements, self.rank)

    def step(self, microbatches: Sequence[Microbatch], number: int) -> Outcome:
        """One optimizer step.

        Args:
            microbatches: Of all replicas; the rank takes its own rows and columns.
            number: Of the step, from 0.
        """
        flow = Flow(microbatches=microbatches)
        self._added_up = [{} for _ in self._sites]
        targets = self._sites[-1].block.values["targets"]
        for _, whole in microbatches:
            own = take(whole, self.extent(targets)) != IGNORED_TARGET
            flow.num_tokens += round(self._read(own.sum()))
        for action in self._order:
            self._act(action, flow)
        self.wires.posted.wait()
        return self._updater.run(
            self.stored,
            self._gradients(),
            loss=flow.loss,
            num_tokens=flow.num_tokens,
            step=number,
        )

    def _initial(self, seed: int) -> dict[str, Tensor]:
        """Pieces of the initial weights; one whole tensor exists at a time."""
        found = {}
        for name, parameter in self.plan.parameters.items():
            if not self._stages.holds(self.rank, parameter.stages):
                continue
            whole = initial_tensor(self.plan.network, name, parameter.shape, seed=seed)
            placements = parameter.stored[Table.PARAMS.value]
            extent = self.layouts.extent(parameter.dims, parameter.shape, placements, self.rank)
            found[name] = take(whole, extent).to(DTYPES[parameter.dtypes[Table.PARAMS.value]])
        return found

    def _gradients(self) -> dict[str, Tensor]:
        """What microbatches have left, by its name in the update."""
        values, found = self.plan.update.values, {}
        for site, added_up in zip(self._sites, self._added_up, strict=True):
            for name, tensor in added_up.items():
                full = f"acc:{site.full_name(name.removeprefix('acc:'))}"
                found[full if full in values else f"{full}#{site.block.name}"] = tensor
        return found

    # A pipeline's actions.

    def _act(self, action: Action, flow: Flow) -> None:
        if action.kind is ActionKind.FORWARD:
            self._forward(action.stage, action.microbatch, flow)
        elif action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT):
            self._backward(action.stage, action.microbatch, flow)

    def _forward(self, stage: int, microbatch: int, flow: Flow) -> None:
        sites = [site for site in self._sites if site.stage == stage]
        stream = self._taken(Phase.FORWARD, stage - 1, stage, microbatch, flow) if stage else None
        for site in sites:
            stream = self._forward_block(site, microbatch, stream, flow)
        if stage < self._stages.num_stages - 1:
            assert stream is not None, "a stage hands on"
            self._hand(Phase.FORWARD, stage, stage + 1, microbatch, stream, flow)

    def _forward_block(self, site: Site, microbatch: int, stream: Tensor | None, flow: Flow) -> Tensor | None:
        """What a block hands on; None from the head, whose loss is added up."""
        scope = self._scope(site, microbatch, Phase.FORWARD)
        self._feed(scope, stream, flow)
        self._gather(site, scope)
        self._runner.run(site.block.forward, scope)
        kept = {name: scope.tensors[name] for name in site.block.kept}
        for operator in site.block.recompute:
            scope.tapes.pop((operator.kind, operator.parameters), None)
        flow.kept[site.index, microbatch] = _Kept(tensors=kept, tapes=scope.tapes)
        if site.block.result:
            return scope.tensors[site.block.result]
        flow.loss = flow.loss + scope.tensors["loss"]
        return None

    def _backward(self, stage: int, microbatch: int, flow: Flow) -> None:
        sites = [site for site in self._sites if site.stage == stage]
        gradient = None
        if stage < self._stages.num_stages - 1:
            gradient = self._taken(Phase.BACKWARD, stage + 1, stage, microbatch, flow)
        for site in reversed(sites):
            gradient = self._backward_block(site, microbatch, gradient, flow)
        if stage:
            assert gradient is not None, "a stage hands back"
            self._hand(Phase.BACKWARD, stage, stage - 1, microbatch, gradient, flow)

    def _backward_block(
        self, site: Site, microbatch: int, gradient: Tensor | None, flow: Flow
    ) -> Tensor | None:
        """The gradient of what a block was handed; None from the embedding."""
        kept = flow.kept.pop((site.index, microbatch))
        scope = self._scope(site, microbatch, Phase.BACKWARD)
        scope.tensors |= kept.tensors
        scope.tapes = kept.tapes
        if gradient is not None:
            scope.tensors["grad:out"] = gradient.to(DTYPES[scope.values["grad:out"].dtype])
        self._gather(site, scope)
        scope.phase = Phase.RECOMPUTE
        self._runner.run(site.block.recompute, scope)
        scope.phase = Phase.BACKWARD
        self._runner.run(site.block.backward, scope)
        return scope.tensors[site.block.gradient] if site.block.gradient else None

    def _scope(self, site: Site, microbatch: int, phase: Phase) -> Scope:
        """A block before it runs: stored pieces, and nothing of another pass."""
        values = site.block.values
        stored = {
            name: self.stored[site.full_name(name.removeprefix(_STORED))]
            for name in values
            if name.startswith(_STORED) and "@" not in name
        }
        used = {name for operator in site.block.forward for name in operator.parameters}
        return Scope(
            site=site,
            microbatch=microbatch,
            phase=phase,
            values=values,
            tensors=stored,
            parameters={name: self.stored[site.full_name(name)] for name in used},
            added_up=self._added_up[site.index],
        )

    def _gather(self, site: Site, scope: Scope) -> None:
        """Stored parameters to where they are used; the last copy of each is the one that operators take."""
        self._runner.run(site.block.gathers, scope)
        for operator in site.block.gathers:
            for name in operator.outputs:
                scope.parameters[name.removeprefix(_STORED).partition("@")[0]] = scope.tensors[name]

    def _feed(self, scope: Scope, stream: Tensor | None, flow: Flow) -> None:
        tokens, targets = flow.microbatches[scope.microbatch]
        for name, whole in (("tokens", tokens), ("targets", targets)):
            if name in scope.values:
                scope.tensors[name] = take(whole, self.extent(scope.values[name]))
        if stream is not None:
            # Blocks may compute in other types than those before them.
            scope.tensors["in"] = stream.to(DTYPES[scope.values["in"].dtype])

    # Between stages.

    def _hand(
        self, phase: Phase, source: int, target: int, microbatch: int, tensor: Tensor, flow: Flow
    ) -> None:
        peer = self._peer(target)
        if peer == self.rank:
            flow.streams[phase, source, microbatch] = tensor
            return
        self.wires.post(self._border(phase), peer, tensor, tag=self._tag(phase, source, microbatch))

    def _taken(self, phase: Phase, source: int, target: int, microbatch: int, flow: Flow) -> Tensor:
        peer = self._peer(source)
        if peer == self.rank:
            return flow.streams.pop((phase, source, microbatch))
        value = self._handed_value(phase, source)
        return self.wires.receive(
            self._border(phase),
            peer,
            self.extent(value).shape,
            DTYPES[value.dtype],
            tag=self._tag(phase, source, microbatch),
        )

    def _handed_value(self, phase: Phase, source: int) -> Value:
        sites = [site for site in self._sites if site.stage == source]
        block = (sites[-1] if phase is Phase.FORWARD else sites[0]).block
        return block.values[block.result if phase is Phase.FORWARD else block.gradient]

    def _peer(self, stage: int) -> int:
        axis = self.plan.pipeline.axis
        assert axis is not None, "stages lie on an axis"
        group = next(found for found in groups(self.plan.mesh, [axis]) if self.rank in found)
        return next(rank for rank in group if self._stages.holds(rank, [stage]))

    def _border(self, phase: Phase) -> Sent:
        axis = self.plan.pipeline.axis
        assert axis is not None, "stages lie on an axis"
        return Sent("pipeline", phase.value, OperatorKind.SEND.value, ("residual stream",), (axis,), "native")

    def _tag(self, phase: Phase, source: int, microbatch: int) -> int:
        """One for each message of a step between two ranks; 0 is that of routes."""
        number = microbatch * self._stages.num_stages + source
        return 1 + 2 * number + (phase is Phase.BACKWARD)


_STORED = "stored:"


def _order(plan: Plan, place: int) -> tuple[Action, ...]:
    """What a rank does with all its microbatches, share by share."""
    pipeline, work = plan.pipeline, plan.work
    if pipeline.axis is None:
        return tuple(
            Action(kind=kind, stage=0, microbatch=number)
            for number in range(work.microbatches)
            for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
        )
    by_part = work.microbatches_per_part
    actions = actions_of(
        pipeline.schedule,
        ranks=plan.mesh.size(pipeline.axis),
        stages_per_rank=pipeline.stages_per_rank,
        microbatches=by_part,
    )[place]
    return tuple(
        Action(kind=action.kind, stage=action.stage, microbatch=part * by_part + action.microbatch)
        for part in range(work.parts_per_replica)
        for action in actions
    )


def process_groups(plan: Plan) -> list[tuple[int, ...]]:
    """The groups that collectives of the backend need, in an order that is the same on every rank."""
    stages, holders = Stages(plan), update_holders(plan)
    found: dict[tuple[int, ...], None] = {}

    def add(operator: Operator, taking_part: frozenset[int] | None) -> None:
        transfers = (operator.transfer, *(transfer for _, transfer in operator.variants))
        for transfer in transfers:
            if transfer is None:
                continue
            for group in groups(plan.mesh, transfer.axes):
                members = tuple(rank for rank in group if taking_part is None or rank in taking_part)
                if len(members) > 1:
                    found[members] = None

    for block in plan.blocks:
        for operator in (*block.gathers, *block.forward, *block.recompute, *block.backward):
            add(operator, None)
    for operator in plan.update.operators:
        if operator.transfer is None:
            continue
        members = frozenset.intersection(*(holders[name] for name in operator.inputs))
        if operator.transfer.stages:
            members = frozenset(rank for rank in members if stages.holds(rank, operator.transfer.stages))
        add(operator, members)
    return list(found)
