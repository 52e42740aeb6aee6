"""Attention over keys that travel around the ranks of an axis.

Forwards keys and values make n - 1 hops. Backwards they make them again, beside their gradients, which take one hop
more to come home.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.runtime.lowering.attention import Attention, Running, Where, seen_gradients, visible
from trimtab.runtime.lowering.wires import Line


@dataclass(frozen=True, kw_only=True, slots=True)
class RingTape:
    """What the forward pass leaves: outputs [B, H, S, E] and the logarithm of sums of exponentials [B, H, S]."""

    outputs: Tensor
    log_sums: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """A group of ranks around which keys travel.

    Args:
        attention: Of the network.
        wheres: For each place, its queries with its own keys.
        place: Own.
        line: The wires; None for a ring of one.
        wire: Type on them.
    """

    attention: Attention
    wheres: Sequence[Where]
    place: int
    line: Line | None
    wire: torch.dtype

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, RingTape]:
        """[B, S, H E] of the own queries."""
        own = self.wheres[self.place]
        q_BHSE, k_BKUE, v_BKUE = self.attention.by_head(q, k, v, own)
        running = Running.nothing(q_BHSE)
        for hop in range(len(self.wheres)):
            k_BHUE, v_BHUE = self._for_queries(k_BKUE), self._for_queries(v_BKUE)
            running.see(q_BHSE, k_BHUE, v_BHUE, self._visible(hop))
            if hop < len(self.wheres) - 1:
                k_BKUE, v_BKUE = self._passed_on(k_BKUE, v_BKUE)
        outputs_BHSE, log_sums_BHS = running.finished()
        tape = RingTape(outputs=outputs_BHSE, log_sums=log_sums_BHS)
        return outputs_BHSE.transpose(1, 2).flatten(2).contiguous(), tape

    def backward(
        self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, tape: RingTape
    ) -> tuple[Tensor, ...]:
        """Gradients of the own queries, keys and values."""
        own = self.wheres[self.place]
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
            turned = self.attention.by_head(leaves[0], leaves[1], leaves[2], own)
        q_BHSE, k_BKUE, v_BKUE = (tensor.detach() for tensor in turned)
        gradient_BHSE = torch.unflatten(gradient, -1, (-1, q_BHSE.shape[-1])).transpose(1, 2)
        delta_BHS = (gradient_BHSE.float() * tape.outputs).sum(-1)
        of_q = torch.zeros(q_BHSE.shape)
        of_k, of_v = torch.zeros(k_BKUE.shape), torch.zeros(v_BKUE.shape)
        for hop in range(len(self.wheres)):
            seen = seen_gradients(
                gradient_BHSE,
                delta_BHS,
                tape.log_sums,
                q_BHSE,
                self._for_queries(k_BKUE),
                self._for_queries(v_BKUE),
                self._visible(hop),
            )
            of_q += seen[0]
            of_k += self._over_shared(seen[1], of_k)
            of_v += self._over_shared(seen[2], of_v)
            of_k, of_v = self._passed_on(of_k, of_v)
            if hop < len(self.wheres) - 1:
                k_BKUE, v_BKUE = self._passed_on(k_BKUE, v_BKUE)
        gradients = [found.to(tensor.dtype) for found, tensor in zip((of_q, of_k, of_v), turned, strict=True)]
        return torch.autograd.grad(list(turned), leaves, gradients)

    def _origin(self, hop: int) -> Where:
        """Whose keys are here after so many hops."""
        return self.wheres[(self.place - hop) % len(self.wheres)]

    def _visible(self, hop: int) -> Tensor:
        """[S, U]: whether the own queries see the keys that are here after so many hops."""
        own = self.wheres[self.place]
        return visible(own.queries, self._origin(hop).keys, own.window)

    def _for_queries(self, x_BKUE: Tensor) -> Tensor:
        return x_BKUE[:, self.attention.shared_heads(self.wheres[self.place])]

    def _over_shared(self, gradient_BHUE: Tensor, like_BKUE: Tensor) -> Tensor:
        """The gradient of each key head from those of all query heads that share it."""
        heads = torch.tensor(self.attention.shared_heads(self.wheres[self.place]))
        return torch.zeros_like(like_BKUE).index_add(1, heads, gradient_BHUE)

    def _passed_on(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What the place before has; the own goes to the next."""
        if self.line is None:
            return tensors
        size = self.line.size
        packed = torch.cat([tensor.reshape(-1).to(self.wire) for tensor in tensors])
        arrived = self.line.swap((self.place + 1) % size, packed, (self.place - 1) % size, packed)
        return tuple(
            piece.view(tensor.shape).to(tensor.dtype)
            for piece, tensor in zip(
                torch.split(arrived, [tensor.numel() for tensor in tensors]), tensors, strict=True
            )
        )
