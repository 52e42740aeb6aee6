"""What happens once a step on one rank: sums over ranks, the norm, the optimizer on the stored pieces, averages."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.plan.bound import Averaging
from trimtab.plan.layout import ALIGNMENT
from trimtab.plan.lifetimes import Turn, norm_piece, update_turns
from trimtab.plan.physical import Plan
from trimtab.plan.placements import Placements
from trimtab.plan.program import Operator, OperatorKind, Parameter, Phase
from trimtab.plan.tables import Table
from trimtab.runtime.lowering.blocks import OperatorRunner
from trimtab.runtime.lowering.early_sums import EarlySums, Left
from trimtab.runtime.lowering.extents import Layouts
from trimtab.runtime.lowering.host_memory import HostMemory
from trimtab.runtime.lowering.scopes import Scope
from trimtab.runtime.lowering.share_sums import Apart, Leaves, ShareSums
from trimtab.runtime.lowering.sites import Stages, sites_of, update_holders
from trimtab.runtime.lowering.summing import Summand, Summing
from trimtab.runtime.lowering.types import DTYPES
from trimtab.runtime.norms import BinnedSum, binned_sum_of_squares
from trimtab.runtime.optimizers import FUSED_DEVICES, AdamW, OptimizerSettings, Vector, is_decayed


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Constants of the run.

    Args:
        optimizer: Its settings.
        learning_rate: Of a step, counted from 0.
        clip: Largest gradient norm; None for no clipping.
    """

    optimizer: OptimizerSettings
    learning_rate: Callable[[int], float]
    clip: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a rank knows of a step.

    Args:
        num_tokens: Targets of the whole batch.
        loss: Mean over them in nats; None on ranks that do not hold the last stage.
        norm: Of the whole gradient of the mean loss, before it is clipped; None if the plan does not make it.
    """

    num_tokens: int
    loss: float | None
    norm: float | None


class PieceOptimizer:
    """The optimizer of one rank, on the pieces that it updates: flat fp32 vectors, one for each parameter.

    A vector whose elements are no multiple of 16 is updated in a longer copy: fused CPU kernels treat what is left after
    their last vector register apart, and so would tell where a tensor has been cut.

    Args:
        settings: Which optimizer.
        updated: The parameters of the rank with the elements of their pieces.
        host: Where states wait that are not kept on the device; each parameter's are fetched for its update.

    Attributes:
        masters: fp32 copies of parameters that are kept in a narrower type, flat; write to them to load.
        states: By name of the state and of the parameter, flat; write to them to load.
        is_new: Whether masters are to be taken from the pieces of the first step.
    """

    def __init__(
        self, settings: OptimizerSettings, updated: Mapping[str, tuple[Parameter, int]], host: HostMemory
    ) -> None:
        self.is_new = True
        self._host = host
        self._away = frozenset(name for name, (parameter, _) in updated.items() if is_away(parameter))
        numels = {name: numel for name, (_, numel) in updated.items()}
        self.masters = {
            name: self._zeros(name, numels[name])
            for name, (parameter, _) in updated.items()
            if parameter.has_master
        }
        self.states = {
            state: {name: self._zeros(name, numel) for name, numel in numels.items()}
            for state in settings.states
        }
        self._settings = settings
        self._decays = {
            name: settings.weight_decay if is_decayed(parameter.shape) else 0.0
            for name, (parameter, _) in updated.items()
        }
        device = torch.empty(0).device
        self._is_fused = device.type in FUSED_DEVICES
        # Without numbers, too, steps are counted: torch reads the count of an optimizer that is not fused.
        counting = "cpu" if device.type == "meta" else device
        self._counts = {
            name: torch.zeros((), dtype=torch.float32, device=counting)
            for name in numels
            if isinstance(settings, AdamW)
        }

    def _zeros(self, name: str, numel: int) -> Tensor:
        return self._host.zeros(numel) if name in self._away else torch.zeros(numel)

    def step(self, name: str, piece: Tensor, gradient: Tensor, *, scale: float, lr: float) -> Tensor:
        """The updated piece; a piece in fp32 may be updated in place.

        Args:
            name: Of the parameter.
            piece: Of its weights.
            gradient: Sum, of the same shape.
            scale: Turns a sum into the clipped mean.
            lr: Rate of this step.
        """
        numel, weights = piece.numel(), piece.reshape(-1)
        if name in self.masters:
            if self.is_new:
                self.masters[name].copy_(weights)
            weights = self._fetched(name, self.masters[name])
        held = [self._fetched(name, tensors[name]) for tensors in self.states.values()]
        vector = Vector(
            weights=_padded_vector(weights),
            gradient=_padded_vector(gradient) * scale,
            states=[_padded_vector(state) for state in held],
            count=self._counts.get(name),
        )
        self._settings.apply(vector, decay=self._decays[name], lr=lr, fused=self._is_fused)
        updated = vector.weights
        if numel % ALIGNMENT:
            for state, padded in zip(held, vector.states, strict=True):
                state.copy_(padded[:numel])
            updated = weights.copy_(updated[:numel])
        if name in self._away:
            self._put_back(name, held, updated)
        return updated.to(piece.dtype).view(piece.shape)

    def _fetched(self, name: str, tensor: Tensor) -> Tensor:
        return self._host.fetch(tensor) if name in self._away else tensor

    def _put_back(self, name: str, states: Sequence[Tensor], weights: Tensor) -> None:
        for tensors, state in zip(self.states.values(), states, strict=True):
            self._host.put(tensors[name], state)
        if name in self.masters:
            self._host.put(self.masters[name], weights)

    def begin(self) -> None:
        """Forget all steps."""
        self.is_new = True
        self.num_steps = 0
        for tensors in self.states.values():
            for tensor in tensors.values():
                tensor.zero_()

    @property
    def num_steps(self) -> int:
        """Steps applied so far, as bias correction counts them; 0 for an optimizer that does not."""
        counts = {int(count) for count in self._counts.values()}
        assert len(counts) <= 1, counts
        return counts.pop() if counts else 0

    @num_steps.setter
    def num_steps(self, num_steps: int) -> None:
        for count in self._counts.values():
            count.fill_(num_steps)

    def held(self) -> Mapping[str, list[Tensor]]:
        """What it keeps on the device between steps: states, master copies among them, and torch's counters of steps."""
        states = [
            tensor
            for tensors in (self.masters, *self.states.values())
            for name, tensor in tensors.items()
            if name not in self._away
        ]
        return {"states": states, "constants": list(self._counts.values())}


