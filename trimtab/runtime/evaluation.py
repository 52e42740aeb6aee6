"""Scores the held-out split, spread over the ranks, to the same bits whatever their number."""

from collections.abc import Callable

import torch
from torch import Tensor

from trimtab.runtime.models import Model
from trimtab.runtime.process_groups import Group
from trimtab.runtime.watch import Watch
from trimtab.terms import Phase


class Evaluator:
    """Loss of the held-out batches. Leaves training order, random state and gradients untouched.

    Args:
        batches: The batches to score, always the same in the same order: (tokens, targets) int64, each (samples,
            sequence); targets of -100 do not count.
        is_cut_short: Asked before every batch; once it says yes on any rank, the whole score is given up, so that a
            wish to stop is not kept waiting.
        takes_all: Whether a batch takes every rank, for they hold the model in pieces: then all ask once, before the
            first batch, and a rank without a batch of its own computes one that does not count.
    """

    def __init__(
        self,
        *,
        model: Model,
        batches: list[tuple[Tensor, Tensor]],
        watch: Watch,
        is_cut_short: Callable[[], bool] = lambda: False,
        takes_all: bool = False,
    ) -> None:
        self._model, self._batches, self._watch = model, batches, watch
        self._is_cut_short, self._takes_all = is_cut_short, takes_all

    def score(self, group: Group, step: int) -> tuple[float | None, int]:
        """Mean loss per target in nats, and the number of targets; None if there are none, or it was given up.

        Every batch is scored by one rank and lands in a slot of its own, so the sum over ranks adds zeros only,
        and the sum over slots has one order.
        """
        self._watch.enter(Phase.EVALUATE, step)
        slots = torch.zeros(len(self._batches) * 2 + 1, dtype=torch.float64)
        position = group.members.index(group.rank)
        if self._takes_all and self._is_given_up(group):
            return None, 0
        self._model.module.eval()
        for first in range(0, len(self._batches), group.size):
            number = first + position
            is_there = number < len(self._batches)
            if not (is_there or self._takes_all):
                break
            self._watch.move()
            self._watch.raise_if_fenced()
            if not self._takes_all and self._is_cut_short():
                slots[-1] = 1.0
                break
            loss, count = self._score_batch(*self._batches[number if is_there else 0])
            if is_there:
                slots[2 * number], slots[2 * number + 1] = loss, count
        self._model.module.train()
        with self._watch.waiting("all_reduce"):
            group.all_reduce(slots)
        if slots[-1]:
            return None, 0
        losses, counts = slots[:-1].view(-1, 2).unbind(1)
        num_targets = round(sum(counts.tolist()))
        return (sum(losses.tolist()) / num_targets if num_targets else None), num_targets

    def _is_given_up(self, group: Group) -> bool:
        word = torch.tensor([int(self._is_cut_short())], dtype=torch.int64)
        with self._watch.waiting("all_reduce"):
            group.all_reduce(word)
        return bool(word.item())

    def _score_batch(self, tokens: Tensor, targets: Tensor) -> tuple[float, int]:
        with torch.no_grad():
            loss, count = self._model.loss_sum(tokens, targets)
        return float(loss), int(count)
