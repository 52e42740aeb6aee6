"""Which tokens go to which expert, and what comes back.

Every rank that works on other tokens routes its own: a *region*. In a region each token chooses its ``top_k`` experts;
their gates are the softmax over the chosen logits, in fp32 (Jiang et al. 2024). An expert has as many slots for a
region as balanced routing would fill; first choices are served before second ones, earlier tokens before later ones,
and who finds no slot left has a gate of zero there and passes by (Lepikhin et al. 2020, with a capacity of 1).
Slots follow from the gates alone: the tokens of an expert, in order.

Shapes: B samples, S tokens, E experts, T slots, D embed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.runtime.lowering.extents import Run


@dataclass(frozen=True, slots=True)
class Region:
    """Samples and positions of a rank's tokens that are routed together, counted from the rank's first."""

    samples: slice
    positions: slice

    def of(self, x: Tensor) -> Tensor:
        """The region's part of [B, S, …], its tokens one after another."""
        return x[self.samples, self.positions].flatten(0, 1)


EVERYTHING = (Region(slice(None), slice(None)),)
"""All tokens of a rank as one region."""


def capacity(tokens: int, top_k: int, experts: int) -> int:
    """Slots of an expert for a region of so many tokens."""
    return math.ceil(tokens * top_k / experts)


def route(logits_BSE: Tensor, regions: Sequence[Region], top_k: int) -> Tensor:
    """Gates [B, S, E]: zero where a token does not go."""
    gates_BSE = torch.zeros_like(logits_BSE, dtype=torch.float32)
    for region in regions:
        logits = region.of(logits_BSE).float()
        chosen = logits.topk(top_k, dim=-1).indices
        gates = torch.softmax(logits.gather(-1, chosen), -1)
        gates = gates * _has_slot(chosen, logits.shape[-1])
        found = torch.zeros_like(logits).scatter(-1, chosen, gates)
        shape = gates_BSE[region.samples, region.positions].shape
        gates_BSE = gates_BSE.clone()
        gates_BSE[region.samples, region.positions] = found.view(shape)
    return gates_BSE.type_as(logits_BSE)


def _has_slot(chosen: Tensor, experts: int) -> Tensor:
    """[tokens, top_k] of 0 and 1: whether a choice finds a slot."""
    tokens, top_k = chosen.shape
    # All first choices in order of tokens, then all second ones.
    in_order = torch.nn.functional.one_hot(chosen.T.reshape(-1), experts)
    before = (in_order.cumsum(0) * in_order).sum(-1)
    return (before <= capacity(tokens, top_k, experts)).view(top_k, tokens).T.float()


def dispatch(x_BSD: Tensor, gates_BSE: Tensor, regions: Sequence[Region], experts: Run, top_k: int) -> Tensor:
    """The tokens of each own expert [E, T, D]; slots that nobody takes are zero."""
    found = []
    for region in regions:
        gates = region.of(gates_BSE)
        each = capacity(gates.shape[0], top_k, gates.shape[-1])
        found.append(_with_nobody(region.of(x_BSD))[_tokens_of_slots(gates, experts, each)])
    return torch.cat(found, 1)


def combine(outputs_ETD: Tensor, gates_BSE: Tensor, regions: Sequence[Region], experts: Run) -> Tensor:
    """For each token its experts' outputs times its gates [B, S, D], of the own experts."""
    samples, length, _ = gates_BSE.shape
    found = outputs_ETD.new_zeros((samples, length, outputs_ETD.shape[-1]))
    own = torch.arange(experts.start, experts.start + experts.length).clamp_max(gates_BSE.shape[-1] - 1)
    for region, first, each in _slots(regions, outputs_ETD.shape[1]):
        gates = region.of(gates_BSE)
        tokens_ET = _tokens_of_slots(gates, experts, each)
        weights_ET = _with_nobody(gates)[tokens_ET, own[:, None]]
        answers_ETD = outputs_ETD[:, first : first + each] * weights_ET[..., None].type_as(outputs_ETD)
        summed = answers_ETD.new_zeros((gates.shape[0] + 1, answers_ETD.shape[-1])).index_add(
            0, tokens_ET.flatten(), answers_ETD.flatten(0, 1)
        )
        shape = found[region.samples, region.positions].shape
        found = found.clone()
        found[region.samples, region.positions] = summed[:-1].view(shape)
    return found


def _slots(regions: Sequence[Region], num_slots: int) -> list[tuple[Region, int, int]]:
    """Each region with its first slot and how many it has; all have equally many."""
    assert num_slots % len(regions) == 0, (num_slots, len(regions))
    each = num_slots // len(regions)
    return [(region, index * each, each) for index, region in enumerate(regions)]


def _tokens_of_slots(gates: Tensor, experts: Run, each: int) -> Tensor:
    """Which token of a region stands in which slot of the own experts [E, T]; the number of tokens where nobody does.

    No shape depends on the gates: nothing waits for them, and what is computed is known before they are.
    """
    num_tokens = gates.shape[0]
    is_taken = gates.detach()[:, experts.start : experts.start + experts.real].T > 0
    # Whoever has no slot goes to a column behind the last, which is cut off.
    slots = torch.where(is_taken, is_taken.long().cumsum(1) - 1, each)
    tokens = torch.arange(num_tokens).expand_as(slots)
    found = torch.full((experts.length, each + 1), num_tokens, dtype=torch.int64)
    found[: experts.real].scatter_(1, slots, tokens)
    return found[:, :each]


def _with_nobody(rows: Tensor) -> Tensor:
    """Rows [S, …] and one of zeros behind them."""
    return torch.cat((rows, rows.new_zeros((1, *rows.shape[1:]))))
