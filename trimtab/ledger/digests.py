"""One number that tells whether two runs ended with the same weights, bit by bit."""

import hashlib
import struct
from collections.abc import Iterable, Sequence


def weights_digest(items: Iterable[tuple[str, Sequence[int], memoryview]]) -> str:
    """The sha256 of logical weights, in hexadecimal.

    Over the tensors in order of name, whatever order they come in: the name in UTF-8, the number of dims and
    each dim as little-endian int64, then the elements as little-endian fp32.

    Args:
        items: Name, shape and contiguous elements of every tensor; tied ones once.

    Raises: ValueError if a buffer's size does not fit its shape, or a name comes twice.
    """
    digest = WeightsDigest()
    for item in sorted(items, key=lambda item: item[0]):
        digest.add(*item)
    return digest.hexadecimal


class WeightsDigest:
    """The same, of tensors that come one at a time, in order of name."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._previous: str | None = None

    def add(self, name: str, shape: Sequence[int], elements: memoryview) -> None:
        """The next tensor.

        Raises: ValueError if the buffer's size does not fit the shape, or the name does not follow the one before.
        """
        if name == self._previous:
            raise ValueError(f"tensor {name!r} comes twice")
        if self._previous is not None and name < self._previous:
            raise ValueError(f"tensor {name!r} comes after {self._previous!r}, out of order")
        _check_size(name, shape, elements.nbytes)
        self._digest.update(name.encode())
        self._digest.update(struct.pack(f"<{1 + len(shape)}q", len(shape), *shape))
        self._digest.update(elements)
        self._previous = name

    @property
    def hexadecimal(self) -> str:
        """Of all that have come."""
        return self._digest.hexdigest()


def _check_size(name: str, shape: Sequence[int], size_bytes: int) -> None:
    expected = 4
    for dim in shape:
        expected *= dim
    if size_bytes != expected:
        raise ValueError(
            f"tensor {name!r} of shape {tuple(shape)} has {size_bytes} bytes, expected {expected}"
        )
