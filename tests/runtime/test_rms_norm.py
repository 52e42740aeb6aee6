"""Is the norm torch's own, in values and gradients?"""

import pytest
import torch
from torch.nn import functional

from trimtab.runtime.rms_norm import RmsNorm, rms_norm

EPS = 1e-5


@pytest.mark.parametrize("shape", [(2, 5, 48), (3, 7, 4, 8), (1, 1, 3)])
def test_values_and_gradients_are_those_of_torch(shape: tuple[int, ...]) -> None:
    """Every network with such norms trains on them."""
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=chance, requires_grad=True)
    weight = torch.rand(shape[-1], generator=chance, requires_grad=True)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    incoming = torch.randn(shape, generator=chance)
    y = rms_norm(x, weight, EPS)
    expected = functional.rms_norm(exact[0], weight.shape, exact[1], EPS)
    torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=1e-6)
    found = torch.autograd.grad(y, [x, weight], incoming)
    for ours, theirs in zip(found, torch.autograd.grad(expected, exact, incoming.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_other_types_take_torch_s_own() -> None:
    """Under bf16 weights nothing may be converted behind the user's back."""
    norm = RmsNorm(16, eps=EPS).bfloat16()
    x = torch.randn(4, 16).bfloat16()
    assert torch.equal(norm(x), functional.rms_norm(x, (16,), norm.weight, EPS))


def test_gradients_of_a_residual_stream_are_added_once() -> None:
    """A stream that is normalised and passed on must get one sum, in whatever order others add by hand."""
    x = torch.randn(4, 16, requires_grad=True)
    weight = torch.rand(16)
    incoming = torch.randn(4, 16)
    (whole,) = torch.autograd.grad(x + rms_norm(x, weight, EPS), [x], incoming)
    (of_norm,) = torch.autograd.grad(rms_norm(x, weight, EPS), [x], incoming)
    assert torch.equal(whole, incoming + of_norm)
