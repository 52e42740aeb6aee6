"""Which elements does dropout zero? Those that one device zeroes, whoever holds them.

A mask belongs to the whole activation [B, T, D] of a replica's microbatch, and its numbers to what is computed: (seed,
step, share, microbatch, layer, call). Every rank that holds a part of the activation draws all of the mask and takes its
own part: torch's generators cannot begin in the middle. They are the masks of ``trimtab.runtime.decoder``.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trimtab.plan.physical import Work
from trimtab.runtime.lowering.extents import Extent, Run, take
from trimtab.runtime.lowering.share_sums import shares_by_replica
from trimtab.runtime.random_keys import EMBEDDING_LAYER, RandomKey, draw_mask


class Masks:
    """Draws the masks of one run, or parts of them.

    Args:
        work: Of the plan that is run: which share each replica computes in each microbatch.
        probability: Of zeroing an element.
        seed: Of the run.
        rows: The plan's rows of a microbatch that a device computes, in its own order; by default all of them.
    """

    def __init__(
        self, work: Work, probability: float, *, seed: int, rows: Sequence[int] | None = None
    ) -> None:
        self._work, self._probability, self._seed = work, probability, seed
        self._rows = rows or range(work.replicas * work.microbatch)
        self._shares = shares_by_replica(work)

    def draw(
        self,
        x: Tensor,
        extent: Extent,
        shape: Sequence[int],
        *,
        step: int,
        microbatch: int,
        layer: int | None,
        call: int,
    ) -> Tensor:
        """What a piece is multiplied with: 0, or the inverse of the probability of being kept; shape and type of the piece.

        Args:
            x: The piece.
            extent: Where it lies in the activation.
            shape: Of the whole activation, over all rows of the microbatch.
            step: Of the run, from 0.
            microbatch: Of the rank, from 0, over all its shares.
            layer: None for what follows the embedding.
            call: Which draw of the layer.
        """
        turn, number = divmod(microbatch, self._work.microbatches_per_part)
        rows = extent.dims[0]
        parts = []
        for replica, first, last in self._runs(rows):
            if turn >= len(self._shares[replica]):  # Nothing is there, and nothing counts.
                parts.append(torch.ones((last - first, *shape[1:]), dtype=x.dtype, device=x.device))
                continue
            key = RandomKey(
                seed=self._seed,
                step=step,
                share=self._shares[replica][turn],
                microbatch=number,
                layer=EMBEDDING_LAYER if layer is None else layer,
                call=call,
            )
            parts.append(self._whole(x, key, shape)[first:last])
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        if whole.shape == x.shape:
            return whole
        return take(whole, extent.with_dim(0, Run(0, rows.real, rows.length)))

    def _runs(self, rows: Run) -> Iterator[tuple[int, int, int]]:
        """For each replica whose rows stand in a run: the replica, and its first and last row there, counted in its own."""
        own = [divmod(row, self._work.microbatch) for row in self._rows[rows.start : rows.start + rows.real]]
        for replica, found in itertools.groupby(own, key=lambda pair: pair[0]):
            places = [place for _, place in found]
            yield replica, places[0], places[-1] + 1

    def _whole(self, x: Tensor, key: RandomKey, shape: Sequence[int]) -> Tensor:
        """The mask of one replica."""
        whole = torch.empty((self._work.microbatch, *shape[1:]), dtype=x.dtype, device=x.device)
        if x.is_meta:  # Without numbers nothing is drawn.
            return whole
        generator = torch.Generator(x.device).manual_seed(key.to_int())
        return draw_mask(whole, self._probability, generator)
