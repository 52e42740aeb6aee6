"""What happens once a step on one rank: sums over ranks, the norm, the optimizer on the stored pieces, averages."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.plan.bound import Averaging
from trimtab.plan.physical import Plan
from trimtab.plan.placements import Placements
from trimtab.plan.program import Operator, OperatorKind, Parameter, Phase
from trimtab.runtime.lowering.blocks import OperatorRunner, Scope
from trimtab.runtime.lowering.extents import Layouts
from trimtab.runtime.lowering.sites import Stages, update_holders
from trimtab.runtime.lowering.types import DTYPES
from trimtab.runtime.optimizers import FUSED_DEVICES, OptimizerSettings, is_decayed


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
    """The optimizer of one rank, on the pieces that it updates: flat fp32 vectors, one for each parameter."""

    def __init__(self, settings: OptimizerSettings) -> None:
        self._settings = settings
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._vectors: dict[str, torch.nn.Parameter] = {}
        self._masters: dict[str, Tensor] = {}

    def step(self, parameter: Parameter, piece: Tensor, gradient: Tensor, lr: float) -> Tensor:
        """The updated piece; a piece in fp32 is updated in place."""
        name, vector = parameter.name, piece.reshape(-1)
        if parameter.has_master:
            vector = self._masters.setdefault(name, vector.float())
        if name not in self._optimizers:
            self._vectors[name] = torch.nn.Parameter(vector)
            decay = self._settings.weight_decay if is_decayed(parameter.shape) else 0.0
            groups = [{"params": [self._vectors[name]], "weight_decay": decay}]
            self._optimizers[name] = self._settings.build(groups, fused=vector.device.type in FUSED_DEVICES)
        held = self._vectors[name]
        held.data = vector  # What is updated may be a new view of the parameter in every step.
        held.grad = gradient.reshape(-1).to(vector.dtype)
        for group in self._optimizers[name].param_groups:
            group["lr"] = lr
        self._optimizers[name].step()
        held.grad = None
        return vector.to(piece.dtype).view(piece.shape)


class OuterOptimizer:
    """Puts together the parameters of replicas that have trained apart.

    ``mean`` takes the mean. ``nesterov(momentum)`` takes the way from the last meeting to the mean for the negative
    gradient of SGD with Nesterov momentum at a rate of 1 (Douillard et al. 2023).
    """

    def __init__(self, averages: Mapping[str, Mapping[str, Averaging]]) -> None:
        self._averages = averages
        self._anchors: dict[tuple[str, str], Tensor] = {}
        self._momenta: dict[tuple[str, str], Tensor] = {}

    def begin(self, name: str, piece: Tensor) -> None:
        """Remember the first weights of a parameter."""
        for axis, averaging in self._averages.get(name, {}).items():
            if averaging.outer == "nesterov":
                self._anchors[name, axis] = piece.clone()
                self._momenta[name, axis] = torch.zeros_like(piece)

    def meet(self, name: str, axis: str, mean: Tensor) -> Tensor:
        """The weights to go on with."""
        averaging = self._averages[name][axis]
        if averaging.outer != "nesterov":
            return mean
        anchor, momentum = self._anchors[name, axis], self._momenta[name, axis]
        gradient = anchor - mean
        momentum.mul_(averaging.momentum).add_(gradient)
        anchor -= gradient + averaging.momentum * momentum
        return anchor.clone()


class Updater:
    """Runs the update of a plan on one rank."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        rules: Rules,
        layouts: Layouts,
        runner: OperatorRunner,
        read: Callable[[Tensor], float] = float,
    ) -> None:
        self._plan, self._rank, self._rules, self._runner, self._read = plan, rank, rules, runner, read
        self._stages = Stages(plan)
        self._places = layouts.places[rank]
        self._holders = update_holders(plan)
        self._optimizer = PieceOptimizer(rules.optimizer)
        self._outer = OuterOptimizer(plan.bound.averages)
        self._final = _final_names(plan)

    def begin(self, stored: Mapping[str, Tensor]) -> None:
        """Tell it the first weights."""
        for name, piece in stored.items():
            self._outer.begin(name, piece)

    def run(
        self,
        stored: dict[str, Tensor],
        added_up: Mapping[str, Tensor],
        *,
        loss: Tensor,
        num_tokens: int,
        step: int,
    ) -> Outcome:
        """Apply one step to the stored pieces.

        Args:
            stored: Pieces of parameters by name; replaced by the updated ones.
            added_up: Gradients summed over the rank's microbatches, by their name in the update.
            loss: Sum of the rank's token losses.
            num_tokens: Targets that the rank has seen.
            step: Counted from 0.
        """
        values = self._plan.update.values
        scope = Scope(site=None, microbatch=0, phase=Phase.UPDATE, values=values, tensors={})
        scope.tensors |= {f"param:{name}": piece for name, piece in stored.items()}
        scope.tensors |= {name: tensor.to(DTYPES[values[name].dtype]) for name, tensor in added_up.items()}
        scope.tensors |= {"loss": loss, "num_tokens": torch.tensor(float(num_tokens))}
        for operator in self._plan.update.operators:
            if operator.kind is OperatorKind.NORM_SQUARE or self._takes_part(operator):
                self._run(operator, scope, step)
        for name in stored:
            stored[name] = scope.tensors[self._plan.update.results[name]]
        return self._outcome(scope)

    def _takes_part(self, operator: Operator) -> bool:
        holds = [self._rank in self._holders[name] for name in operator.inputs]
        return any(holds) if operator.kind is OperatorKind.SUM else all(holds)

    def _run(self, operator: Operator, scope: Scope, step: int) -> None:
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
        members = self._holders[operator.inputs[0]].intersection(
            *(self._holders[name] for name in operator.inputs)
        )
        if operator.transfer is not None and operator.transfer.stages:
            members = frozenset(
                rank for rank in members if self._stages.holds(rank, operator.transfer.stages)
            )
            if self._rank not in members:
                scope.tensors.update(
                    zip(operator.outputs, (scope.tensors[name] for name in operator.inputs), strict=True)
                )
                return
        self._runner.run_one(operator, scope, members)

    def _norm_square(self, operator: Operator, scope: Scope) -> Tensor:
        """Sum of squares of the own gradient elements, each logical one counted by the first rank that has it."""
        total = torch.zeros((), dtype=torch.float64)
        for name in operator.inputs:
            parameter = self._plan.parameters[_parameter_of(name)]
            if name in scope.tensors and self._counts(parameter, scope.values[name].placements):
                total += scope.tensors[name].double().square().sum()
        return total.float()

    def _counts(self, parameter: Parameter, placements: Placements) -> bool:
        """Whether this rank is the first of those that hold the same elements."""
        differing = {axis for axis, _ in placements} | {self._plan.pipeline.axis}
        is_first = all(place == 0 for axis, place in self._places.items() if axis not in differing)
        return is_first and self._stages.holds(self._rank, parameter.stages[:1])

    def _update(self, operator: Operator, scope: Scope, step: int) -> None:
        gradient, piece = (scope.tensors[name] for name in operator.inputs)
        parameter = self._plan.parameters[operator.parameters[0]]
        scale = self._scale(scope)
        if scale is not None:
            rate = self._rules.learning_rate(step)
            piece = self._optimizer.step(parameter, piece, gradient * scale, rate)
        scope.tensors[operator.outputs[0]] = piece

    def _scale(self, scope: Scope) -> float | None:
        """One factor that turns the sum of gradients into the clipped mean; None without a target."""
        num_tokens = self._number("num_tokens", scope)
        if not num_tokens:
            return None
        norm = self._norm(scope)
        if norm is None or self._rules.clip is None or norm <= self._rules.clip:
            return 1.0 / num_tokens
        return self._rules.clip / norm / num_tokens

    def _norm(self, scope: Scope) -> float | None:
        num_tokens = self._number("num_tokens", scope)
        if "norm_square" not in scope.tensors or not num_tokens:
            return None
        return math.sqrt(self._number("norm_square", scope)) / num_tokens

    def _number(self, name: str, scope: Scope) -> float:
        return self._read(scope.tensors[self._final.get(name, name)])

    def _average(self, operator: Operator, scope: Scope, step: int) -> None:
        if (step + 1) % operator.every:
            scope.tensors.update(
                zip(operator.outputs, (scope.tensors[name] for name in operator.inputs), strict=True)
            )
            return
        self._runner.make(operator, scope, self._holders[operator.inputs[0]])
        assert operator.transfer is not None, "averages are sent"
        (axis,) = operator.transfer.axes
        for output in operator.outputs:
            name = output.partition(":")[2].partition("~")[0]
            scope.tensors[output] = self._outer.meet(name, axis, scope.tensors[output])

    def _outcome(self, scope: Scope) -> Outcome:
        num_tokens = self._number("num_tokens", scope)
        holds_loss = self._rank in self._holders["loss"]
        return Outcome(
            num_tokens=round(num_tokens),
            loss=self._number("loss", scope) / num_tokens if holds_loss and num_tokens else None,
            norm=self._norm(scope),
        )


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
