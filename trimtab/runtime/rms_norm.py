"""Root-mean-square norms (Zhang and Sennrich 2019) whose gradient comes in one piece.

On a CPU torch 2.13 makes such a norm of small operators, each of which adds a gradient of its own to the input. Here
there is one: it is faster, and whoever adds it to another gradient (a residual stream) gets the same bits, by autograd or
by hand.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class RmsNorm(nn.RMSNorm):
    """Torch's module with the norm below."""

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [..., size], each vector divided by its root mean square and multiplied by the weight."""
        assert self.eps is not None, "a network says its epsilon"
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of the last dim. On a CPU in fp32 it has no second derivative; elsewhere it is torch's own."""
    if takes_own_norm(x) and takes_own_norm(weight):
        y: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return y
    return functional.rms_norm(x, weight.shape, weight, eps)


def takes_own_norm(x: Tensor) -> bool:
    """Whether a tensor is one that the norm of this module takes; torch's compiler makes one piece by itself."""
    if torch.compiler.is_compiling():
        return False
    return x.dtype is torch.float32 and x.device.type == "cpu"


def own_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm without a graph, and what its gradient needs: one factor for each vector [..., 1]."""
    scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (x * scale).mul_(weight), scale


def own_norm_gradients(grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``x`` and of the weight from that of ``own_norm``: the bits that autograd gets."""
    normed = x * scale
    grad_weight = (grad * normed).flatten(0, -2).sum(0)
    grad_normed = grad * weight
    shared = (grad_normed * normed).mean(-1, keepdim=True)
    return grad_normed.sub_(normed.mul_(shared)).mul_(scale), grad_weight


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, scale = own_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *own_norm_gradients(grad, *ctx.saved_tensors), None
