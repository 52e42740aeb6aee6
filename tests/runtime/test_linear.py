import pytest
import torch
from torch.nn import functional

from trimtab.runtime.linear import Linear, linear

SHAPES = [(2, 5, 48, 80), (8, 128, 256, 256), (1, 1, 17, 3)]


def operands(samples: int, length: int, fan_in: int, fan_out: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(samples, length, fan_in), (fan_out, fan_in), (fan_out,)]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_gradients_are_those_of_the_product(shape, has_bias):
    """A private operator that changed its meaning would train on noise."""
    ours = operands(*shape)
    exact = [t.detach().double().requires_grad_() for t in ours]
    y = linear(*ours[: 2 + has_bias])
    expected = functional.linear(*exact[: 2 + has_bias])
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-4)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    (y * weights).sum().backward()
    (expected * weights.double()).sum().backward()
    for t, reference in zip(ours[: 2 + has_bias], exact, strict=False):
        torch.testing.assert_close(t.grad.double(), reference.grad, rtol=1e-5, atol=2e-4)


def test_gradients_that_nobody_wants_are_not_computed():
    """Frozen weights and first layers would pay for products that are thrown away."""
    x, weight, _ = operands(*SHAPES[0])
    linear(x.detach(), weight).sum().backward()
    assert weight.grad is not None
    weight.grad = None
    linear(x, weight.detach()).sum().backward()
    assert (x.grad is not None, weight.grad) == (True, None)


def test_rows_in_any_layout_give_the_same_values():
    """Attention hands over a transposed view, and its gradient comes as one."""
    x, weight, bias = operands(*SHAPES[0])
    view = x.detach().transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(linear(view, weight, bias), linear(x, weight, bias))


@pytest.mark.parametrize("offset", [16, 48, 1008])
def test_the_place_in_memory_does_not_change_a_bit(offset):
    """A rank that holds the parameters elsewhere in its buffer would leave the common weights."""
    x, weight, bias = operands(*SHAPES[1])
    buffer = torch.zeros(offset + weight.numel())
    moved = buffer[offset:].view_as(weight).copy_(weight.detach()).requires_grad_()
    y, moved_y = linear(x, weight, bias), linear(x, moved, bias)
    assert torch.equal(y, moved_y)
    (grad,) = torch.autograd.grad(y.square().sum(), weight)
    (moved_grad,) = torch.autograd.grad(moved_y.square().sum(), moved)
    assert torch.equal(grad, moved_grad)


def test_autocast_computes_in_bf16():
    """A product that ignores autocast costs the user the speed of bf16."""
    x, weight, bias = operands(*SHAPES[0])
    with torch.autocast("cpu", torch.bfloat16):
        y = linear(x, weight, bias)
    assert y.dtype is torch.bfloat16
    y.sum().backward()
    assert weight.grad.dtype is torch.float32


def test_the_layer_draws_no_initial_values():
    """Drawing them would move the global generators and cost seconds for a large network."""
    state = torch.get_rng_state()
    layer = Linear(8, 4)
    assert torch.equal(torch.get_rng_state(), state)
    assert layer(torch.ones(2, 8)).shape == (2, 4)
