"""Does an operator leave its gradient, and no tensor that a plan lets go?"""

import gc
import weakref

import pytest
import torch
from torch.nn import functional

from trimtab.runtime.compat import storage_of
from trimtab.runtime.lowering.tape import in_type, record


def test_gradients_are_those_of_autograd() -> None:
    """Everything that is trained rests on it."""
    x, weight, bias = torch.rand(4, 3), torch.rand(5, 3), torch.rand(5)
    values = {"x": x, "w": weight, "b": bias}
    y, tape = record(functional.linear, [x, weight, bias], ["x", "w", "b"], "y", stays=lambda _: True)
    gradient = torch.rand(4, 5)
    of_x, of_weight, of_bias = tape.gradients(gradient, [0, 1, 2], lambda name: values[name])
    assert torch.equal(y, functional.linear(x, weight, bias))
    assert not y.requires_grad
    torch.testing.assert_close(of_x, gradient @ weight)
    torch.testing.assert_close(of_weight, gradient.T @ x)
    torch.testing.assert_close(of_bias, gradient.sum(0))


def test_named_values_are_looked_up_when_the_gradient_is_made() -> None:
    """What is computed or gathered again must be what the gradient sees."""
    x, weight = torch.rand(4, 3), torch.rand(5, 3)
    later = {"x": x.clone(), "w": weight.clone()}
    _, tape = record(functional.linear, [x, weight], ["x", "w"], "y", stays=lambda _: True)
    x.zero_()
    weight.zero_()
    (of_x,) = tape.gradients(torch.ones(4, 5), [0], lambda name: later[name])
    torch.testing.assert_close(of_x, torch.ones(4, 5) @ later["w"])


def test_a_tape_keeps_no_named_value_alive() -> None:
    """RECOMPUTE and STORE would free nothing if the graph held what they let go."""
    x = torch.rand(4, 6).requires_grad_(False)
    output, tape = record(torch.exp, [x], ["x"], "y", stays=lambda _: True)
    known = output.clone()
    gone = [weakref.ref(x), weakref.ref(output)]
    del x, output
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    (of_x,) = tape.gradients(torch.ones(4, 6), [0], lambda name: {"y": known}[name])
    torch.testing.assert_close(of_x, known)


def test_a_parameter_in_the_type_of_use_is_made_again() -> None:
    """Of each microbatch in flight a copy of all matrices would live: 453 MB a layer of GPT-3 on eight ranks."""
    x, weight = torch.rand(4, 3, dtype=torch.bfloat16), torch.rand(5, 3)
    copies = []

    def compute(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        copies.append(in_type(weight, torch.bfloat16))
        return functional.linear(x, copies[0])

    y, tape = record(compute, [x, weight], ["x", "w"], "y", stays=lambda _: True)
    assert storage_of(copies[0]) != storage_of(weight)
    gone = weakref.ref(copies.pop())
    gc.collect()
    assert gone() is None
    gradient = torch.rand(4, 5, dtype=torch.bfloat16)
    of_x, of_weight = tape.gradients(gradient, [0, 1], {"x": x, "w": weight}.__getitem__)
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    expected = functional.linear(leaves[0], leaves[1].to(torch.bfloat16))
    assert torch.equal(y, expected)
    expected.backward(gradient)
    assert torch.equal(of_x, leaves[0].grad)
    assert torch.equal(of_weight, leaves[1].grad)


def test_a_value_that_does_not_stay_is_kept_by_the_tape() -> None:
    """An output that a plan moves on needs no name, and its gradient needs it all the same."""
    x = torch.rand(4, 6)
    output, tape = record(torch.exp, [x], ["x"], "y", stays=lambda name: name == "x")
    expected = output.clone()
    (of_x,) = tape.gradients(torch.ones(4, 6), [0], lambda name: {"x": x}[name])
    torch.testing.assert_close(of_x, expected)


def test_gradients_of_views_come_from_the_value_as_it_is_now() -> None:
    """A saved view has an offset and strides of its own."""
    x = torch.rand(4, 6)

    def second_half_squared(x: torch.Tensor) -> torch.Tensor:
        return x[:, 3:].square()

    _, tape = record(second_half_squared, [x], ["x"], "y", stays=lambda _: True)
    later = torch.rand(4, 6)
    (of_x,) = tape.gradients(torch.ones(4, 3), [0], lambda _: later)
    torch.testing.assert_close(of_x[:, 3:], 2 * later[:, 3:])
    assert not of_x[:, :3].any()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_are_told_from_copies(device: str) -> None:
    """A copy that is taken for a named value gets the value's numbers in its gradient."""
    x = torch.zeros(4, 3, device=device)
    assert {storage_of(found) for found in (x.detach(), x[1], x.T, x.view(-1))} == {storage_of(x)}
    assert storage_of(x.clone()) != storage_of(x)
    assert storage_of(torch.zeros(4, 3, device=device)) != storage_of(x)
