"""Tokens and targets of one step, cut into microbatches as a plan says."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from symbolic_integers import MODULUS, NO_TARGET
from symbolic_pieces import Array
from symbolic_plan import Plan


class WrongError(Exception):
    """A number is not that of one device; the message says which, on which rank, and how it differs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One microbatch of all ranks.

    Args:
        tokens: [B, S].
        targets: [B, S]; NO_TARGET where nothing is to be predicted.
        weights: [B, S]: what each token counts in the loss; 0 where nothing is to be predicted.
    """

    tokens: Array
    targets: Array
    weights: Array


def batches_of(plan: Plan, seed: int) -> tuple[Batch, ...]:
    """The microbatches of a step, with random tokens.

    About a quarter of the targets is masked, in every sample another number, but never all of them.

    Raises: WrongError if the plan's numbers of shares and microbatches do not make the batch.
    """
    samples, length, vocab = plan.work["batch"], plan.work["sequence"], plan.network["vocab"]
    chance = np.random.default_rng([seed, 1])
    tokens, targets = chance.integers(0, vocab, (2, samples, length))
    weights = chance.integers(1, MODULUS, (samples, length))
    masked = chance.random((samples, length)) < chance.random((samples, 1)) / 2
    masked[:, 0] = False
    step = Batch(tokens=tokens, targets=np.where(masked, NO_TARGET, targets), weights=weights * ~masked)
    rows = list(_samples_of_microbatches(plan.work))
    known = sorted(sample for row in rows for sample in row if sample is not None)
    if known != list(range(samples)):
        raise WrongError(
            f"the microbatches of the plan hold the samples {known}, and the batch has {samples}"
        )
    return tuple(_rows_of(step, row) for row in rows)


def _samples_of_microbatches(work: Mapping[str, int]) -> Iterator[list[int | None]]:
    """For each microbatch the sample in each row of all ranks; None where a replica has no share left."""
    replicas, parts, microbatch = work["replicas"], work["parts"], work["microbatch"]
    turns = -(-parts // replicas)
    by_part = work["microbatches"] // turns
    samples_per_part = work["batch"] // parts
    for turn, index in itertools.product(range(turns), range(by_part)):
        row: list[int | None] = []
        for replica, at in itertools.product(range(replicas), range(microbatch)):
            part = turn * replicas + replica
            row.append(part * samples_per_part + index * microbatch + at if part < parts else None)
        yield row


def _rows_of(step: Batch, samples: Sequence[int | None]) -> Batch:
    """Some samples; a row without one predicts nothing."""
    rows = np.array([-1 if sample is None else sample for sample in samples])
    is_real = (rows >= 0)[:, None]
    return Batch(
        tokens=step.tokens[rows] * is_real,
        targets=np.where(is_real, step.targets[rows], NO_TARGET),
        weights=step.weights[rows] * is_real,
    )
