"""Which matrix product is fast on a CPU in fp32?

Torch hands fp32 products to MKL, which takes AVX2 kernels on processors that are not Intel's. oneDNN, which
torch ships too, takes AVX-512 on all that have it. Measured with torch 2.13 on one core of an AMD EPYC
(family 26), 1024 x 256 by 256 x 1024: 112 GFLOP/s with MKL, 251 with oneDNN; the gradients likewise.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` as torch's own, through oneDNN where torch would take MKL.

    That is: on a CPU with AVX-512, in fp32, outside autocast. There it has no second derivative, and its
    bits differ from those of torch's own, by the order of addition; they do not depend on addresses or on
    what ran before.
    """
    if takes_fast_product(x):
        y: Tensor = _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return y
    return functional.linear(x, weight, bias)


def takes_fast_product(x: Tensor) -> bool:
    """Whether ``linear`` of such an ``x`` goes through oneDNN; torch's compiler chooses by itself."""
    if torch.compiler.is_compiling():
        return False
    return _HAS_FAST_PRODUCT and x.dtype is torch.float32 and x.device.type == "cpu" and not _is_autocast()


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``linear`` of what takes the fast product, without a graph."""
    return _product(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)


def fast_linear_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, *, is_biased: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of ``x``, ``weight`` and the bias from that of ``fast_linear``: the bits that autograd gets."""
    grad_rows = grad.reshape(-1, grad.shape[-1])
    grad_x = _grad_x(grad_rows, weight).view(*grad.shape[:-1], -1)
    grad_weight = _grad_weight(grad_rows, x.reshape(-1, x.shape[-1]))
    return grad_x, grad_weight, grad_rows.sum(0) if is_biased else None


def input_gradient(grad_rows: Tensor, weight: Tensor) -> Tensor:
    """The input's half of ``linear``'s gradient [N, in], from [N, out] and [out, in]; no graph."""
    return _grad_x(grad_rows, weight) if takes_fast_product(grad_rows) else grad_rows @ weight


def weight_gradient(grad_rows: Tensor, x_rows: Tensor) -> Tensor:
    """The matrix's half [out, in], from [N, out] and [N, in]; no graph."""
    return _grad_weight(grad_rows, x_rows) if takes_fast_product(grad_rows) else grad_rows.t() @ x_rows


class Linear(nn.Linear):
    """Torch's linear layer with the product above, and without initial values.

    Torch's own would be drawn only to be overwritten: whoever builds one fills it.
    """

    def reset_parameters(self) -> None:
        """Leave the parameters as allocated."""

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [..., in] to [..., out]."""
        return linear(x, self.weight, self.bias)


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x.reshape(-1, x.shape[-1]), weight)
        ctx.has_bias = bias is not None
        return fast_linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_rows, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_rows = grad.reshape(-1, grad.shape[-1])
        grad_x = _grad_x(grad_rows, weight).view(*grad.shape[:-1], -1) if needs_x else None
        grad_weight = _grad_weight(grad_rows, x_rows) if needs_weight else None
        grad_bias = grad_rows.sum(0) if ctx.has_bias and needs_bias else None
        return grad_x, grad_weight, grad_bias


def _grad_x(grad_rows: Tensor, weight: Tensor) -> Tensor:
    return _product(grad_rows, weight.t())


def _grad_weight(grad_rows: Tensor, x_rows: Tensor) -> Tensor:
    return _product(grad_rows.t(), x_rows.t())


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # What torch's compiler emits for a linear layer on a CPU: private to torch, pinned by tests.
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    return y


def _is_autocast() -> bool:
    return torch.is_autocast_enabled("cpu")


_HAS_FAST_PRODUCT = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    and "AVX512" in torch.backends.cpu.get_cpu_capability()
)
