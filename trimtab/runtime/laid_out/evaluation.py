"""Scores the held-out split with a plan: replicas take batches in turn, the ranks of each compute one together."""

from collections.abc import Callable, Sequence

import torch

from trimtab.runtime.lowering import IGNORED_TARGET, Microbatch, Rank
from trimtab.runtime.process_groups import Group
from trimtab.runtime.watch import Watch
from trimtab.terms import Phase


class LaidOutEvaluator:
    """Loss of the held-out batches; see ``trainer.Scorer``.

    Args:
        rank: Of the plan.
        batches: To score, always the same in the same order: (tokens, targets) int64, each (samples, sequence).
        is_cut_short: Asked before the first batch: a wish to stop is not kept waiting.
    """

    def __init__(
        self,
        *,
        rank: Rank,
        batches: Sequence[Microbatch],
        watch: Watch,
        is_cut_short: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rank, self._batches, self._watch, self._is_cut_short = rank, batches, watch, is_cut_short

    def score(self, group: Group, step: int) -> tuple[float | None, int]:
        """See Scorer. Every batch has a slot of its own, so that the sum over slots has one order."""
        self._watch.enter(Phase.EVALUATE, step)
        if self._is_given_up(group):
            return None, 0
        work, replica = self._rank.plan.work, self._rank.replica
        slots = torch.zeros((len(self._batches), 2), dtype=torch.float64)
        for first in range(0, len(self._batches), work.replicas):
            self._watch.move()
            self._watch.raise_if_fenced()
            number = first + replica
            is_there = number < len(self._batches)
            batch = self._filled(self._batches[number]) if is_there else self._filled(None)
            loss = self._rank.score(batch)
            if is_there and loss is not None:
                slots[number, 0] = loss
        group.all_reduce(slots)
        counts = [int((targets != IGNORED_TARGET).sum()) for _, targets in self._batches]
        num_targets = sum(counts)
        return (sum(slots[:, 0].tolist()) / num_targets if num_targets else None), num_targets

    def _is_given_up(self, group: Group) -> bool:
        word = torch.tensor([int(self._is_cut_short())], dtype=torch.int64)
        group.all_reduce(word)
        return bool(word.item())

    def _filled(self, batch: Microbatch | None) -> Microbatch:
        """A batch of as many samples as a microbatch has; those that are added predict nothing."""
        work = self._rank.plan.work
        tokens = torch.zeros((work.microbatch, work.sequence), dtype=torch.int64)
        targets = torch.full_like(tokens, IGNORED_TARGET)
        if batch is not None:
            tokens[: len(batch[0])], targets[: len(batch[1])] = batch
        return tokens, targets
