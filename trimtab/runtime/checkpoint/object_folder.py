"""A checkpoint in an object store as its readers see it: what they need of it is fetched, in chunks. Without torch."""

from trimtab.ledger.manifests import CheckpointError
from trimtab.runtime.checkpoint.local_folder import text_of
from trimtab.runtime.checkpoint.objects import ObjectPath


class ObjectFolder:
    """See StoredFolder. Nothing keeps it from being removed: a reader then finds an object gone."""

    def __init__(self, folder: ObjectPath) -> None:
        self._folder = folder
        self._sizes: dict[str, int] | None = None

    def text(self, path: str, source: str) -> str:
        """See StoredFolder."""
        try:
            return text_of((self._folder / path).read(), source)
        except FileNotFoundError as error:
            raise CheckpointError(f"{source}: there is no such object") from error
        except OSError as error:
            raise CheckpointError(f"{source}: {error}") from error

    def stored(self, path: str, source: str, size_bytes: int) -> "FetchedBytes":
        """See StoredFolder."""
        try:
            if self._sizes is None:
                self._sizes = self._folder.sizes()
        except OSError as error:
            raise CheckpointError(f"{source}: {error}") from error
        found = self._sizes.get(path)
        if found is None:
            raise CheckpointError(f"{source}: there is no such object")
        if found != size_bytes:
            raise CheckpointError(f"{source}: {found} bytes, expected {size_bytes}")
        return FetchedBytes(self._folder / path, source)

    def close(self) -> None:
        """See StoredFolder."""


class FetchedBytes:
    """See Stored; of an object. The newest range is kept, for whoever goes on in the same chunk."""

    is_mapped = False

    def __init__(self, path: ObjectPath, source: str) -> None:
        self._path, self._source = path, source
        self._newest: tuple[int, int, memoryview] | None = None

    def read(self, first: int, last: int) -> memoryview:
        """See Stored.

        Raises: CheckpointError naming the object.
        """
        if self._newest is None or self._newest[:2] != (first, last):
            try:
                contents = self._path.read_range(first, last)
            except OSError as error:
                raise CheckpointError(f"{self._source}: {error}") from error
            if len(contents) != last - first:
                raise CheckpointError(f"{self._source}: it ends before byte {last}")
            self._newest = first, last, memoryview(contents)
        return self._newest[2]
