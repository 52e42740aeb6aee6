"""Which data stand at a position of a run whose loop is the user's own?

Positions are global: step s of a run with batch b reads ``[s * b, (s + 1) * b)``, whoever computes them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset, default_collate

from trimtab.runtime.data.samples import SampleIndex
from trimtab.terms import InputError

Source = Dataset[Any] | Sequence[Any] | Callable[[range], Any]
"""A map-style dataset, or a function from global positions to the batch of these positions."""


class UserData:
    """Batches of one source by their positions.

    A dataset is read in epochs, each in an order of its own, keyed by (seed, epoch). A function is asked for the
    positions as they are.

    Args:
        source: See Source.
        collate: Makes a batch of a list of samples; of a dataset only.

    Raises: InputError if the source is neither, or is empty.
    """

    def __init__(
        self, source: Source, *, seed: int, collate: Callable[[list[Any]], Any] | None = None
    ) -> None:
        self.source = source
        self._collate = collate or default_collate
        self._index: SampleIndex | None = None
        if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
            if not len(source):
                raise InputError("the dataset is empty")
            self._index = SampleIndex(len(source), seed)
        elif not callable(source):
            raise InputError(
                f"step.microbatches got a {type(source).__name__}; it takes a map-style dataset (__getitem__ and "
                f"__len__), or a function from a range of global sample positions to a batch.\n"
                "  A loader or an iterator will not do: what it gives depends on who asked before."
            )

    def batch(self, positions: range) -> Any:
        """The batch of some positions."""
        if self._index is None:
            assert callable(self.source)
            return self.source(positions)
        ids = self._index.sample_ids(positions.start, len(positions))
        samples: Any = self.source
        return self._collate([samples[int(sample)] for sample in ids])
