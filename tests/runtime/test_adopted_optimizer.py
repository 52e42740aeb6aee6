"""Optimizers of the user's own: saved, loaded and handed over, they go on with the same bits."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, ReduceLROnPlateau, SequentialLR

from trimtab.runtime.adopted_optimizer import AdoptedOptimizer, Rates
from trimtab.runtime.flat_state import FlatState
from trimtab.terms import InputError

Build = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Build] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "sgd dampened": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-2),
}


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def gradients_of(state: FlatState, step: int) -> torch.Tensor:
    """The same gradient each time, in every logical tensor; gaps stay zero."""
    flat = torch.zeros_like(state.parameters)
    keyed = torch.Generator().manual_seed(step)
    for view in state.named_views(flat).values():
        view.copy_(torch.randn(view.shape, generator=keyed))
    return flat


def adopted(build: Build) -> tuple[nn.Module, FlatState, AdoptedOptimizer]:
    model = make_model()
    parameters = list(model.named_parameters())
    state = FlatState(parameters)
    return model, state, AdoptedOptimizer(build(model.parameters()), state, parameters)


def step(state: FlatState, optimizer: AdoptedOptimizer, number: int) -> None:
    optimizer.step(state.groups(gradients_of(state, number)), lr=0.0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_steps_as_if_it_had_not_been_adopted(name: str) -> None:
    """The numbers of a user's loop are the user's."""
    model, state, optimizer = adopted(OPTIMIZERS[name])
    plain = make_model()
    reference = OPTIMIZERS[name](plain.parameters())
    for number in range(4):
        step(state, optimizer, number)
        views = state.named_views(gradients_of(state, number))
        for key, parameter in plain.named_parameters():
            parameter.grad = views[key].clone()
        reference.step()
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_saved_goes_on_with_the_same_bits(name: str) -> None:
    """A resumed run, or a rank that took a peer's state, must train the model that was begun."""
    _, state, optimizer = adopted(OPTIMIZERS[name])
    for number in range(2):
        step(state, optimizer, number)
    saved = {key: [part.clone() for part in parts] for key, parts in optimizer.state_tensors().items()}
    weights = state.parameters.clone()
    step(state, optimizer, 2)

    _, other_state, other = adopted(OPTIMIZERS[name])
    other_state.parameters.copy_(weights)
    for key, parts in other.state_tensors().items():
        for target, part in zip(parts, saved[key], strict=True):
            target.copy_(part)
    other.num_steps = 2
    step(other_state, other, 2)
    assert torch.equal(other_state.parameters, state.parameters)
    assert other.num_steps == 3


def test_parameters_that_no_group_holds_do_not_change() -> None:
    """Frozen weights must not decay."""
    model = make_model()
    parameters = list(model.named_parameters())
    state = FlatState(parameters)
    first = parameters[0][1]
    optimizer = AdoptedOptimizer(torch.optim.AdamW([first], lr=0.1), state, parameters)
    before = {key: view.clone() for key, view in state.named_views(state.parameters).items()}
    step(state, optimizer, 0)
    changed = {
        key for key, view in state.named_views(state.parameters).items() if not torch.equal(view, before[key])
    }
    assert changed == {parameters[0][0]}


def stepped(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(parameters)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


class CountsInGroups(torch.optim.SGD):
    """Keeps a count where it is not saved."""

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
        super().step(closure)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS cannot be adopted: step()"),
        (lambda p: torch.optim.NAdam(p), "NAdam cannot be adopted: it keeps 'mu_product'"),
        (stepped, "has stepped before it was adopted"),
        (lambda p: CountsInGroups(p, lr=0.1), "keeps state in its parameter groups"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(build: Build, words: str) -> None:
    """A state that is left out of the checkpoint shows as a bump in the loss, if at all."""
    with pytest.raises(InputError) as caught:
        adopted(build)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda o: CosineAnnealingLR(o, T_max=20),
        lambda o: OneCycleLR(o, max_lr=0.1, total_steps=20),
        lambda o: SequentialLR(
            o, [LinearLR(o, total_iters=4), CosineAnnealingLR(o, T_max=16)], milestones=[4]
        ),
    ],
)
def test_a_schedule_is_a_function_of_the_step(build: Callable[[Any], Any]) -> None:
    """A resumed rank jumps ahead, a rollback goes back; both must find the rates that were there."""

    def rates_at(steps: list[int]) -> dict[int, tuple[float, float]]:
        optimizer = torch.optim.AdamW(make_model().parameters(), lr=1e-2)
        rates = Rates(optimizer, build(optimizer))
        found = {}
        for number in steps:
            rates.set_to(number)
            found[number] = (rates.first(), optimizer.param_groups[0]["betas"][0])
        return found

    in_order = rates_at(list(range(15)))
    assert len({rate for rate, _ in in_order.values()}) > 10
    jumping = rates_at([7, 3, 14])
    assert jumping == {number: in_order[number] for number in (7, 3, 14)}


def test_setting_the_rates_of_a_step_warns_of_nothing() -> None:
    """Torch would say that the optimizer has not stepped, in every resumed run."""
    optimizer = torch.optim.AdamW(make_model().parameters(), lr=1e-2)
    rates = Rates(optimizer, CosineAnnealingLR(optimizer, T_max=20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rates.set_to(5)


def test_a_schedule_that_follows_a_measurement_is_refused() -> None:
    """It could not be resumed."""
    optimizer = torch.optim.AdamW(make_model().parameters(), lr=1e-2)
    with pytest.raises(InputError, match="follows a measurement"):
        Rates(optimizer, ReduceLROnPlateau(optimizer))
