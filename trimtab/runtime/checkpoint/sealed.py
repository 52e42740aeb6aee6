"""An encrypted file of a checkpoint, as its reader sees it. Without torch."""

from collections.abc import Callable, Iterator

from trimtab.ledger.manifests import CheckpointError, FileEntry
from trimtab.runtime.checkpoint.checked import CheckedFile, ends_of
from trimtab.runtime.checkpoint.cipher import TAG_BYTES, CipherError


class SealedFile:
    """See File. Chunks are decrypted as they are needed; the newest is kept, for the tensor that goes on in it.

    Args:
        entry: What the manifest says of it.
        source: Its name in messages.
        stored: What is encrypted, checked.
        open_chunk: Decrypts a chunk, given its number, whether it is the last, and its bytes; raises CipherError.
    """

    def __init__(
        self,
        entry: FileEntry,
        source: str,
        stored: CheckedFile,
        open_chunk: Callable[[int, bool, memoryview], bytes],
    ) -> None:
        self._source, self._stored, self._open = source, stored, open_chunk
        self._ends = list(ends_of(entry))
        self.size_bytes = entry.size_bytes - TAG_BYTES * len(self._ends)
        self._newest: tuple[int, bytes] | None = None

    def read(self, first: int, last: int) -> memoryview:
        """See File."""
        pieces = [
            memoryview(chunk)[max(first, begin) - begin : min(last, begin + len(chunk)) - begin]
            for begin, chunk in self._chunks(first, last)
        ]
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def check(self) -> None:
        """See File."""
        for _ in self._chunks(0, self.size_bytes):
            pass

    def _chunks(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Where each that has a byte of the range begins, and what it says."""
        for number, (begin, end) in enumerate(self._ends):
            plain_begin, plain_end = begin - TAG_BYTES * number, end - TAG_BYTES * (number + 1)
            if (plain_begin < last and first < plain_end) or not self.size_bytes:
                yield plain_begin, self._opened(number, begin, end)

    def _opened(self, number: int, begin: int, end: int) -> bytes:
        if self._newest is None or self._newest[0] != number:
            stored = self._stored.read(begin, end)
            try:
                self._newest = number, self._open(number, number == len(self._ends) - 1, stored)
            except CipherError as error:
                raise CheckpointError(f"{self._source}: {error}: bytes {begin} to {end}") from error
        return self._newest[1]
