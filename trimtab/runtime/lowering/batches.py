"""Which samples stand in which microbatch, on all ranks together."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from trimtab.plan.physical import Work
from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.lowering.extents import Extent, Run, take
from trimtab.runtime.lowering.share_sums import shares_by_replica

Microbatch = tuple[Tensor, Tensor]
"""Tokens and targets [B, S] of one microbatch on all replicas, int64; targets of -100 do not count."""


Feed = Callable[[Tensor, Extent], Tensor]
"""From tokens or targets of a microbatch to the piece of a rank."""


def own_columns(rows_BT: Tensor, extent: Extent) -> Tensor:
    """The piece of a rank from its own rows alone."""
    assert rows_BT.shape[0] == extent.dims[0].length, (rows_BT.shape, extent)
    return take(rows_BT, extent.with_dim(0, Run(0, rows_BT.shape[0], rows_BT.shape[0])))


def microbatches_of(work: Work, tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Microbatch, ...]:
    """A batch cut as a plan says; rows of a replica that has no share left predict nothing."""
    found = []
    for row in _samples(work):
        samples = torch.tensor([0 if sample is None else sample for sample in row])
        is_missing = torch.tensor([sample is None for sample in row])
        targets = targets_BT[samples].masked_fill(is_missing[:, None], IGNORED_TARGET)
        found.append((tokens_BT[samples], targets))
    return tuple(found)


def _samples(work: Work) -> Iterator[Sequence[int | None]]:
    """For each microbatch the sample in each row; None where a replica has no share left."""
    by_part = work.microbatches_per_part
    samples_per_part = work.batch // work.num_parts
    owned = shares_by_replica(work)
    for turn, index in itertools.product(range(work.parts_per_replica), range(by_part)):
        row: list[int | None] = []
        for replica, at in itertools.product(range(work.replicas), range(work.microbatch)):
            is_there = turn < len(owned[replica])
            first = owned[replica][turn] * samples_per_part if is_there else 0
            row.append(first + index * work.microbatch + at if is_there else None)
        yield row
