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
    """

    def __init__(
        self,
        *,
        model: Model,
        batches: list[tuple[Tensor, Tensor]],
        watch: Watch,
        is_cut_short: Callable[[], bool] = lambda: False,
    ) -> None:
        self._model, self._batches, self._watch = model, batches, watch
        self._is_cut_short = is_cut_short

    def score(self, group: Group, step: int) -> tuple[float | None, int]:
        """Mean loss per target in nats, and the number of targets; None if there are none, or it was given up.

        Every batch is scored by one rank and lands in a slot of its own, so the sum over ranks adds zeros only,
        and the sum over slots has one order.
        """
        self._watch.enter(Phase.EVALUATE, step)
        slots = torch.zeros(len(self._batches) * 2 + 1, dtype=torch.float64)
        position = group.members.index(group.rank)
        self._model.module.eval()
        for number in range(position, len(self._batches), group.size):
            self._watch.move()
            self._watch.raise_if_fenced()
            if self._is_cut_short():
                slots[-1] = 1.0
                break
            loss, count = self._score_batch(*self._batches[number])
            slots[2 * number], slots[2 * number + 1] = loss, count
        self._model.module.train()
        with self._watch.waiting():
            group.all_reduce(slots)
        if slots[-1]:
            return None, 0
        losses, counts = slots[:-1].view(-1, 2).unbind(1)
        num_targets = round(sum(counts.tolist()))
        return (sum(losses.tolist()) / num_targets if num_targets else None), num_targets

    def _score_batch(self, tokens: Tensor, targets: Tensor) -> tuple[float, int]:
        with torch.no_grad():
            loss, count = self._model.loss_sum(tokens, targets)
        return float(loss), int(count)