def is_away(parameter: Parameter) -> bool:
    """Whether the states of a parameter wait in the host's memory."""
    return Table.STATES.value in parameter.offloaded


def _padded_vector(piece: Tensor) -> Tensor:
    """In fp32 and a multiple of 16 elements long; the piece itself where it is so."""
    flat = piece.reshape(-1).float()
    missing = -flat.numel() % ALIGNMENT
    return functional.pad(flat, (0, missing)) if missing else flat


class OuterOptimizer:
    """Puts together the parameters of replicas that have trained apart.

    ``mean`` takes the mean. ``nesterov(momentum)`` takes the way from the last meeting to the mean for the negative
    gradient of SGD with Nesterov momentum at a rate of 1 (Douillard et al. 2023).

    Args:
        averages: How, by parameter and axis.
        host: Where what it keeps waits of some parameters.
        away: Of which.
    """

    def __init__(
        self,
        averages: Mapping[str, Mapping[str, Averaging]],
        host: HostMemory | None = None,
        away: Collection[str] = (),
    ) -> None:
        self._averages, self._host, self._away = averages, host or HostMemory(), frozenset(away)
        self.anchors: dict[tuple[str, str], Tensor] = {}
        self.momenta: dict[tuple[str, str], Tensor] = {}

    def axes(self, name: str) -> list[str]:
        """Over which replicas of a parameter keep an anchor and a momentum."""
        averages = self._averages.get(name, {})
        return [axis for axis, averaging in averages.items() if averaging.outer == "nesterov"]

    def begin(self, name: str, piece: Tensor) -> None:
        """Remember the first weights of a parameter."""
        for axis in self.axes(name):
            zeros = torch.zeros_like(piece)
            is_away = name in self._away
            self.anchors[name, axis] = self._host.keep(piece) if is_away else piece.clone()
            self.momenta[name, axis] = self._host.keep(zeros) if is_away else zeros

    def meet(self, name: str, axis: str, mean: Tensor) -> Tensor:
        """The weights to go on with."""
        averaging = self._averages[name][axis]
        if averaging.outer != "nesterov":
            return mean
        anchor, momentum = self.anchors[name, axis], self.momenta[name, axis]
        if name in self._away:
            anchor, momentum = self._host.fetch(anchor), self._host.fetch(momentum)
        gradient = anchor - mean
        momentum.mul_(averaging.momentum).add_(gradient)
        anchor -= gradient + averaging.momentum * momentum
        if name in self._away:
            self._host.put(self.anchors[name, axis], anchor)
            self._host.put(self.momenta[name, axis], momentum)
        return anchor.clone()

    def held(self) -> list[Tensor]:
        """What it keeps on the device between steps."""
        kept = (*self.anchors.items(), *self.momenta.items())
        return [tensor for (name, _), tensor in kept if name not in self._away]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reduced:
    """A step whose sums are there.

    Args:
        scope: Values of the update so far.
        apart: Gradients whose shares have not all met; none that is read any more.
        step: Its number.
    """

    scope: Scope
    apart: dict[str, Apart]
    step: int


