"""Keeps what a rank computes, so that it can be compared with what one device computes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind, Phase, Value
from trimtab.plan.tables import Table
from trimtab.runtime.lowering.quantities import made_by, quantities_of
from trimtab.runtime.lowering.scopes import Observer, Scope
from trimtab.runtime.lowering.sites import Site, sites_of

Array = npt.NDArray[np.float32]

Order = tuple[int, ...]
"""Where in the run a tensor is made: step, part of the step, microbatch, block, operator, output."""

_FORWARD, _BACKWARD, _UPDATE = range(3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A rank's piece of a logical tensor.

    Args:
        order: When it was made.
        step, microbatch: Of the run.
        tensor: Its name on every plan: ``layers.0.attention.wq``, ``gradient of …``.
        block: Whose program made it; ``update``.
        value: How the plan declares it.
        array: The piece.
        operator: That made it, or for a gradient of an activation, that takes it.
        parameter: Whose gradient or weights it is; empty for an activation.
    """

    order: Order
    step: int
    microbatch: int
    tensor: str
    block: str
    value: Value
    array: Array
    operator: Operator
    parameter: str = ""

    @property
    def is_weights(self) -> bool:
        """Whether it is a parameter after a step."""
        return self.tensor.endswith(_AFTER)


class Recorder(Observer):
    """Observes one rank.

    Args:
        plan: That it runs.
        last_microbatch: Of a step; activations are kept of the first and of this one, in the first step.
    """

    def __init__(self, plan: Plan, last_microbatch: int) -> None:
        self._plan = plan
        self._sites = sites_of(plan)
        self._quantities = {site.index: quantities_of(site.block) for site in self._sites}
        self._places = {
            site.index: {
                phase: {id(operator): at for at, operator in enumerate(operators)}
                for phase, operators in (
                    (Phase.FORWARD, site.block.forward),
                    (Phase.BACKWARD, site.block.backward),
                )
            }
            for site in self._sites
        }
        self._update = {id(operator): at for at, operator in enumerate(plan.update.operators)}
        self._kept_microbatches = {0, last_microbatch}
        self.step = 0
        self.seen: list[Seen] = []

    def made(self, scope: Scope, operator: Operator) -> None:
        """Look at what an operator has made."""
        if scope.site is None:
            self._look_at_update(scope, operator)
            return
        is_kept = self.step == 0 and scope.microbatch in self._kept_microbatches
        if is_kept and scope.phase is not Phase.RECOMPUTE:
            self._look_at_block(scope, scope.site, operator)

    def _look_at_block(self, scope: Scope, site: Site, operator: Operator) -> None:
        at = self._places[site.index][scope.phase].get(id(operator))
        if at is None:  # A gather of stored parameters.
            return
        if scope.phase is Phase.FORWARD:
            for output in operator.outputs:
                name = self._quantities[site.index].get(output)
                if name is not None:
                    self._keep(scope, site, operator, at, output, _full(site, name))
            return
        if not operator.kind.value.endswith("_grad"):
            return
        name = made_by(operator)
        if name is not None and operator.kind not in _INCOMING_IS_OTHER:
            full = _full(site, name)
            self._keep(scope, site, operator, at, operator.inputs[0], f"gradient of {full}")
        for output in operator.outputs:
            if output.startswith(_PARAMETER):
                parameter = site.full_name(output.removeprefix(_PARAMETER))
                tensor = f"gradient of {parameter} in {site}"
                self._keep(scope, site, operator, at, output, tensor, parameter=parameter)

    def _keep(
        self,
        scope: Scope,
        site: Site,
        operator: Operator,
        at: int,
        name: str,
        tensor: str,
        *,
        parameter: str = "",
    ) -> None:
        is_backward = scope.phase is Phase.BACKWARD
        index = -site.index if is_backward else site.index
        part = _BACKWARD if is_backward else _FORWARD
        self.seen.append(
            Seen(
                order=(self.step, part, scope.microbatch, index, at, int(bool(parameter))),
                step=self.step,
                microbatch=scope.microbatch,
                tensor=tensor,
                block=scope.block,
                value=scope.values[name],
                array=_array(scope, name),
                operator=operator,
                parameter=parameter,
            )
        )

    def _look_at_update(self, scope: Scope, operator: Operator) -> None:
        results = self._plan.update.results
        at = self._update[id(operator)]
        if operator.kind is OperatorKind.UPDATE:
            (parameter,) = operator.parameters
            tensor = f"gradient of {parameter}"
            self._keep_update(scope, operator, at, operator.inputs[0], tensor, parameter)
        for name in operator.outputs:
            parameter = name.partition(":")[2].partition("~")[0].partition("@")[0]
            if results.get(parameter) == name:
                self._keep_update(scope, operator, at, name, f"{parameter}{_AFTER}", parameter)

    def _keep_update(
        self, scope: Scope, operator: Operator, at: int, name: str, tensor: str, parameter: str
    ) -> None:
        is_result = tensor.endswith(_AFTER)
        # Whatever a plan declares, the optimizer takes a gradient for the whole sum, in the layout of its states.
        table = Table.PARAMS if is_result else Table.STATES
        placements = self._plan.parameters[parameter].stored[table.value]
        self.seen.append(
            Seen(
                order=(self.step, _UPDATE, 0, int(is_result), at, 0),
                step=self.step,
                microbatch=0,
                tensor=tensor,
                block=scope.block,
                value=replace(scope.values[name], placements=placements),
                array=_array(scope, name),
                operator=operator,
                parameter=parameter,
            )
        )


_PARAMETER = "grad:param:"
_AFTER = " after the step"


def weights_after(parameter: str) -> str:
    """What the weights of a parameter are called when a step has been taken."""
    return f"{parameter}{_AFTER}"


_INCOMING_IS_OTHER = frozenset({OperatorKind.LOSS_GRAD, OperatorKind.ADD_BIAS_GRAD})
"""Gradient operators whose first input is no gradient, or one that another operator is asked for."""


def _full(site: Site, name: str) -> str:
    return name if site.layer is None else f"layers.{site.layer}.{name}"


def _array(scope: Scope, name: str) -> Array:
    found: Array = scope.tensors[name].detach().float().numpy().copy()
    return found


def by_tensor(seen: list[Seen]) -> Mapping[tuple[int, int, str], Seen]:
    """The tensors of one device, by step, microbatch and name."""
    found: dict[tuple[int, int, str], Seen] = {}
    for one in seen:
        found.setdefault((one.step, one.microbatch, one.tensor), one)
    return found
