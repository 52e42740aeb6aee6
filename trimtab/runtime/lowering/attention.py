"""Causal attention on pieces: some heads, some queries, some keys, each knowing where in the sample it stands.

Shapes: B samples, S queries, U keys, H query heads, K key and value heads, E head size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.catalog import Network, Positions
from trimtab.runtime.decoder import rotate, rotation_table
from trimtab.runtime.lowering.extents import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Which queries and keys a rank has.

    Args:
        queries, keys: Positions in the sample.
        heads, kv_heads: Elements of the dims that hold the heads.
        window: Tokens that a query sees, its own included; None: all before it.
    """

    queries: Run
    keys: Run
    heads: Run
    kv_heads: Run
    window: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether queries and keys are the same positions, from the first on, and nothing is out of sight."""
        is_all = self.queries == self.keys and self.queries.start == 0
        return is_all and (self.window is None or self.window >= self.keys.length)


class Attention:
    """Attention of one network; rotates queries and keys where positions are rotary."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._rotation = rotation_table(network) if network.positions is Positions.ROTARY else None

    @property
    def constants(self) -> list[Tensor]:
        """Its table of angles, if it has one."""
        return [] if self._rotation is None else [self._rotation]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, where: Where) -> Tensor:
        """[B, S, H E], [B, U, K E], [B, U, K E] -> [B, S, H E]; U must reach to each query's own position."""
        q_BHSE, k_BKUE, v_BKUE = self.by_head(q, k, v, where)
        mask_SU = None if where.is_whole else visible(where.queries, where.keys, where.window)
        heads = self.shared_heads(where)
        is_grouped = heads != list(range(k_BKUE.shape[1]))
        if is_grouped and not _repeats(heads, k_BKUE.shape[1]):
            k_BKUE, v_BKUE, is_grouped = k_BKUE[:, heads], v_BKUE[:, heads], False
        y_BHSE = functional.scaled_dot_product_attention(
            q_BHSE, k_BKUE, v_BKUE, attn_mask=mask_SU, is_causal=mask_SU is None, enable_gqa=is_grouped
        )
        return y_BHSE.transpose(1, 2).flatten(2)

    def by_head(self, q: Tensor, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor, Tensor]:
        """Heads apart, [B, heads, positions, E], and turned by their positions."""
        size = self._network.head_size
        q, k, v = (torch.unflatten(x, -1, (-1, size)) for x in (q, k, v))
        if self._rotation is not None:
            q, k = self._turned(q, where.queries), self._turned(k, where.keys)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _turned(self, x_BTHE: Tensor, positions: Run) -> Tensor:
        assert self._rotation is not None, "positions are rotary"
        return rotate(x_BTHE, self._rotation[:, positions.start : positions.start + positions.length])

    def shared_heads(self, where: Where) -> list[int]:
        """For each query head the place of its key head among those that the rank has."""
        network, size = self._network, self._network.head_size
        shared = network.heads // network.kv_heads
        first, kv_first = where.heads.start // size, where.kv_heads.start // size
        return [(first + head) // shared - kv_first for head in range(where.heads.length // size)]


def _repeats(heads: Sequence[int], kv_heads: int) -> bool:
    """Whether each key head in turn serves as many query heads, as torch's grouped attention has it."""
    each = len(heads) // kv_heads
    return list(heads) == [head for head in range(kv_heads) for _ in range(each)]


def visible(queries: Run, keys: Run, window: int | None = None) -> Tensor:
    """[S, U]: whether a query sees a key: one at its own position or before it, and inside its window."""
    at_S = torch.arange(queries.start, queries.start + queries.length)
    at_U = torch.arange(keys.start, keys.start + keys.length)
    behind_SU = at_S[:, None] - at_U[None, :]
    return behind_SU >= 0 if window is None else (behind_SU >= 0) & (behind_SU < window)


@dataclass(slots=True)
class Running:
    """Attention over the keys seen so far, for each query (Milakov and Gimelshein 2018).

    Args:
        total: Values weighted by exponentials of scores, less the highest score [B, H, S, E].
        sums: Sum of those exponentials [B, H, S].
        highest: Highest score [B, H, S].
    """

    total: Tensor
    sums: Tensor
    highest: Tensor

    @classmethod
    def nothing(cls, q_BHSE: Tensor) -> "Running":
        """Before the first key."""
        sums_BHS = torch.zeros(q_BHSE.shape[:-1])
        return cls(
            torch.zeros(q_BHSE.shape, dtype=torch.float32), sums_BHS, torch.full_like(sums_BHS, -math.inf)
        )

    def see(self, q_BHSE: Tensor, k_BHUE: Tensor, v_BHUE: Tensor, mask_SU: Tensor) -> None:
        """Some keys more."""
        scores_BHSU = _scores(q_BHSE, k_BHUE, mask_SU)
        highest_BHS = torch.maximum(self.highest, scores_BHSU.amax(-1))
        # A query that has seen no key yet has a highest score of -inf, which must not be subtracted from itself.
        finite_BHS = highest_BHS.masked_fill(highest_BHS == -math.inf, 0.0)
        weights_BHSU = torch.exp(scores_BHSU - finite_BHS[..., None])
        fade_BHS = torch.exp(self.highest - finite_BHS)
        self.total = self.total * fade_BHS[..., None] + weights_BHSU @ v_BHUE.float()
        self.sums = self.sums * fade_BHS + weights_BHSU.sum(-1)
        self.highest = highest_BHS

    def finished(self) -> tuple[Tensor, Tensor]:
        """Outputs [B, H, S, E] and the logarithm of the sum of exponentials [B, H, S]."""
        return self.total / self.sums[..., None], self.highest + self.sums.log()


def seen_gradients(
    gradient_BHSE: Tensor,
    delta_BHS: Tensor,
    log_sums_BHS: Tensor,
    q_BHSE: Tensor,
    k_BHUE: Tensor,
    v_BHUE: Tensor,
    mask_SU: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What some keys add to the gradient of queries, and the gradients of these keys and values (Dao et al. 2022).

    Args:
        gradient_BHSE: Of the outputs.
        delta_BHS: Outputs times their gradients, summed over E.
        log_sums_BHS: From ``Running.finished``.
        q_BHSE: Queries.
        k_BHUE: A key head for each query head.
        v_BHUE: The same of values.
        mask_SU: From ``visible``.
    """
    weights_BHSU = torch.exp(_scores(q_BHSE, k_BHUE, mask_SU) - log_sums_BHS[..., None])
    of_v = weights_BHSU.transpose(-1, -2) @ gradient_BHSE.float()
    of_weights = gradient_BHSE.float() @ v_BHUE.float().transpose(-1, -2)
    of_scores = weights_BHSU * (of_weights - delta_BHS[..., None]) / math.sqrt(q_BHSE.shape[-1])
    return of_scores @ k_BHUE.float(), of_scores.transpose(-1, -2) @ q_BHSE.float(), of_v


def _scores(q_BHSE: Tensor, k_BHUE: Tensor, mask_SU: Tensor) -> Tensor:
    scores_BHSU = q_BHSE.float() @ k_BHUE.float().transpose(-1, -2) / math.sqrt(q_BHSE.shape[-1])
    return scores_BHSU.masked_fill(~mask_SU, -math.inf)