class Updater:
    """Runs the update of a plan on one rank.

    Args:
        plan: Whose update.
        rank: Who runs it.
        rules: Of the run.
        layouts: Extents on the mesh.
        runner: Of operators.
        host: Where states wait that are not kept on the device.
        sums: Adds shares in their fixed tree; None adds in the order of the backend.
        read: The number in a tensor of one element.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        rules: Rules,
        layouts: Layouts,
        runner: OperatorRunner,
        host: HostMemory,
        sums: ShareSums | None = None,
        read: Callable[[Tensor], float] = float,
    ) -> None:
        self._plan, self._rank, self._rules, self._runner, self._sums = plan, rank, rules, runner, sums
        self._read = read
        self._stages = Stages(plan)
        self._places = layouts.places[rank]
        self.holders = update_holders(plan)
        updates = [
            operator
            for operator in plan.update.operators
            if operator.kind is OperatorKind.UPDATE and self._takes_part(operator)
        ]
        values = plan.update.values
        self.optimizer = PieceOptimizer(
            rules.optimizer,
            {
                operator.parameters[0]: (
                    plan.parameters[operator.parameters[0]],
                    layouts.numel(values[operator.outputs[0]], rank),
                )
                for operator in updates
            },
            host,
        )
        away = [name for name, parameter in plan.parameters.items() if is_away(parameter)]
        self.outer = OuterOptimizer(plan.bound.averages, host, away)
        self._summing = Summing(plan, runner.gatherings, sums, self.holders)
        self._final = _final_names(plan)
        self._met = _met_axes(plan)
        self.parts_of_tied = _parts_of_tied(plan)
        self._turns = update_turns(plan.update, {*self._final, *self._final.values()})
        kinds = [turn.operator.kind for turn in self._turns]
        self._applies_from = kinds.index(OperatorKind.UPDATE) if OperatorKind.UPDATE in kinds else len(kinds)
        self._reduced: _Reduced | None = None
        self.is_applying = False

    def begin(self, stored: Mapping[str, Tensor]) -> None:
        """Tell it the first weights, and forget all steps."""
        self.forget()
        self.optimizer.begin()
        for name, piece in stored.items():
            self.outer.begin(name, piece)

    def held(self) -> Mapping[str, list[Tensor]]:
        """What is kept between steps beside parameters and gradients, by class."""
        kept = self.optimizer.held()
        return {**kept, "states": [*kept["states"], *self.outer.held()]}

    def run(
        self,
        stored: dict[str, Tensor],
        added_up: Mapping[str, Tensor],
        *,
        loss: Tensor,
        num_tokens: int,
        step: int,
        leaves: Mapping[str, Leaves],
        agree: Callable[[Outcome], None] = lambda outcome: None,
        early: EarlySums | None = None,
    ) -> Outcome:
        """Take the sums of one step, and apply it to the stored pieces.

        Args:
            stored: Pieces of parameters by name; replaced by the updated ones.
            added_up: Gradients summed over the rank's microbatches, by their name in the update.
            loss: Sum of the rank's token losses.
            num_tokens: Targets that the rank has seen.
            step: Counted from 0.
            leaves: Instead of ``added_up`` and ``loss``, where shares are added in their fixed tree.
            agree: Called when the sums are there and before anything is changed; what it raises leaves a step that
                ``apply`` can finish.
            early: Sums that have been started; each is waited for at its place.
        """
        self.forget()
        values = self._plan.update.values
        scope = Scope(site=None, microbatch=0, phase=Phase.UPDATE, values=values, tensors={})
        scope.tensors |= {f"param:{name}": piece for name, piece in stored.items()}
        scope.tensors |= {"loss": loss, "num_tokens": torch.tensor(float(num_tokens))}
        apart: dict[str, Apart] = {}
        lefts: dict[str, Left] = {**added_up, **leaves}
        for name, left in lefts.items():
            if early is not None and early.has_taken(name):
                continue
            _note(name, self.taken_up(name, left), apart, scope)
        reduced = _Reduced(scope=scope, apart=apart, step=step)
        self._run_turns(self._turns[: self._applies_from], reduced, early)
        self._reduced = reduced
        agree(self._outcome(scope))
        return self.apply(stored)

    @property
    def reduced_step(self) -> int | None:
        """The step whose sums are there and that is not applied; None if there is none."""
        return None if self._reduced is None else self._reduced.step

    def apply(self, stored: dict[str, Tensor]) -> Outcome:
        """Finish the step whose sums are there; until it returns, ``is_applying`` stays true."""
        assert self._reduced is not None, "sums come before the update"
        reduced, self._reduced = self._reduced, None
        self.is_applying = True
        self._run_turns(self._turns[self._applies_from :], reduced)
        for name in stored:
            stored[name] = reduced.scope.tensors[self._plan.update.results[name]]
        outcome = self._outcome(reduced.scope)
        if outcome.num_tokens:
            self.optimizer.is_new = False
        self.is_applying = False
        return outcome

    def forget(self) -> None:
        """A step that was interrupted is over."""
        self._reduced, self.is_applying = None, False

    def _run_turns(self, turns: Sequence[Turn], reduced: _Reduced, early: EarlySums | None = None) -> None:
        for turn in turns:
            summed = early.joined(turn.operator) if early is not None else None
            if summed is None:
                self._take(turn.operator, reduced.scope, reduced.apart, reduced.step)
            else:
                self._put(turn.operator, summed, reduced.apart, reduced.scope)
            for name in turn.dead:
                reduced.scope.tensors.pop(name, None)
                reduced.apart.pop(name, None)

    def taken_up(self, name: str, left: Left) -> Summand:
        """What microbatches have left of a gradient, as the update begins with it."""
        dtype = DTYPES[self._plan.update.values[name].dtype]
        if isinstance(left, Tensor):
            return left.to(dtype)
        assert self._sums is not None, "shares are told apart"
        if name not in self.parts_of_tied:
            self._sums.tree.fold(left)
        typed = {key: tensor.to(dtype) for key, tensor in left.items()}
        apart = Apart(by_key=typed, met=self._met.get(name, frozenset()))
        return apart if name in self.parts_of_tied else self._sums.folded(apart)

    def _take(self, operator: Operator, scope: Scope, apart: dict[str, Apart], step: int) -> None:
        if operator.kind is not OperatorKind.NORM_SQUARE and not self._takes_part(operator):
            return
        if any(name in apart for name in operator.inputs):
            self._run_apart(operator, scope, apart, step)
        else:
            self._run(operator, scope, step)

    def _put(
        self, operator: Operator, summed: Sequence[Summand], apart: dict[str, Apart], scope: Scope
    ) -> None:
        """What an operator has made beside the backward pass."""
        self._runner.begin(scope, operator)
        for name, found in zip(operator.outputs, summed, strict=True):
            _note(name, found, apart, scope)
        if all(name in scope.tensors for name in operator.outputs):
            self._runner.tell(scope, operator)

    # Shares that have not all met.

    def _run_apart(self, operator: Operator, scope: Scope, apart: dict[str, Apart], step: int) -> None:
        """An operator on every subtree; a sum over ranks that have different shares brings them together."""
        assert self._sums is not None, "shares are told apart"
        inputs = [apart[name] for name in operator.inputs if name in apart]
        if self._sums.adds(operator):
            for name, summed in zip(operator.outputs, self._summing.sum(operator, inputs), strict=True):
                _note(name, summed, apart, scope)
            return
        (met,) = {leaves.met for leaves in inputs}
        found: list[Leaves] = [{} for _ in operator.outputs]
        for key in inputs[0].by_key:
            of_key = Scope(
                site=None,
                microbatch=0,
                phase=Phase.UPDATE,
                values=scope.values,
                tensors={name: apart[name].by_key[key] for name in operator.inputs if name in apart},
            )
            self._run(operator, of_key, step)
            for by_key, name in zip(found, operator.outputs, strict=True):
                by_key[key] = of_key.tensors[name]
        for name, by_key in zip(operator.outputs, found, strict=True):
            leaves = Apart(by_key=by_key, met=met)
            _note(name, leaves if name in self.parts_of_tied else self._sums.folded(leaves), apart, scope)

    # One operator.

    def _takes_part(self, operator: Operator) -> bool:
        holds = [self._rank in self.holders[name] for name in operator.inputs]
        return any(holds) if operator.kind is OperatorKind.SUM else all(holds)

    def _run(self, operator: Operator, scope: Scope, step: int) -> None:
        self._runner.begin(scope, operator)
        match operator.kind:
            case OperatorKind.SET_APART:
                scope.tensors[operator.outputs[0]] = scope.tensors[operator.inputs[0]]
            case OperatorKind.NORM_SQUARE:
                scope.tensors[operator.outputs[0]] = self._norm_square(operator, scope)
            case OperatorKind.SUM if not all(name in scope.tensors for name in operator.inputs):
                (own,) = [scope.tensors[name] for name in operator.inputs if name in scope.tensors]
                scope.tensors[operator.outputs[0]] = own
            case OperatorKind.UPDATE:
                self._update(operator, scope, step)
            case OperatorKind.AVERAGE:
                self._average(operator, scope, step)
            case _:
                self._collect(operator, scope)
                return
        self._runner.tell(scope, operator)

    def _collect(self, operator: Operator, scope: Scope) -> None:
        """A sum, a gather or a slice; of a sum over two stages only the ranks of these take part."""
        members = self._summing.members(operator)
        if self._rank not in members:
            scope.tensors.update(
                zip(operator.outputs, (scope.tensors[name] for name in operator.inputs), strict=True)
            )
            return
        if operator.inputs == ("norm_square",) and self._sums is not None:
            self._add_limbs(operator, scope, members)
            return
        self._runner.run_one(operator, scope, members)

    def _norm_square(self, operator: Operator, scope: Scope) -> Tensor:
        """Sum of squares of the own gradient elements, each logical one counted by the first rank that has it.

        Where bits must not depend on the layout, as the limbs of an exact sum: [21], int64.
        """
        own = [
            scope.tensors[name]
            for name in operator.inputs
            if name in scope.tensors
            and self._counts(self._plan.parameters[_parameter_of(name)], scope.values[name].placements)
        ]
        if self._sums is not None:
            exact = sum((binned_sum_of_squares(x.float().reshape(-1)) for x in own), BinnedSum())
            return torch.tensor(exact.to_limbs(), dtype=torch.int64)
        total = torch.zeros((), dtype=torch.float64)
        for gradient in own:
            for part in torch.split(gradient.reshape(-1), norm_piece(gradient.numel())):
                total += torch.linalg.vector_norm(part, dtype=torch.float64).square()
        return total.float()

    def _add_limbs(self, operator: Operator, scope: Scope, members: frozenset[int]) -> None:
        """The exact sum of squares over ranks: whole numbers, whose order of addition has no part in the sum."""
        gathering = self._runner.gatherings.of(operator, scope, members)
        (source,), (target,) = operator.inputs, operator.outputs
        limbs = scope.tensors[source]
        if len(gathering.members) > 1:
            limbs = self._runner.gatherings.line(gathering).all_reduce(limbs.clone(), "sum")
        scope.tensors[target] = limbs

    def _counts(self, parameter: Parameter, placements: Placements) -> bool:
        """Whether this rank is the first of those that hold the same elements."""
        differing = {axis for axis, _ in placements} | {self._plan.pipeline.axis}
        is_first = all(place == 0 for axis, place in self._places.items() if axis not in differing)
        return is_first and self._stages.holds(self._rank, parameter.stages[:1])

    def _update(self, operator: Operator, scope: Scope, step: int) -> None:
        gradient, piece = (scope.tensors[name] for name in operator.inputs)
        scale = self._scale(scope)
        if scale is not None:
            rate = self._rules.learning_rate(step)
            piece = self.optimizer.step(operator.parameters[0], piece, gradient, scale=scale, lr=rate)
        scope.tensors[operator.outputs[0]] = piece

    def _scale(self, scope: Scope) -> float | None:
        """One factor that turns the sum of gradients into the clipped mean; None for a step that is not applied.

        Without a target, or with a loss or a gradient that is not finite.
        """
        num_tokens = self._number("num_tokens", scope)
        if not num_tokens:
            return None
        norm = self._norm(scope)
        if norm is not None and not math.isfinite(norm):
            return None
        if norm is None or self._rules.clip is None or norm <= self._rules.clip:
            return 1.0 / num_tokens
        return self._rules.clip / norm / num_tokens

    def _norm(self, scope: Scope) -> float | None:
        num_tokens = self._number("num_tokens", scope)
        if "norm_square" not in scope.tensors or not num_tokens:
            return None
        return math.sqrt(self._number("norm_square", scope)) / num_tokens

    def _number(self, name: str, scope: Scope) -> float:
        found = scope.tensors[self._final.get(name, name)]
        return BinnedSum.from_limbs(found.tolist()).to_float() if found.dim() else self._read(found)

    def _average(self, operator: Operator, scope: Scope, step: int) -> None:
        if (step + 1) % operator.every:
            scope.tensors.update(
                zip(operator.outputs, (scope.tensors[name] for name in operator.inputs), strict=True)
            )
            return
        self._runner.make(operator, scope, self.holders[operator.inputs[0]])
        assert operator.transfer is not None, "averages are sent"
        (axis,) = operator.transfer.axes
        for output in operator.outputs:
            name = output.partition(":")[2].partition("~")[0]
            scope.tensors[output] = self.outer.meet(name, axis, scope.tensors[output])

    def _outcome(self, scope: Scope) -> Outcome:
        num_tokens = self._number("num_tokens", scope)
        holds_loss = self._rank in self.holders["loss"]
        return Outcome(
            num_tokens=round(num_tokens),
            loss=self._number("loss", scope) / num_tokens if holds_loss and num_tokens else None,
            norm=self._norm(scope),
        )


def _note(name: str, found: Summand, apart: dict[str, Apart], scope: Scope) -> None:
    if isinstance(found, Apart):
        apart[name] = found
    else:
        scope.tensors[name] = found


def _parameter_of(gradient: str) -> str:
    """The parameter that a value of the update is a gradient of: ``acc:x#head~1`` is one of ``x``."""
    base = gradient.partition(":")[2]
    for mark in ("#", "~", "@", "/"):
        base = base.partition(mark)[0]
    return base


