"""The chunks of a checkpoint's file, each with a digest of its own. Standard library only: the writer makes them.

A file's header is a chunk, and every 8 MiB after it are one. So a reader checks what it reads and nothing else: the header
of every file, and of the tensors those parts that it needs.
"""

import hashlib
from collections.abc import Iterable, Iterator

CHUNK_BYTES = 8 << 20
"""Hashed while in the cache, and 64 digits of the manifest for each: 40 MB of it for 5 TB of state."""


def chunk_ends(size_bytes: int, *, head_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Where each chunk begins and ends; an empty file has one, which is empty.

    >>> list(chunk_ends(25, head_bytes=5, chunk_bytes=8))
    [(0, 5), (5, 13), (13, 21), (21, 25)]
    """
    first, last = 0, min(head_bytes or chunk_bytes, size_bytes)
    yield first, last
    while last < size_bytes:
        first, last = last, min(last + chunk_bytes, size_bytes)
        yield first, last


def stored_bytes(size_bytes: int, *, head_bytes: int, tag_bytes: int) -> int:
    """Bytes of a file on disk, of which every chunk grows by as many when it is encrypted.

    >>> stored_bytes(100, head_bytes=64, tag_bytes=16)
    132
    """
    ends = chunk_ends(size_bytes, head_bytes=head_bytes, chunk_bytes=CHUNK_BYTES)
    return size_bytes + tag_bytes * sum(1 for _ in ends)


def digest_of(chunk_digests: Iterable[str]) -> str:
    """The digest of a file, from those of its chunks in order: SHA-256 over their bytes."""
    return hashlib.sha256(b"".join(map(bytes.fromhex, chunk_digests))).hexdigest()
