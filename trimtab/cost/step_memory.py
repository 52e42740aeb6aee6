"""Memory of a rank by class over a step, if it runs its plan operator by operator, as this release's runtime does.

``MemoryCounter`` counts the plan's own values, whoever runs it. Here the runtime is known: parameters are gathered one block
ahead, collectives have vectors that they are packed into, autograd keeps what ``OperatorCounter`` says. Every action of the step
is gone through in order. What another thread does beside the computation is counted as if it were done at once where it is
started, as it is when memory is measured: on its own thread its buffers may fall together with the peak of a block.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.cost.ahead_memory import AheadMemory, GatherBytes
from trimtab.cost.block_bytes import value_bytes
from trimtab.cost.counts import Counts
from trimtab.cost.early_memory import EarlyMemory
from trimtab.cost.memory import MemoryClasses, Moment
from trimtab.cost.operator_bytes import OperatorCounter
from trimtab.plan.early_sums import BACKWARD
from trimtab.plan.explanation import RankGroup
from trimtab.plan.lifetimes import FORWARD_OF, Turn, sums_in_place, turns_of, update_turns
from trimtab.plan.physical import EMBEDDING, HEAD, SCALARS, Plan
from trimtab.plan.pipelines import Action, ActionKind
from trimtab.plan.placements import local_elements
from trimtab.plan.program import COLLECTIVES, Block, Operator, OperatorKind, Value
from trimtab.plan.tables import BYTES_OF, Table

_COUNTER_BYTES = BYTES_OF["fp32"]
"""Of torch's count of an optimizer's steps, one for each parameter."""


def constant_bytes(plan: Plan, counts: Counts, stages: Sequence[int]) -> int:
    """What a rank keeps besides: angles of rotary positions, and counters of steps where Adam keeps two moments."""
    network = plan.network
    angles = (
        network.context * network.head_size * BYTES_OF["fp32"] if network.positions.value == "rotary" else 0
    )
    counted = sum(
        count * _COUNTER_BYTES
        for parameter, count in counts.holdings.held_by(stages)
        if parameter.num_states > 1
    )
    return angles + counted


class StepMemory:
    """Memory of the ranks of a plan that is run operator by operator.

    Args:
        plan: Whose ranks.
        counts: Of the plan.
        is_module: Whether a module is trained instead, whose autograd keeps parameters in the type of use.
    """

    def __init__(self, plan: Plan, counts: Counts, *, is_module: bool = False) -> None:
        self._plan, self._counts = plan, counts
        self._blocks = {
            block.name: _BlockMemory(plan, block, keeps_conversions=is_module) for block in plan.blocks
        }
        # What goes through the whole update is asked once, not by every rank group and pass.
        self._in_place = sums_in_place(plan.update)
        self._homes = {name: _home(plan, name) for name in plan.update.values}
        self._is_tied_at_once = plan.update.is_tied_at_once

    def of(self, number: int) -> Mapping[Moment, MemoryClasses]:
        """The most that a rank of a group needs in each part of the step, by the group's number."""
        group = self._counts.groups[number]
        params, grads, states = (table.device_bytes for table in self._counts.holdings.of(group.stages))
        constants = constant_bytes(self._plan, self._counts, group.stages)
        base = MemoryClasses(parameters=params, states=states, working=constants)
        actions = _actions(self._plan, self._counts, group.place)
        early = EarlyMemory(self._plan, actions, self._in_place)
        ahead = AheadMemory(
            self._plan, actions, {name: block.gathers for name, block in self._blocks.items()}
        )
        walk = _Walk(
            self._plan, self._blocks, base, group.stages, early, ahead, self._in_place, self._is_tied_at_once
        )
        for action, following in zip(actions, (*actions[1:], None), strict=True):
            walk.act(action, following)
        # Gradients are let go when the next step begins.
        start = replace(base, gradients=grads)
        update = _larger(start, _update(self._plan, group, start, early, self._homes))
        return {
            Moment.FORWARD: _larger(start, walk.most[Moment.FORWARD]),
            Moment.BACKWARD: walk.most[Moment.BACKWARD],
            Moment.UPDATE: update,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """A block's forward or backward pass.

    Args:
        most: What lives at most besides what lived before.
        stays: What is kept afterwards, of a forward pass.
    """

    most: MemoryClasses
    stays: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _PassOfStage:
    """The passes of all blocks of a stage, one after the other.

    Args:
        most: What lives at most besides what lived before the first.
        stays: What is kept afterwards; less than nothing after a backward pass.
    """

    most: MemoryClasses
    stays: int


class _BlockMemory:
    """What the passes of one block need, for one microbatch."""

    def __init__(self, plan: Plan, block: Block, *, keeps_conversions: bool) -> None:
        self._plan, self._block = plan, block
        self._count = OperatorCounter(
            plan.network,
            plan.axis_sizes,
            block.values,
            _weights(plan, block),
            keeps_conversions=keeps_conversions,
        )
        turns = turns_of(block)
        self._recomputed = {_tape(operator) for operator in block.recompute}
        self.gathers = GatherBytes(
            sum(self._count.size(name) for operator in block.gathers for name in operator.outputs),
            max((self._count.of(operator).scratch for operator in block.gathers), default=0),
        )
        self.forward = self._forward(turns.forward)
        self.backward = self._backward(turns.recompute, turns.backward)
        self.gradients = {
            name.removeprefix("acc:"): self._count.size(name)
            for name in block.values
            if name.startswith("acc:")
        }
        """Bytes of the sums of gradients, by parameter."""

    def _forward(self, turns: Sequence[Turn]) -> _Pass:
        block, count = self._block, self._count
        tally = _Tally()
        for name in ("in", "tokens", "targets"):
            if name in block.values:
                tally.add("activations" if name in block.kept else "working", name, count.size(name))
        self._gather(tally)
        for turn in turns:
            operator = turn.operator
            for name in operator.outputs:
                tally.add(
                    "activations" if name in block.kept else "working", name, count.made(operator, name)
                )
            needs = count.of(operator)
            tally.look(needs.scratch + needs.saved, "buffers" if operator.kind in COLLECTIVES else "working")
            is_again = _tape(operator) in self._recomputed
            tally.add("working" if is_again else "activations", _saved(operator), needs.saved)
            tally.drop(name for name in turn.dead if name not in block.kept)
        kept = [
            *(name for name in block.kept if name not in block.offloaded),
            *(_saved(operator) for operator in block.forward if _tape(operator) not in self._recomputed),
        ]
        return _Pass(most=tally.most, stays=sum(tally.size(name) for name in kept))

    def _backward(self, recompute: Sequence[Turn], backward: Sequence[Turn]) -> _Pass:
        """What a forward pass has kept lives already; what its gradients use up counts as less than nothing.

        What has waited in host memory is fetched when it begins.
        """
        block, count = self._block, self._count
        tally = _Tally()
        for name in block.offloaded:
            tally.add("working", name, count.size(name))
        if block.result:
            tally.add("working", "grad:out", count.size("grad:out"))
        self._gather(tally)
        for turn in (*recompute, *backward):
            operator = turn.operator
            for name in operator.outputs:
                if not name.startswith("acc:"):
                    tally.add("working", name, count.made(operator, name))
            needs = count.of(operator)
            tally.look(needs.scratch + needs.saved, "buffers" if operator.kind in COLLECTIVES else "working")
            tally.tie(operator)
            if operator.kind in FORWARD_OF:
                self._used_up(operator, tally)
            elif needs.saved:
                tally.add("working", _saved(operator), needs.saved)
            tally.drop(name for name in turn.dead if name not in block.kept)
        return _Pass(most=tally.most)

    def _used_up(self, operator: Operator, tally: "_Tally") -> None:
        """What was saved for a gradient that has been made."""
        for forward in self._block.forward:
            if (forward.kind, forward.parameters) == (FORWARD_OF[operator.kind], operator.parameters):
                if _tape(forward) in self._recomputed:
                    tally.drop([_saved(forward)])
                else:
                    tally.add("activations", _saved(forward), -self._count.of(forward).saved)

    def _gather(self, tally: "_Tally") -> None:
        for operator in self._block.gathers:
            for name in operator.outputs:
                tally.add("gathered", name, self._count.size(name))
            tally.look(self._count.of(operator).scratch, "buffers")


class _Tally:
    """What lives, by class, and the most that has lived."""

    def __init__(self, base: MemoryClasses | None = None) -> None:
        self._now: Counter[str] = Counter()
        self._sizes: dict[str, tuple[str, int]] = {}
        self._tied: dict[str, set[str]] = {}
        self._total = 0
        self.most = MemoryClasses()
        self._most_total = 0

    def add(self, label: str, name: str, size: int) -> None:
        """Something is made."""
        self._sizes[name] = (label, size)
        self._now[label] += size
        self._total += size

    def look(self, more: int, label: str) -> None:
        """A moment at which so much more is needed."""
        if self._total + more > self._most_total:
            self._most_total = self._total + more
            now = Counter(self._now)
            now[label] += more
            self.most = MemoryClasses(**now)

    def tie(self, operator: Operator) -> None:
        """What was summed together is pieces of one vector, which lives as long as any of them."""
        if operator.kind in _OF_ONE_VECTOR and len(operator.outputs) > 1:
            alive = set(operator.outputs)
            self._tied |= dict.fromkeys(operator.outputs, alive)

    def drop(self, names: Iterable[str]) -> None:
        """Some things are let go."""
        for name in names:
            tied = self._tied.get(name)
            if tied is None:
                self._free([name])
                continue
            tied.discard(name)
            if not tied:
                self._free([other for other, alive in self._tied.items() if alive is tied])

    def _free(self, names: Iterable[str]) -> None:
        for name in names:
            label, size = self._sizes.pop(name, ("working", 0))
            self._now[label] -= size
            self._total -= size

    def size(self, name: str) -> int:
        """Of what lives."""
        return self._sizes.get(name, ("", 0))[1]


_OF_ONE_VECTOR = frozenset({OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER})


class _Walk:
    """Goes through the actions of a rank."""

    def __init__(
        self,
        plan: Plan,
        blocks: Mapping[str, _BlockMemory],
        base: MemoryClasses,
        stages: Sequence[int],
        early: EarlyMemory,
        ahead: AheadMemory,
        staying: Collection[str],
        is_tied_at_once: bool,
    ) -> None:
        self._plan, self._blocks, self._base = plan, blocks, base
        self._is_tied_at_once = is_tied_at_once
        self._early, self._ahead = early, ahead
        # By identity: the plan keeps its values, and the same few are asked for in every pass.
        self._sizes: dict[int, int] = {}
        self._known_sites: dict[int, list[tuple[int, Block]]] = {}
        self._gradients: dict[tuple[str, int], int] = {}
        self._kept_bytes = self._gradient_bytes = 0
        self._posted = self._arriving = 0
        self._peaks: dict[tuple[Moment, int], _PassOfStage] = {}
        self.most = dict.fromkeys((Moment.FORWARD, Moment.BACKWARD), MemoryClasses())
        self._most_totals = dict.fromkeys(self.most, 0)
        self._summed: set[int] = set()
        for index, block in (site for stage in stages for site in self._sites(stage)):
            self._add_gradients(index, block, staying)

    def act(self, action: Action, following: Action | None) -> None:
        """A forward or a backward pass of one stage on one microbatch, while what the next one takes may arrive."""
        stage, sites = action.stage, self._sites(action.stage)
        self._arriving = 0 if following is None else self._taken(following)
        if action.kind is ActionKind.FORWARD:
            if self._ahead.is_idle:
                self._pass_at_once(Moment.FORWARD, stage)
            else:
                for _, block in sites:
                    passed = self._blocks[block.name].forward
                    self._enter(Moment.FORWARD, block, block.values.get("in"))
                    self._look(Moment.FORWARD, passed.most)
                    self._kept_bytes += passed.stays
            self._post(stage, stage + 1)
        elif action.kind in BACKWARD:
            is_alike = self._summed.issuperset(index for index, _ in sites)
            if self._ahead.is_idle and is_alike and not self._early.starts_in(action):
                self._pass_at_once(Moment.BACKWARD, stage)
            else:
                for index, block in reversed(sites):
                    self._leave(index, block, action)
            self._post(stage, stage - 1)

    def _leave(self, index: int, block: Block, action: Action) -> None:
        """The backward pass of one block."""
        memory = self._blocks[block.name]
        self._add_gradients(index, block)
        self._enter(Moment.BACKWARD, block, block.values.get("grad:out"))
        self._look(Moment.BACKWARD, memory.backward.most)
        self._kept_bytes -= memory.forward.stays
        scratch = self._early.leave(index, action)
        if scratch is not None:
            handed = self._size(block.values.get(block.gradient))
            self._look(Moment.BACKWARD, MemoryClasses(working=handed, buffers=scratch))

    def _pass_at_once(self, moment: Moment, stage: int) -> None:
        """All blocks of a stage, where nothing but what they keep changes on the way."""
        passed = self._peaks.get((moment, stage))
        if passed is None:
            passed = self._peaks[moment, stage] = self._pass_of_stage(moment, stage)
        self._look(moment, passed.most)
        self._kept_bytes += passed.stays

    def _pass_of_stage(self, moment: Moment, stage: int) -> "_PassOfStage":
        """The block at which most lives, the first of equals; what those before it have kept, or let go, with it."""
        stays = 0
        most: MemoryClasses | None = None
        sites = self._sites(stage)
        for _, block in sites if moment is Moment.FORWARD else reversed(sites):
            memory = self._blocks[block.name]
            local = memory.forward.most if moment is Moment.FORWARD else memory.backward.most
            found = replace(local, activations=local.activations + stays)
            if most is None or found.total > most.total:
                most = found
            stays += memory.forward.stays if moment is Moment.FORWARD else -memory.forward.stays
        assert most is not None, "a stage has blocks"
        return _PassOfStage(most=most, stays=stays)

    def _enter(self, moment: Moment, block: Block, handed: Value | None) -> None:
        """A block has its parameters, and those of the next one are gathered before it computes."""
        own = self._blocks[block.name].gathers.gathered
        self._ahead.enter()
        coming = self._ahead.coming
        local = MemoryClasses(gathered=own, working=self._size(handed), buffers=coming.scratch)
        if coming.gathered:
            self._look(moment, local)

    def _size(self, value: Value | None) -> int:
        if value is None:
            return 0
        if id(value) not in self._sizes:
            self._sizes[id(value)] = value_bytes(value, self._plan.axis_sizes)
        return self._sizes[id(value)]

    def _add_gradients(self, index: int, block: Block, some: Collection[str] | None = None) -> None:
        """Sums of gradients that a block adds to; those of some names in the update, or all."""
        if index in self._summed:
            return
        if some is None:
            self._summed.add(index)
        for name, size in self._blocks[block.name].gradients.items():
            base = f"acc:layers.{index - 1}.{name}" if block.layers else f"acc:{name}"
            full = base if base in self._plan.update.values else f"{base}#{block.name}"
            if some is None or full in some:
                key = self._sum_of(name, index), index if block.layers else 0
                self._gradient_bytes += size - self._gradients.get(key, 0)
                self._gradients[key] = size

    def _post(self, source: int, target: int) -> None:
        """What is sent to another stage lives until the step ends."""
        self._posted += self._handed(source, target)

    def _taken(self, action: Action) -> int:
        """Bytes that an action takes from another rank."""
        stage = action.stage
        match action.kind:
            case ActionKind.FORWARD:
                return self._handed(stage - 1, stage)
            case kind if kind in BACKWARD:
                return self._handed(stage + 1, stage)
            case _:
                return 0

    def _handed(self, source: int, target: int) -> int:
        """Bytes of what a stage hands to one of its neighbours on another rank."""
        pipeline = self._plan.pipeline
        if (
            not (0 <= source < pipeline.num_stages and 0 <= target < pipeline.num_stages)
            or pipeline.rank_of_stage[source] == pipeline.rank_of_stage[target]
        ):
            return 0
        sites = [block for _, block in self._sites(source)]
        block = sites[-1] if target > source else sites[0]
        return self._size(block.values[block.result if target > source else block.gradient])

    def _sum_of(self, name: str, index: int) -> str:
        """Sums of embedding and head that are one, or two."""
        return name if self._is_tied_at_once else f"{name}#{index}"

    def _look(self, moment: Moment, local: MemoryClasses) -> None:
        base, coming = self._base, self._ahead.coming.gathered
        others = self._gradient_bytes + self._kept_bytes + self._early.made + self._posted + self._arriving
        total = local.total + base.parameters + base.states + base.working + others + coming
        if total <= self._most_totals[moment]:
            return
        self._most_totals[moment] = total
        self.most[moment] = replace(
            local,
            parameters=base.parameters,
            states=base.states,
            gradients=self._gradient_bytes,
            activations=local.activations + self._kept_bytes,
            working=local.working + base.working + self._early.made,
            gathered=local.gathered + coming,
            buffers=local.buffers + self._posted + self._arriving,
        )

    def _sites(self, stage: int) -> Sequence[tuple[int, Block]]:
        """The blocks of a stage in order, with their places in the network."""
        if stage not in self._known_sites:
            self._known_sites[stage] = list(self._sites_of(stage))
        return self._known_sites[stage]

    def _sites_of(self, stage: int) -> Iterable[tuple[int, Block]]:
        plan = self._plan
        embedding, *_, head = plan.blocks
        if stage == 0:
            yield 0, embedding
        for layer, at in enumerate(plan.pipeline.stage_of_layer):
            if at == stage:
                yield 1 + layer, plan.block_of(layer)
        if stage == plan.pipeline.num_stages - 1:
            yield 1 + len(plan.pipeline.stage_of_layer), head


def _update(
    plan: Plan,
    group: RankGroup,
    base: MemoryClasses,
    early: EarlyMemory,
    homes: Mapping[str, tuple[int, ...] | None],
) -> MemoryClasses:
    """What the update needs, from the end of the backward pass on."""
    update, count = plan.update, early.count
    tally = _Tally()
    for operator in early.started:
        for name in operator.outputs:
            tally.add("working", name, count.made(operator, name))
    here = {home: home is None or not set(home).isdisjoint(group.stages) for home in set(homes.values())}
    is_here = {name: here[home] for name, home in homes.items()}
    for turn in update_turns(update, SCALARS):
        operator = turn.operator
        held = tuple(name for name in operator.inputs if is_here[name])
        if not held or (len(held) < len(operator.inputs) and operator.kind not in _OF_SOME):
            continue
        is_sent = operator.transfer is not None and _takes_part(operator, group)
        if early.is_started(operator):
            tally.drop(turn.dead)
            continue
        for name in operator.outputs:
            is_same = _is_same(plan, operator, held, is_sent)
            tally.add("working", name, 0 if is_same else count.made(operator, name))
        scratch = count.of(replace(operator, inputs=held)).scratch + _fetched(plan, operator)
        if operator.kind not in COLLECTIVES or is_sent:
            tally.look(scratch, "buffers" if operator.kind in COLLECTIVES else "working")
        if is_sent:
            tally.tie(operator)
        tally.drop(turn.dead)
    most = tally.most
    return replace(base, working=base.working + most.working, buffers=most.buffers)


def _fetched(plan: Plan, operator: Operator) -> int:
    """States that wait in host memory, while the optimizer works on them; those of an outer optimizer among them."""
    if operator.kind is not OperatorKind.UPDATE:
        return 0
    return plan.parameters[operator.parameters[0]].waiting_bytes(Table.STATES, plan.axis_sizes)


_OF_SOME = frozenset({OperatorKind.SUM, OperatorKind.NORM_SQUARE})
"""Operators of an update that ranks run with the inputs that they have."""


def _is_same(plan: Plan, operator: Operator, held: Sequence[str], is_sent: bool) -> bool:
    """Whether what an operator of the update gives is what it has taken."""
    match operator.kind:
        case OperatorKind.UPDATE:
            # In place of a piece that lives as long as what was made of it.
            has_master = plan.parameters[operator.parameters[0]].has_master
            return not has_master and operator.inputs[1] == f"param:{operator.parameters[0]}"
        case OperatorKind.SET_APART:
            return True
        case OperatorKind.SUM:
            return len(held) == 1 or plan.update.is_tied_at_once
        case kind:
            return kind in COLLECTIVES and not is_sent


def _takes_part(operator: Operator, group: RankGroup) -> bool:
    assert operator.transfer is not None, "asked of collectives"
    return not operator.transfer.stages or bool(set(operator.transfer.stages) & set(group.stages))


def _home(plan: Plan, name: str) -> tuple[int, ...] | None:
    """The stages that have a value of the update; None for all."""
    base = name.partition("@")[0]
    if base in SCALARS:
        return None
    base = base.partition(":")[2]
    for mark in ("~", "/"):
        base = base.partition(mark)[0]
    parameter, _, use = base.partition("#")
    if use == EMBEDDING:
        return (0,)
    if use == HEAD:
        return (plan.pipeline.num_stages - 1,)
    return tuple(plan.parameters[parameter].stages)


def _actions(plan: Plan, counts: Counts, place: int) -> Sequence[Action]:
    """What a rank does with all its microbatches."""
    work = plan.work
    if counts.actions is None:
        # Between the second and the last microbatch nothing new lives.
        return [
            Action(kind=kind, stage=0, microbatch=number)
            for number in sorted({0, min(1, work.microbatches - 1), work.microbatches - 1})
            for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
        ]
    return [
        replace(action, microbatch=part * work.microbatches_per_part + action.microbatch)
        for part in range(work.parts_per_replica)
        for action in counts.actions[place]
    ]


def _weights(plan: Plan, block: Block) -> Mapping[str, tuple[int, str]]:
    """By name in the block: bytes of each parameter as it lies in use, and the type that it is kept in."""
    found = {}
    names = {name for operator in block.forward for name in operator.parameters}
    for name in names:
        full = f"layers.{block.layers[0]}.{name}" if block.layers else name
        parameter = plan.parameters[full]
        dtype = parameter.dtypes[Table.PARAMS.value]
        elements = local_elements(parameter.dims, parameter.shape, parameter.computed, plan.axis_sizes)
        found[name] = (elements * BYTES_OF[dtype], dtype)
    return found


def _tape(operator: Operator) -> tuple[OperatorKind, tuple[str, ...]]:
    return operator.kind, operator.parameters


def _saved(operator: Operator) -> str:
    """A name for what an operator's gradient is made from."""
    return f"saved:{operator.outputs[0]}"


def _larger(first: MemoryClasses, second: MemoryClasses) -> MemoryClasses:
    return max(first, second, key=lambda found: found.total)
