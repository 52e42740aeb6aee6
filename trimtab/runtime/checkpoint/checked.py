"""Bytes of a checkpoint's files, each checked before it is given. Without torch."""

import hashlib
from collections.abc import Iterator
from typing import Protocol

from trimtab.ledger.manifests import CheckpointError, FileEntry
from trimtab.runtime.checkpoint.chunks import chunk_ends, digest_of


class Stored(Protocol):
    """Where the bytes of a file stand."""

    is_mapped: bool
    """Whether reading the same bytes twice costs nothing, and gives the same."""

    def read(self, first: int, last: int) -> memoryview:
        """The bytes from ``first`` to before ``last``."""


class File(Protocol):
    """A file of a checkpoint as its reader sees it."""

    size_bytes: int

    def read(self, first: int, last: int) -> memoryview:
        """The bytes from ``first`` to before ``last``, checked.

        Raises: CheckpointError naming the file, if they are not those that were written.
        """

    def check(self) -> None:
        """Read every byte.

        Raises: as ``read``.
        """


class CheckedFile:
    """A file of which every chunk is compared with its digest before a byte of it is used.

    Args:
        entry: What the manifest says of it.
        source: Its name in messages.
        stored: Its bytes, of the size that the manifest states.

    Raises: CheckpointError if the manifest's digests do not fit together.
    """

    def __init__(self, entry: FileEntry, source: str, stored: Stored) -> None:
        self.size_bytes = entry.size_bytes
        self._source, self._stored = source, stored
        self._checked: set[int] = set()
        self._ends = list(ends_of(entry))
        self._digests = entry.chunks.sha256 if entry.chunks else (entry.sha256,)
        if entry.chunks and (
            len(self._digests) != len(self._ends) or digest_of(self._digests) != entry.sha256
        ):
            raise CheckpointError(f"{source}: its manifest has digests that do not fit together")

    def read(self, first: int, last: int) -> memoryview:
        """See File. A whole file of format 2 or older is read to check any byte of it."""
        pieces = [
            chunk[max(first, begin) - begin : min(last, end) - begin]
            for begin, end, chunk in self._chunks(first, last)
        ]
        if self._stored.is_mapped:
            return self._stored.read(first, last)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def check(self) -> None:
        """See File."""
        for _ in self._chunks(0, self.size_bytes):
            pass

    def _chunks(self, first: int, last: int) -> Iterator[tuple[int, int, memoryview]]:
        """Those that have a byte of the range, or all that there is of an empty file."""
        for number, (begin, end) in enumerate(self._ends):
            if (begin < last and first < end) or not self.size_bytes:
                chunk = self._stored.read(begin, end)
                if number not in self._checked:
                    self._compare(number, chunk)
                if self._stored.is_mapped:
                    self._checked.add(number)
                yield begin, end, chunk

    def _compare(self, number: int, chunk: memoryview) -> None:
        found, wanted = hashlib.sha256(chunk).hexdigest(), self._digests[number]
        if found != wanted:
            begin, end = self._ends[number]
            raise CheckpointError(
                f"{self._source}: damaged: sha256 {found[:16]}..., expected {wanted[:16]}..., of bytes {begin} to "
                f"{end}; roll back to an older checkpoint, or restore the file"
            )


def ends_of(entry: FileEntry) -> Iterator[tuple[int, int]]:
    """The chunks of a file; one, before there were any."""
    if entry.chunks is None:
        return iter([(0, entry.size_bytes)])
    return chunk_ends(
        entry.size_bytes, head_bytes=entry.chunks.head_bytes, chunk_bytes=entry.chunks.chunk_bytes
    )
