"""The one pickle that is read: the metadata of a torch distributed checkpoint, without running anything of it.

A pickle is a program: it names functions and calls them. Here every name is looked up in a list, and what stands in the
list are stand-ins of our own that hold values. No class of torch, and no function of Python's, is ever found by a pickle.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trimtab.runtime.foreign.errors import ForeignError

MAX_BYTES = 1_000_000_000
"""Of metadata: that of a network of a hundred thousand pieces has about 50 MB."""

TYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool",
         "float8_e4m3fn", "float8_e5m2")  # fmt: skip
"""Names of torch's types that are understood; each stands for itself, as text."""


class Record:
    """Stands for an object of another program's class: the values that it was given, and nothing that acts."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.state: Any = {}

    def __setstate__(self, state: Any) -> None:
        self.values, self.state = (), state

    def get(self, name: str) -> Any:
        """A field, or None."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class Metadata(Record):
    """Of a whole checkpoint."""


class TensorRecord(Record):
    """Of one tensor."""


class BytesRecord(Record):
    """Of something that is no tensor."""


class IndexRecord(Record):
    """Names a piece of a tensor."""


class StorageRecord(Record):
    """Where a piece stands."""


def read_metadata(contents: bytes, source: str) -> Metadata:
    """What the metadata of a torch distributed checkpoint says.

    Args:
        contents: Of the file ``.metadata``.
        source: The name that errors show.

    Raises: ForeignError naming what it would have called; nothing was.
    """
    if len(contents) > MAX_BYTES:
        raise ForeignError(
            source, [f"{len(contents)} bytes, at most {MAX_BYTES} are read"], "See that it is one."
        )
    try:
        found = _Reader(source, contents).load()
    except ForeignError:
        raise
    except Exception as error:
        raise ForeignError(
            source,
            [f"not the metadata of a torch distributed checkpoint: {type(error).__name__}: {error}"],
            "It is damaged, or another kind of file.",
        ) from error
    if not isinstance(found, Metadata):
        raise ForeignError(
            source, [f"holds a {type(found).__name__}, expected Metadata"], "See that it is one."
        )
    return found


class _Reader(pickle.Unpickler):
    """An unpickler that finds nothing but stand-ins."""

    def __init__(self, source: str, contents: bytes) -> None:
        super().__init__(io.BytesIO(contents))
        self._source = source

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in TYPES:
            return name
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise ForeignError(
                self._source,
                [f"its pickle names {module}.{name}, which metadata has no use for; nothing of it was run"],
                "Do not load this file with anything else: a pickle that means harm runs when it is read.",
            ) from None

    def persistent_load(self, pid: object) -> Any:
        raise ForeignError(self._source, ["its pickle refers to objects outside of it"], "It is damaged.")


def _size(items: Iterable[int] = ()) -> tuple[int, ...]:
    found = tuple(items)
    if not all(type(item) is int for item in found):
        raise ValueError(f"a size of {found!r}")
    return found


def _nothing(*_: Any) -> None:
    """Stands for settings of memory that mean nothing on disk."""


def _text(*parts: Any) -> str:
    return "/".join(map(str, parts))


def _pairs(*items: Any) -> dict[Any, Any]:
    return dict(*items)


_METADATA = "torch.distributed.checkpoint.metadata"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
_PLANNER = "torch.distributed.checkpoint.planner"
_MEGATRON = "megatron.core.dist_checkpointing.strategies.torch"

_ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
    (_METADATA, "Metadata"): Metadata,
    (_MEGATRON, "MCoreMetadata"): Metadata,
    (_METADATA, "TensorStorageMetadata"): TensorRecord,
    (_METADATA, "BytesStorageMetadata"): BytesRecord,
    (_METADATA, "MetadataIndex"): IndexRecord,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): StorageRecord,
    **dict.fromkeys(
        [
            (_METADATA, "ChunkStorageMetadata"),
            (_METADATA, "TensorProperties"),
            (_METADATA, "StorageMeta"),
            (_SHARDED, "TensorProperties"),
            (_PLANNER, "SavePlan"),
            (_PLANNER, "WriteItem"),
            (_PLANNER, "TensorWriteData"),
            (_PLANNER, "BytesIOWriteData"),
            (_MEGATRON, "MCoreSavePlan"),
        ],
        Record,
    ),
    **dict.fromkeys(
        [
            (_METADATA, "_MEM_FORMAT_ENCODING"),
            (_SHARDED, "MEM_FORMAT_ENCODING"),
            (_PLANNER, "WriteItemType"),
            ("torch.serialization", "_get_layout"),
        ],
        _nothing,
    ),
    ("torch", "Size"): _size,
    ("pathlib", "PosixPath"): _text,
    ("pathlib", "WindowsPath"): _text,
    ("pathlib", "PurePosixPath"): _text,
    ("pathlib._local", "PosixPath"): _text,
    ("collections", "OrderedDict"): _pairs,
}
"""What metadata names: torch 2.1 to 2.13, and Megatron-LM core. The classes are not imported."""
