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
    digest = hashlib.sha256()
    previous = None
    for name, shape, elements in sorted(items, key=lambda item: item[0]):
        if name == previous:
            raise ValueError(f"tensor {name!r} comes twice")
        _check_size(name, shape, elements.nbytes)
        digest.update(name.encode())
        digest.update(struct.pack(f"<{1 + len(shape)}q", len(shape), *shape))
        digest.update(elements)
        previous = name
    return digest.hexdigest()


def _check_size(name: str, shape: Sequence[int], size_bytes: int) -> None:
    expected = 4
    for dim in shape:
        expected *= dim
    if size_bytes != expected:
        raise ValueError(
            f"tensor {name!r} of shape {tuple(shape)} has {size_bytes} bytes, expected {expected}"
        )
