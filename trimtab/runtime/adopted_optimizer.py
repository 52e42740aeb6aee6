"""A user's own optimizer, with its state in flat vectors, so that it is saved and handed over as ours are."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from trimtab.runtime.flat_state import FlatState
from trimtab.terms import InputError

_COUNT = "step"
"""The state in which torch's optimizers count the steps of a parameter."""


class AdoptedOptimizer:
    """Steps a user's optimizer on the parameters as they are, from gradients in the flat layout. See Optimizer.

    Every rank holds all parameters and all state, and steps all of them: what the optimizer computes need not be
    elementwise, only the same each time. Its state must be tensors of the parameter's shape, and a count of steps.
    Parameters that no group holds do not change.

    Args:
        optimizer: Which has not stepped yet. Its own ``step`` is refused from now on.
        state: Of the model whose parameters it holds.
        parameters: The model's, by name, in any order.

    Raises: InputError naming what cannot be adopted: foreign parameters, steps taken, state of another form.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        state: FlatState,
        parameters: Sequence[tuple[str, Parameter]],
    ) -> None:
        self._optimizer, self._flat = optimizer, state
        names = {id(parameter): name for name, parameter in parameters}
        self._trained = _trained_parameters(optimizer, names)
        self._num_steps = 0
        self._is_stepping = False
        self._count, kept = _form_of_state(optimizer, self._trained)
        self._vectors = {name: torch.zeros_like(state.parameters) for name in kept}
        self._views = {name: state.named_views(vector) for name, vector in self._vectors.items()}
        self._take_in()
        optimizer.register_step_pre_hook(self._refuse_foreign_step)

    def step(self, gradients: Sequence[Tensor], *, lr: float) -> None:
        """Apply one step. The optimizer's groups hold its rates already; ``lr`` is only reported."""
        views = self._flat.named_group_views(*gradients)
        for name, parameter in self._trained.items():
            parameter.grad = views[name]
        self._is_stepping = True
        self._optimizer.step()
        self._is_stepping = False
        self._num_steps += 1
        self._take_in()

    @property
    def num_steps(self) -> int:
        """See Optimizer."""
        return self._num_steps

    @num_steps.setter
    def num_steps(self, num_steps: int) -> None:
        self._num_steps = num_steps
        if not num_steps:
            return  # before its first step an optimizer makes its state itself
        for name, parameter in self._trained.items():
            own = self._optimizer.state[parameter]
            own.update({kept: views[name] for kept, views in self._views.items()})
            if isinstance(self._count, Tensor):
                own[_COUNT] = torch.full_like(self._count, num_steps)
            elif self._count is not None:
                own[_COUNT] = type(self._count)(num_steps)

    def state_tensors(self) -> dict[str, list[Tensor]]:
        """See Optimizer."""
        return {name: list(self._flat.groups(vector)) for name, vector in self._vectors.items()}

    def _take_in(self) -> None:
        """Move state that the optimizer has made itself into the flat vectors; what is there already stays."""
        for name, parameter in self._trained.items():
            own = self._optimizer.state.get(parameter, {})
            for kept, views in self._views.items():
                value = own.get(kept)
                if value is not None and value.data_ptr() != views[name].data_ptr():
                    own[kept] = views[name].copy_(value)

    def _refuse_foreign_step(self, *_: object) -> None:
        if not self._is_stepping:
            raise InputError(
                "the script called optimizer.step(); the session calls it at the end of each step.\n"
                "  Take out optimizer.step(), optimizer.zero_grad() and the clipping of gradients."
            )


class Rates:
    """Learning rates as a function of the step, from a user's scheduler: it is stepped as often as the step says.

    Args:
        scheduler: None if the script sets the rates of the groups itself, before the microbatches of each step.

    Raises: InputError for a scheduler that follows a measurement, for it could not be resumed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None) -> None:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise InputError(
                "ReduceLROnPlateau follows a measurement and cannot be set to a step; "
                "set the rates of the optimizer's groups in the loop, from step.number"
            )
        self._optimizer, self._scheduler = optimizer, scheduler
        self._position = 0
        self._begin = copy.deepcopy(scheduler.state_dict()) if scheduler is not None else {}
        self._groups = [_settings(group) for group in optimizer.param_groups]

    def set_to(self, step: int) -> None:
        """Bring the rates to those of ``step``; a step may come before the one of the last call."""
        if self._scheduler is None or step == self._position:
            return
        with warnings.catch_warnings():  # it warns that the optimizer has not stepped: another rank's has
            warnings.simplefilter("ignore", UserWarning)
            if step < self._position:
                self._go_back()
            for _ in range(step - self._position):
                self._scheduler.step()
        self._position = step

    def first(self) -> float:
        """The rate of the first group, which stands for all in reports."""
        return float(self._optimizer.param_groups[0]["lr"])

    def _go_back(self) -> None:
        assert self._scheduler is not None
        self._scheduler.load_state_dict(copy.deepcopy(self._begin))
        for group, settings in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(copy.deepcopy(settings))
        self._position = 0


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """What a group says besides its parameters."""
    return {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}


def _trained_parameters(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Parameter]:
    """The parameters that the optimizer changes, by the name that they have in the model."""
    found: dict[str, Parameter] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            name = names.get(id(parameter))
            if name is None:
                raise InputError(
                    f"group {number} of the optimizer holds a tensor {list(parameter.shape)} that is no parameter of "
                    f"the model; build the optimizer from model.parameters()"
                )
            found[name] = parameter
    return found


def _form_of_state(
    optimizer: torch.optim.Optimizer, trained: Mapping[str, Parameter]
) -> tuple[Any, tuple[str, ...]]:
    """How the optimizer counts steps (a value of that type, or None), and the names of the tensors it keeps.

    Found out on a copy, which takes a step with gradients of zero: torch's optimizers make their state then.
    """
    if any(float(own.get(_COUNT) or 0) for own in optimizer.state.values()):
        raise InputError("the optimizer has stepped before it was adopted; adopt it as it was built")
    # Copied in one go, so that the copy of the optimizer holds the copies of the parameters.
    trial, parameters = copy.deepcopy((optimizer, dict(trained)))
    before = [_settings(group) for group in trial.param_groups]
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    try:
        trial.step()
    except TypeError as error:
        raise InputError(f"{type(optimizer).__name__} cannot be adopted: step() {error}") from error
    if [_settings(group) for group in trial.param_groups] != before:
        raise InputError(
            f"{type(optimizer).__name__} cannot be adopted: it keeps state in its parameter groups, "
            f"which is not saved; such as AdamW, Adam, SGD, RMSprop and Adagrad keep it with the parameters"
        )
    count: Any = None
    kept: dict[str, None] = {}
    for name, key, value in _states(trial, parameters):
        if key == _COUNT:
            count = value
        elif (
            isinstance(value, Tensor) and value.shape == trained[name].shape and value.dtype is torch.float32
        ):
            kept[key] = None
        else:
            what = (
                f"a tensor {list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else repr(value)
            )
            raise InputError(
                f"{type(optimizer).__name__} cannot be adopted: it keeps {key!r} for {name}, {what}; state must be "
                f"fp32 tensors of the parameter's shape, and a count of steps"
            )
    return count, tuple(kept)


def _states(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Parameter]
) -> Iterator[tuple[str, str, Any]]:
    """Parameter, key and value of everything that an optimizer keeps; what is None is nothing."""
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                yield name, key, value
