"""Which samples stand in which microbatch, on all ranks together."""

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trimtab.plan.physical import Work
from trimtab.runtime.decoder import IGNORED_TARGET

Microbatch = tuple[Tensor, Tensor]
"""Tokens and targets [B, S] of one microbatch on all replicas, int64; targets of -100 do not count."""


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
    for turn, index in itertools.product(range(work.parts_per_replica), range(by_part)):
        row: list[int | None] = []
        for replica, at in itertools.product(range(work.replicas), range(work.microbatch)):
            part = turn * work.replicas + replica
            is_there = part < work.num_parts
            row.append(part * samples_per_part + index * work.microbatch + at if is_there else None)
        yield row
