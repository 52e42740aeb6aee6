"""Which sample stands at which position of a run.

A run reads an endless stream of positions 0, 1, 2, ... The batch of step s holds positions
``[s * batch, (s + 1) * batch)``. Position g is in epoch ``g // num_samples``, and each epoch is a permutation of
all samples, keyed by (seed, epoch). Nothing depends on ranks: any world size, and a run that is resumed any number
of times, reads the same samples in the same steps, and a position is all there is to save.

Batches straddle epoch borders. A run of E epochs has ``ceil(E * num_samples / batch)`` steps; what the last batch
lacks is filled with empty samples, which carry no weight, so the number of steps is the same on every rank.
"""

import numpy as np
from numpy.typing import NDArray

from trimtab.runtime.data.packing import EMPTY

# Separates this use of the seed from others.
_ORDER_STREAM = 0x0D_A7_A0_D3
_SEED_MASK = 2**64 - 1


def permutation(count: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of ``count`` samples in an epoch; the same for ever.

    Sorts PCG64's raw output, whose stream numpy keeps; that of ``Generator.permutation`` may change with a release
    (NEP 19), and with it the data order of a run that is resumed after an upgrade.

    Args:
        count: Number of samples.
        seed: Any integer; its lowest 64 bits count.
        epoch: At least 0.
    """
    keys = np.random.PCG64([_ORDER_STREAM, seed & _SEED_MASK, epoch]).random_raw(count)
    return np.argsort(keys, kind="stable")


class SampleIndex:
    """Positions to sample ids.

    Keeps the orders of the two epochs asked for last, as a batch can straddle their border. Safe to call from
    several threads.

    Args:
        num_samples: Samples in an epoch, at least 1.
        seed: As in ``permutation``.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        """Nothing is computed before the first question."""
        assert num_samples > 0, "a corpus without samples is refused when it is opened"
        self.num_samples = num_samples
        self.seed = seed
        self._orders: dict[int, NDArray[np.int64]] = {}

    def num_positions(self, epochs: float) -> int:
        """Samples in a run of ``epochs`` epochs: the nearest whole number, at least 1."""
        return max(round(epochs * self.num_samples), 1)

    def num_steps(self, epochs: float, batch: int) -> int:
        """Steps in a run of ``epochs`` epochs: the last batch may be filled up with empty samples."""
        return -(-self.num_positions(epochs) // batch)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The permutation of an epoch, ``[num_samples]``; not to be written to."""
        orders = self._orders
        if epoch not in orders:
            kept = dict(list(orders.items())[-1:])
            kept[epoch] = permutation(self.num_samples, seed=self.seed, epoch=epoch)
            # Replaced as a whole: another thread may be reading the old one.
            self._orders = orders = kept
        return orders[epoch]

    def sample_ids(self, start: int, count: int, limit: int | None = None) -> NDArray[np.int64]:
        """Sample ids at positions ``[start, start + count)``; ``EMPTY`` at and behind position ``limit``."""
        ids = np.full(count, EMPTY, np.int64)
        end = start + count if limit is None else max(min(start + count, limit), start)
        for epoch in range(start // self.num_samples, -(-end // self.num_samples)):
            first = epoch * self.num_samples
            begin, stop = max(start, first), min(end, first + self.num_samples)
            ids[begin - start : stop - start] = self.order(epoch)[begin - first : stop - first]
        return ids

    def batch_indices(self, step: int, batch: int, limit: int | None = None) -> NDArray[np.int64]:
        """Sample ids of the batch of a step, ``[batch]``."""
        return self.sample_ids(step * batch, batch, limit)
