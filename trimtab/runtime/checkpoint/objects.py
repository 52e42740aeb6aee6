"""Checkpoints in an object store, by the library fsspec: names, ranges of bytes, and patience.

A store has no folders to rename and no locks. It may show what was written late, and fails now and then: what it does not
answer is asked for again, a bounded number of times.

fsspec, and the library of the store, are loaded when the first object is asked for.
"""

import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

TRIES = 5
FIRST_PAUSE_S = 0.2
"""Doubled after each try, with as much again by chance: 3 to 6 s in all."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """A place in an object store: ``s3://bucket/prefix/quickstart-7/step-20``. In most ways like a path.

    Every method raises OSError if the store refuses, or does not answer after ``TRIES`` tries; FileNotFoundError for what is
    not there.
    """

    url: str

    def __truediv__(self, name: str) -> "ObjectPath":
        return ObjectPath(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        """What it is in."""
        return ObjectPath(self.url.rstrip("/").rpartition("/")[0])

    def exists(self) -> bool:
        """Whether there is an object here, or under here."""
        return bool(_patiently(f"look for {self.url}", lambda: self._system.exists(self._key)))

    def read(self) -> bytes:
        """All of an object."""
        return bytes(_patiently(f"read {self.url}", lambda: self._system.cat_file(self._key)))

    def read_range(self, first: int, last: int) -> bytes:
        """The bytes from ``first`` to before ``last``."""
        if first == last:
            return b""
        return bytes(
            _patiently(f"read {self.url}", lambda: self._system.cat_file(self._key, start=first, end=last))
        )

    def write(self, contents: bytes) -> None:
        """Make or replace an object, in one act."""
        _patiently(f"write {self.url}", lambda: self._system.pipe_file(self._key, contents))

    def write_first(self, contents: bytes) -> None:
        """Make an object that is not there yet, in one act.

        Raises: FileExistsError if there is another; also OSError.
        """
        try:
            _patiently(
                f"write {self.url}", lambda: self._system.pipe_file(self._key, contents, mode="create")
            )
        except FileExistsError:
            if self.read() != contents:  # else it was written by a try whose answer was lost
                raise

    def open_new(self) -> Any:
        """A file object; what is written to it becomes an object when it is closed, in one act."""
        return _patiently(f"write {self.url}", lambda: self._system.open(self._key, "wb"))

    def sizes(self) -> dict[str, int]:
        """Bytes of every object under here, by the rest of its name."""
        return {name: int(about["size"]) for name, about in self.about().items()}

    def about(self) -> dict[str, dict[str, Any]]:
        """What the store says of every object under here, by the rest of its name."""
        root = self._key.rstrip("/") + "/"
        found = _patiently(f"list {self.url}", lambda: self._system.find(self._key, detail=True))
        return {name.removeprefix(root): about for name, about in found.items() if name.startswith(root)}

    def remove(self) -> None:
        """Remove an object; nothing if it has gone."""
        with_patience = functools.partial(_patiently, f"remove {self.url}")
        try:
            with_patience(lambda: self._system.rm_file(self._key))
        except FileNotFoundError:
            return

    @property
    def _system(self) -> Any:
        return _system(self.url.partition("://")[0])

    @property
    def _key(self) -> str:
        key: str = self._system._strip_protocol(self.url)
        return key


@functools.cache
def _system(protocol: str) -> Any:
    import fsspec

    # What others have written must be seen, not remembered.
    return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True)


def _patiently(what: str, ask: Callable[[], _Answer]) -> _Answer:
    """Ask a store, again if it fails."""
    pause_s = FIRST_PAUSE_S
    for number in range(1, TRIES + 1):
        try:
            return ask()
        except (FileNotFoundError, FileExistsError, PermissionError, ImportError):
            raise
        except Exception as error:
            if number == TRIES:
                raise OSError(f"cannot {what}, asked {TRIES} times: {error}") from error
        time.sleep(pause_s * (1 + random.random()))  # noqa: S311 - so that ranks do not ask together
        pause_s *= 2
    raise AssertionError("the last try returns or raises")