def _final_names(plan: Plan) -> Mapping[str, str]:
    """What each scalar of the step is called when it has been summed."""
    moved: dict[str, str] = {}
    for operator in plan.update.operators:
        if operator.transfer is not None:
            moved |= zip(operator.inputs, operator.outputs, strict=True)
    found = {}
    for name in ("num_tokens", "loss", "norm_square"):
        last = name
        while last in moved:
            last = moved[last]
        found[name] = last
    return found


def _parts_of_tied(plan: Plan) -> frozenset[str]:
    """What embedding and head add to a matrix that they share: put together in each share, before shares are added."""
    return frozenset(
        name
        for operator in plan.update.operators
        if operator.kind is OperatorKind.SUM or (operator.transfer is not None and operator.transfer.stages)
        for name in operator.inputs
    )


def _met_axes(plan: Plan) -> Mapping[str, frozenset[str]]:
    """By name in the update: axes over which ranks have given each other gradients in the backward pass."""
    values, found = plan.update.values, {}
    for site in sites_of(plan):
        met: dict[str, frozenset[str]] = {}
        for operator in site.block.backward:
            if operator.kind is OperatorKind.REDUCE_SCATTER and operator.transfer is not None:
                met |= dict.fromkeys(operator.outputs, frozenset(operator.transfer.axes))
            elif operator.kind is OperatorKind.ACCUMULATE and operator.inputs[0] in met:
                full = f"acc:{site.full_name(operator.outputs[0].removeprefix('acc:'))}"
                found[full if full in values else f"{full}#{site.block.name}"] = met[operator.inputs[0]]
    return found
