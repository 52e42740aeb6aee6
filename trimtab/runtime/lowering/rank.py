"""One rank of a plan: its pieces of the parameters, its microbatches, its place in the pipeline."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from trimtab.plan.early_sums import BACKWARD
from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action, ActionKind, actions_of
from trimtab.plan.program import Operator, OperatorKind, Phase, Value
from trimtab.plan.tables import Table
from trimtab.runtime.decoder import IGNORED_TARGET, initial_tensor
from trimtab.runtime.lowering.batches import Feed, Microbatch
from trimtab.runtime.lowering.beside import Beside
from trimtab.runtime.lowering.blocks import OperatorRunner
from trimtab.runtime.lowering.closed_forms import ClosedTape
from trimtab.runtime.lowering.collectives import Collectives
from trimtab.runtime.lowering.early_sums import EarlySums, groups_of
from trimtab.runtime.lowering.experts import Region
from trimtab.runtime.lowering.extents import Extent, Layouts, take
from trimtab.runtime.lowering.gathers_ahead import GathersAhead, gather_groups
from trimtab.runtime.lowering.host_memory import HostMemory
from trimtab.runtime.lowering.loading import read_piece
from trimtab.runtime.lowering.masks import Masks
from trimtab.runtime.lowering.ring_attention import RingTape
from trimtab.runtime.lowering.scopes import Observer, Scope, TapeKey
from trimtab.runtime.lowering.share_sums import Leaves, Ownership, ShareSums
from trimtab.runtime.lowering.sites import Site, Stages, sites_of, taking_part, update_holders
from trimtab.runtime.lowering.tape import Tape
from trimtab.runtime.lowering.transport import Transport
from trimtab.runtime.lowering.types import DTYPES
from trimtab.runtime.lowering.updating import Outcome, OuterOptimizer, PieceOptimizer, Rules, Updater
from trimtab.runtime.lowering.wires import Expected, Sent, Wires
from trimtab.runtime.weights.reading import Weights


@dataclass(kw_only=True, slots=True)
class _Kept:
    """What a block keeps of a microbatch between its forward and its backward pass."""

    tensors: dict[str, Tensor]
    tapes: dict[TapeKey, Tape | ClosedTape | RingTape]


@dataclass(kw_only=True, slots=True)
class Flow:
    """What is under way in a step.

    Args:
        microbatches: Of all replicas.
        step: Of the run, from 0; None in evaluation.
        kept: By site and microbatch.
        streams: Outputs of stages and gradients of their inputs that this rank hands to itself.
        expected: What other ranks hand over, on its way.
        loss: Sum of the token losses so far.
        losses: The same by share, where shares are added in a fixed tree.
        num_tokens: Targets of the rank's own rows.
        gradients: By the name of the gradient in the update, once all microbatches have run.
        leaves: The same by share.
    """

    microbatches: Sequence[Microbatch]
    step: int | None
    kept: dict[tuple[int, int], _Kept] = field(default_factory=dict)
    streams: dict[tuple[Phase, int, int], Tensor] = field(default_factory=dict)
    expected: dict[tuple[Phase, int, int], Expected] = field(default_factory=dict)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    losses: Leaves = field(default_factory=dict)
    num_tokens: int = 0
    gradients: dict[str, Tensor] = field(default_factory=dict)
    leaves: dict[str, Leaves] = field(default_factory=dict)

    def poison(self) -> None:
        """Make a gradient nan, as a broken device may."""
        leaves = [leaf for by_key in self.leaves.values() for leaf in by_key.values()]
        for gradient in (*self.gradients.values(), *leaves)[:1]:
            gradient.view(-1)[:1].fill_(math.nan)


Left = TypeVar("Left")


class Rank:
    """Runs the steps of a plan on one rank.

    All ranks of the mesh make the same calls in the same order. Halves of backward passes are not told apart: where a
    stage schedule asks for the gradient of the input alone, that of the weights is made with it. Tensors are made on
    torch's default device: it must be the same in all calls, and where the microbatches are.

    Args:
        plan: What to do.
        rank: Who does it.
        wires: Connections to the others.
        rules: Of the run.
        seed: Of initial weights.
        adds_by_share: Whether shares are added in their fixed tree, so that the bits are those of any number of
            replicas, any way of storing and any number of stages; else in the order of the backend.
        feed: Takes a rank's piece of a microbatch; by default from the rows of all replicas.
        weights: Initial weights in place of random ones; only the rank's pieces are read.
        regions: Tokens that are routed together, by layer; by default all of a rank's.
        masks: Of dropout; by default those of the seed for the plan's own rows.
        observe: Looks at every operator.
        read: The number in a tensor of one element.
        host: Where OFFLOAD puts what the device does without.
        sends_beside: Whether gathers one block ahead, and sums of gradients that can start before the backward pass has
            ended, run on threads of their own; else each runs at its place.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        wires: Wires,
        rules: Rules,
        *,
        seed: int,
        adds_by_share: bool = False,
        feed: Feed = take,
        weights: Weights | None = None,
        regions: Mapping[int, Sequence[Region]] | None = None,
        masks: Masks | None = None,
        observe: Observer | None = None,
        read: Callable[[Tensor], float] = float,
        host: HostMemory | None = None,
        sends_beside: bool = True,
    ) -> None:
        self.plan, self.rank, self.wires = plan, rank, wires
        self.layouts = Layouts(plan.mesh)
        self._seed, self._weights = seed, weights
        wires.open_groups(process_groups(plan))
        collectives = Collectives(rank=rank, layouts=self.layouts, wires=wires, devices=plan.bound.devices)
        self.compressor = collectives.compressor
        self._read = read
        self._sites = sites_of(plan)
        self._names = [(_stored_names(site), _used_names(site)) for site in self._sites]
        self._feed_piece = feed
        self.ownership = Ownership(plan, self._replicas())
        self.sums = ShareSums(plan, collectives, self.ownership) if adds_by_share else None
        self._runner = OperatorRunner(
            plan,
            collectives,
            masks=masks or Masks(plan.work, plan.network.dropout, seed=seed),
            sums=self.sums,
            regions=regions,
            observe=observe,
        )
        self.host = host or HostMemory()
        self._updater = Updater(plan, rank, rules, self.layouts, self._runner, self.host, self.sums, read)
        self._stages = Stages(plan)
        self._order = _order(plan, self._stages.place(rank))
        # Gradients of a stage are complete when its last microbatch has come back.
        self._last = {
            action.stage: action.microbatch for action in self._order[-1] if action.kind in BACKWARD
        }
        self._beside: Beside | None = None
        self._early: EarlySums | None = None
        self._ahead: GathersAhead | None = None
        if sends_beside:
            actions_at, holders = (lambda place: _order(plan, place)[-1]), self._updater.holders
            sending = (*gather_groups(plan), *groups_of(plan, actions_at, holders))
            self._beside = Beside(collectives, tuple(dict.fromkeys(sending)), observe or Observer())
            actions = [action for part in self._order for action in part]
            self._ahead = GathersAhead(plan, actions, self._sites, collectives, self._beside, self._runner)
            self._early = EarlySums(
                plan, actions_at, collectives, self._beside, self.sums, holders, self._updater.taken_up
            )
        ends = all(self._stages.holds(rank, [stage]) for stage in (0, self._stages.num_stages - 1))
        # Share by share what the ends add stays apart: so they have it that are on two ranks.
        self._is_tied_at_once = ends and plan.update.is_tied_at_once and not adds_by_share
        self._added_up: list[dict[str, Tensor]] = []
        self._leaves: list[dict[str, Leaves]] = []
        self.begin()

    def begin(self) -> None:
        """Take the initial weights, and forget all steps."""
        self.stored = self._initial(self._seed, self._weights)
        self._updater.begin(self.stored)
        self.go_on()

    def go_on(self) -> None:
        """Weights and states are in place: go on from them. What compression has left over is forgotten."""
        self._updater.forget()
        self.compressor.forget()

    @property
    def is_torn(self) -> bool:
        """Whether a step was interrupted after it had changed what this rank keeps between steps."""
        return self._updater.is_applying or self.compressor.is_ahead

    def connect(self, transport: Transport) -> None:
        """Go on with other connections; what was under way on the old ones is forgotten."""
        self.wires.posted.pending.clear()
        self.wires.transport = transport
        self.wires.open_groups(process_groups(self.plan))
        self._runner.renew()
        if self._beside is not None and self._early is not None and self._ahead is not None:
            self._beside.connect()
            self._early.leave()
            self._ahead.leave()

    @property
    def optimizer(self) -> PieceOptimizer:
        """Of the pieces that this rank updates."""
        return self._updater.optimizer

    @property
    def outer(self) -> OuterOptimizer:
        """Of replicas that train apart."""
        return self._updater.outer

    @property
    def replica(self) -> int:
        """Which of the parts of a microbatch this rank computes."""
        return self._replicas()[self.rank]

    @property
    def says_loss(self) -> bool:
        """Whether this rank is the first of those that know the loss of a step."""
        return self.rank == min(self._updater.holders["loss"])

    def extent(self, value: Value) -> Extent:
        """What the rank has of a value."""
        return self.layouts.extent(value.dims, value.shape, value.placements, self.rank)

    def held(self) -> dict[str, list[Tensor]]:
        """All that the rank keeps on its device between steps, by class; a storage in several belongs to the last."""
        states, constants = self._updater.held(), self._runner.constants()
        return {
            "constants": [*states["constants"], *constants],
            "states": [*states["states"], *self.compressor.held()],
            "gradients": [tensor for added_up in self._added_up for tensor in added_up.values()],
            "parameters": list(self.stored.values()),
        }

    def step(self, microbatches: Sequence[Microbatch], number: int) -> Outcome:
        """One optimizer step.

        Args:
            microbatches: Of all replicas; the rank takes its own rows and columns.
            number: Of the step, from 0.
        """
        return self.update(self.compute(microbatches, number), number)

    def compute(
        self, microbatches: Sequence[Microbatch], number: int, *, between: Callable[[], None] = lambda: None
    ) -> Flow:
        """Gradients of all microbatches; weights stay as they are.

        Args:
            microbatches: As ``step`` takes them.
            number: Of the step, from 0.
            between: Called before each action of the stages.
        """
        flow = self._flow(microbatches, number)
        if self._early is not None and self._ahead is not None:
            self._early.begin()
            self._ahead.begin()
        for actions in self._order:
            for action, following in zip(actions, (*actions[1:], None), strict=True):
                between()
                if following is not None:
                    self._expect(following, flow)
                self._act(action, flow)
            self._fold(flow)
        self.wires.posted.wait()
        flow.gradients = self._gradients(self._added_up)
        flow.leaves = self._gradients(self._leaves) | ({"loss": flow.losses} if flow.losses else {})
        return flow

    def update(
        self, flow: Flow, number: int, *, agree: Callable[[Outcome], None] = lambda outcome: None
    ) -> Outcome:
        """Take the sums of a step that has been computed, and apply it.

        Args:
            flow: The step.
            number: Of it, from 0.
            agree: Called between the two. Interrupted in it, ``reduced_step`` is left; interrupted while it is applied,
                ``is_torn`` stays true.
        """
        outcome = self._updater.run(
            self.stored,
            flow.gradients,
            loss=flow.loss,
            num_tokens=flow.num_tokens,
            step=number,
            leaves=flow.leaves,
            agree=agree,
            early=self._early,
        )
        self.compressor.settle()
        return outcome

    @property
    def reduced_step(self) -> int | None:
        """The step whose sums are all there, and that is not applied; None if there is none."""
        return self._updater.reduced_step

    def apply_reduced(self) -> None:
        """Apply it."""
        self._updater.apply(self.stored)
        self.compressor.settle()

    def score(self, batch: Microbatch) -> float | None:
        """The sum of the token losses of one microbatch, forwards only; None on ranks that others speak for.

        Ranks that split the sequence each have a part of it, and each gives its part. So does every replica, of those
        too that train apart and never add up the loss of a step.
        """
        flow = self._flow([batch], None)
        for stage in self._stages.of(self.rank):
            self._forward(stage, 0, flow)
        self.wires.posted.wait()
        parts = {*self.plan.bound.batch_axes, *(axis for axes in self._axes_of_loss() for axis in axes)}
        places = self.layouts.places[self.rank]
        speaks = all(
            place == 0
            for axis, place in places.items()
            if axis not in parts and axis != self.plan.pipeline.axis
        )
        is_last = self._stages.holds(self.rank, [self._stages.num_stages - 1])
        return float(flow.loss) if speaks and is_last else None

    def _axes_of_loss(self) -> list[tuple[str, ...]]:
        """Over which the loss of a step is summed."""
        return [
            operator.transfer.axes
            for operator in self.plan.update.operators
            if operator.transfer is not None and operator.inputs[0].startswith("loss")
        ]

    def _flow(self, microbatches: Sequence[Microbatch], step: int | None) -> Flow:
        """Nothing computed yet."""
        flow = Flow(microbatches=microbatches, step=step)
        self._added_up = [{} for _ in self._sites]
        if self._is_tied_at_once:
            self._added_up[-1] = self._added_up[0]
        self._leaves = [{} for _ in self._sites]
        targets = self._sites[-1].block.values["targets"]
        for _, whole in microbatches:
            own = self._feed_piece(whole, self.extent(targets)) != IGNORED_TARGET
            flow.num_tokens += round(self._read(own.sum()))
        return flow

    def _replicas(self) -> list[int]:
        """By rank, which of the parts of a microbatch it computes."""
        targets = self._sites[-1].block.values["targets"]
        rows = [
            self.layouts.extent(targets.dims, targets.shape, targets.placements, rank).dims[0]
            for rank in range(self.plan.mesh.num_devices)
        ]
        return [run.start // run.length for run in rows]

    def _fold(self, flow: Flow) -> None:
        """Every rank has run a share: add what is complete of the tree."""
        if self.sums is None:
            return
        self.sums.tree.fold(flow.losses)
        for name, leaves in self._gradients(self._leaves).items():
            if name not in self._updater.parts_of_tied:
                self.sums.tree.fold(leaves)

    def _initial(self, seed: int, weights: Weights | None) -> dict[str, Tensor]:
        """Pieces of the initial weights; of random ones, one whole tensor exists at a time, on the host."""
        found, device = {}, torch.empty(0).device
        for name, parameter in self.plan.parameters.items():
            if not self._stages.holds(self.rank, parameter.stages):
                continue
            placements = parameter.stored[Table.PARAMS.value]
            extent = self.layouts.extent(parameter.dims, parameter.shape, placements, self.rank)
            if weights is None:
                whole = initial_tensor(self.plan.network, name, parameter.shape, seed=seed)
                piece = take(whole, extent)
            else:
                piece = read_piece(weights, name, extent)
            found[name] = piece.to(device, DTYPES[parameter.dtypes[Table.PARAMS.value]])
        return found

    def _gradients(self, by_site: Sequence[Mapping[str, Left]]) -> dict[str, Left]:
        """What microbatches have left, by its name in the update."""
        values, found = self.plan.update.values, {}
        sites = self._sites[:-1] if self._is_tied_at_once else self._sites
        for site, left in zip(sites, by_site, strict=False):
            for name, gradient in left.items():
                found[site.added_up(name, values)] = gradient
        return found

    def _left_by(self, site: Site) -> Mapping[str, Tensor | Leaves]:
        """What all microbatches have left at one site, by its name in the update."""
        left: Mapping[str, Tensor | Leaves] = (
            self._added_up[site.index] if self.sums is None else self._leaves[site.index]
        )
        return {site.added_up(name, self.plan.update.values): gradient for name, gradient in left.items()}

    # A pipeline's actions.

    def _act(self, action: Action, flow: Flow) -> None:
        if action.kind is ActionKind.FORWARD:
            self._forward(action.stage, action.microbatch, flow)
        elif action.kind in BACKWARD:
            self._backward(action.stage, action.microbatch, flow)

    def _forward(self, stage: int, microbatch: int, flow: Flow) -> None:
        sites = [site for site in self._sites if site.stage == stage]
        stream = self._taken(Phase.FORWARD, stage - 1, stage, microbatch, flow) if stage else None
        for site in sites:
            stream = self._forward_block(site, microbatch, stream, flow)
        if stage < self._stages.num_stages - 1:
            assert stream is not None, "a stage hands on"
            self._hand(Phase.FORWARD, stage, stage + 1, microbatch, stream, flow)

    def _add_loss(self, loss: Tensor, microbatch: int, flow: Flow) -> None:
        flow.loss = flow.loss + loss
        share = None if self.sums is None else self.sums.ownership.at(self.rank, microbatch)
        if share is not None:
            before = flow.losses.get((share, 1))
            flow.losses[share, 1] = loss.clone() if before is None else before.add_(loss)

    def _forward_block(self, site: Site, microbatch: int, stream: Tensor | None, flow: Flow) -> Tensor | None:
        """What a block hands on; None from the head, whose loss is added up."""
        scope = self._scope(site, microbatch, Phase.FORWARD, flow.step)
        self._feed(scope, stream, flow)
        self._gather(site, scope)
        self._runner.take_turns(self._runner.turns(site.block).forward, scope)
        kept = {
            name: self.host.keep(scope.tensors[name]) if name in site.block.offloaded else scope.tensors[name]
            for name in site.block.kept
        }
        for operator in site.block.recompute:
            scope.tapes.pop((operator.kind, operator.parameters), None)
        flow.kept[site.index, microbatch] = _Kept(tensors=kept, tapes=scope.tapes)
        if site.block.result:
            return scope.tensors[site.block.result]
        self._add_loss(scope.tensors["loss"], microbatch, flow)
        return None

    def _backward(self, stage: int, microbatch: int, flow: Flow) -> None:
        sites = [site for site in self._sites if site.stage == stage]
        gradient = None
        if stage < self._stages.num_stages - 1:
            gradient = self._taken(Phase.BACKWARD, stage + 1, stage, microbatch, flow)
        for site in reversed(sites):
            gradient = self._backward_block(site, microbatch, gradient, flow)
            if self._early is not None and microbatch == self._last[stage]:
                self._early.complete(site.index, self._left_by(site))
        if stage:
            assert gradient is not None, "a stage hands back"
            self._hand(Phase.BACKWARD, stage, stage - 1, microbatch, gradient, flow)

    def _backward_block(
        self, site: Site, microbatch: int, gradient: Tensor | None, flow: Flow
    ) -> Tensor | None:
        """The gradient of what a block was handed; None from the embedding."""
        kept = flow.kept.pop((site.index, microbatch))
        scope = self._scope(site, microbatch, Phase.BACKWARD, flow.step)
        scope.tensors |= {
            name: self.host.fetch(tensor) if name in site.block.offloaded else tensor
            for name, tensor in kept.tensors.items()
        }
        kept.tensors.clear()
        scope.tapes = kept.tapes
        if gradient is not None:
            scope.tensors["grad:out"] = gradient.to(DTYPES[scope.values["grad:out"].dtype])
        gradient = None  # It lives as long as the block reads it.
        self._gather(site, scope)
        turns = self._runner.turns(site.block)
        scope.phase = Phase.RECOMPUTE
        self._runner.take_turns(turns.recompute, scope)
        scope.phase = Phase.BACKWARD
        self._runner.take_turns(turns.backward, scope)
        return scope.tensors[site.block.gradient] if site.block.gradient else None

    def _scope(self, site: Site, microbatch: int, phase: Phase, step: int | None) -> Scope:
        """A block before it runs: stored pieces, and nothing of another pass."""
        stored, used = self._names[site.index]
        return Scope(
            site=site,
            microbatch=microbatch,
            phase=phase,
            step=step,
            values=site.block.values,
            tensors={name: self.stored[full] for name, full in stored},
            parameters={name: self.stored[full] for name, full in used},
            added_up=self._added_up[site.index],
            leaves=self._leaves[site.index],
        )

    def _gather(self, site: Site, scope: Scope) -> None:
        """Stored parameters to where they are used; the last copy of each is the one that operators take."""
        if self._ahead is None:
            self._runner.run(site.block.gathers, scope)
        else:
            self._ahead.take(scope, self.stored)
        for operator in site.block.gathers:
            for name in operator.outputs:
                scope.parameters[name.removeprefix(_STORED).partition("@")[0]] = scope.tensors[name]

    def _feed(self, scope: Scope, stream: Tensor | None, flow: Flow) -> None:
        tokens, targets = flow.microbatches[scope.microbatch]
        for name, whole in (("tokens", tokens), ("targets", targets)):
            if name in scope.values:
                scope.tensors[name] = self._feed_piece(whole, self.extent(scope.values[name]))
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
        key = phase, source, microbatch
        if self._peer(source) == self.rank:
            return flow.streams.pop(key)
        expected = flow.expected.pop(key) if key in flow.expected else self._expected(*key)
        return self.wires.take(expected)

    def _expect(self, action: Action, flow: Flow) -> None:
        """What an action is going to take from another rank may arrive while this one still computes."""
        phase, source = Phase.FORWARD, action.stage - 1
        if action.kind in BACKWARD:
            phase, source = Phase.BACKWARD, action.stage + 1
        elif action.kind is not ActionKind.FORWARD:
            return
        if 0 <= source < self._stages.num_stages and self._peer(source) != self.rank:
            key = phase, source, action.microbatch
            flow.expected[key] = self._expected(*key)

    def _expected(self, phase: Phase, source: int, microbatch: int) -> Expected:
        value = self._handed_value(phase, source)
        return self.wires.expect(
            self._border(phase),
            self._peer(source),
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


def _stored_names(site: Site) -> list[tuple[str, str]]:
    """Stored pieces as a block calls them, and as the network does."""
    return [
        (name, site.full_name(name.removeprefix(_STORED)))
        for name in site.block.values
        if name.startswith(_STORED) and "@" not in name
    ]


def _used_names(site: Site) -> list[tuple[str, str]]:
    """The same of the parameters that its operators take."""
    used = dict.fromkeys(name for operator in site.block.forward for name in operator.parameters)
    return [(name, site.full_name(name)) for name in used]


def _order(plan: Plan, place: int) -> tuple[tuple[Action, ...], ...]:
    """What a rank does with all its microbatches, share by share."""
    pipeline, work = plan.pipeline, plan.work
    by_part = work.microbatches_per_part
    actions: Sequence[Action] = [
        Action(kind=kind, stage=0, microbatch=number)
        for number in range(by_part)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
    ]
    if pipeline.axis is not None:
        actions = actions_of(
            pipeline.schedule,
            ranks=plan.mesh.size(pipeline.axis),
            stages_per_rank=pipeline.stages_per_rank,
            microbatches=by_part,
        )[place]
    return tuple(
        tuple(
            Action(kind=action.kind, stage=action.stage, microbatch=part * by_part + action.microbatch)
            for action in actions
        )
        for part in range(work.parts_per_replica)
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
        if operator.transfer is not None:
            add(operator, taking_part(operator, holders, stages))
    return list(found)
