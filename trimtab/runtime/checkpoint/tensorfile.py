"""The header of a safetensors file, written and read by hand, and which part of the state a tensor is of.

A file is eight bytes of header length (little-endian), a JSON header, and the tensors one after the other.
Writing it here lets the staging memory hold the exact bytes of the file, so that the writer needs no
knowledge of tensors; reading it here lets a file be checked without torch.

Source: https://github.com/huggingface/safetensors#format
"""

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.ledger.manifests import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    PARAMETERS,
    CheckpointError,
    parse_json,
    rank_file,
    whole_file,
)
from trimtab.runtime.checkpoint.checked import File

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""
FLOAT_BYTES = 4
_ALIGNMENT = 64
"""Tensors start at a multiple of this, a cache line, so that copies into the file's image are fast."""
_LENGTH_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """An fp32 tensor and where it stands."""

    name: str
    shape: tuple[int, ...]
    offset_bytes: int
    """From the start of the file."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements."""
        return FLOAT_BYTES * math.prod(self.shape)


def file_of(part: str, rank: int | None = None) -> str:
    """The file that holds a part of the state, or what one rank holds of it.

    >>> file_of("exp_avg"), file_of("parameters", 3)
    ('optimizer.safetensors', 'model-3.safetensors')
    """
    file = MODEL_FILE if part == PARAMETERS else OPTIMIZER_FILE
    return file if rank is None else rank_file(file, rank)


def stored_name(part: str, name: str) -> str:
    """A tensor's name in its part's file: weights bear their logical name, so that others can use them."""
    return name if part == PARAMETERS else f"{part}/{name}"


def split_name(file: str, stored: str) -> tuple[str, str]:
    """The part and the name of a tensor found in a file: the inverse of ``stored_name``."""
    if whole_file(file) == MODEL_FILE:
        return PARAMETERS, stored
    part, _, name = stored.partition("/")
    return part, name


def header_of(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[bytes, tuple[TensorEntry, ...]]:
    """The header of a file of fp32 tensors in the given order, and where each tensor comes to stand."""
    placed = [(name, shape, FLOAT_BYTES * math.prod(shape)) for name, shape in shapes]
    header = header_bytes((name, "F32", shape, size_bytes) for name, shape, size_bytes in placed)
    starts = itertools.accumulate((size_bytes for *_, size_bytes in placed), initial=len(header))
    entries = (
        TensorEntry(name=name, shape=shape, offset_bytes=start)
        for (name, shape, _), start in zip(placed, starts, strict=False)
    )
    return header, tuple(entries)


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    """The header of a file of tensors that stand in it in the given order, without gaps.

    Args:
        tensors: Name, type as the format calls it, shape and bytes of each.
    """
    # transformers opens only files that say "pt"
    document: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape, size_bytes in tensors:
        last = position + size_bytes
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": (position, last)}
        position = last
    text = json.dumps(document, separators=(",", ":")).encode()
    # spaces after the object are part of the format
    text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def read_tensors(file: File, source: str) -> tuple[TensorEntry, ...]:
    """The tensors of a file, of which the header alone is read. See ``parse_header``."""
    head = file.read(0, min(_LENGTH_BYTES, file.size_bytes))
    length = int.from_bytes(head, "little")
    if length <= MAX_HEADER_BYTES:  # else it is none, as the parser says
        head = file.read(0, min(_LENGTH_BYTES + length, file.size_bytes))
    return parse_header(head, source, size_bytes=file.size_bytes)


def parse_header(
    contents: memoryview, source: str, *, size_bytes: int | None = None
) -> tuple[TensorEntry, ...]:
    """The tensors of a file, in the order in which they stand in it.

    Args:
        contents: The whole file, or the beginning of it with the whole header.
        source: The name that errors show.
        size_bytes: Of the whole file; None: of ``contents``.

    Raises: CheckpointError if this is not a safetensors file of fp32 tensors that cover it without gap or
        overlap.
    """
    size_bytes = len(contents) if size_bytes is None else size_bytes
    if size_bytes < _LENGTH_BYTES:
        raise CheckpointError(f"{source}: {size_bytes} bytes are too few for a safetensors file")
    length = int.from_bytes(contents[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if length > MAX_HEADER_BYTES or start > len(contents):
        raise CheckpointError(f"{source}: not a safetensors file: its header would have {length} bytes")
    if start % FLOAT_BYTES:
        raise CheckpointError(f"{source}: its header of {length} bytes leaves the tensors unaligned")
    try:
        text = bytes(contents[_LENGTH_BYTES:start]).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{source}: not a safetensors file: {error}") from error
    document = parse_json(text, source)
    if not isinstance(document, dict):
        raise CheckpointError(f"{source}: not a safetensors file: its header is no object")
    entries = [
        _parse_entry(name, item, start, source) for name, item in document.items() if name != "__metadata__"
    ]
    entries.sort(key=lambda entry: (entry.offset_bytes, entry.size_bytes))
    _check_cover(entries, start, size_bytes, source)
    return tuple(entries)


def _parse_entry(name: str, item: object, start: int, source: str) -> TensorEntry:
    match item:
        case {"dtype": "F32", "shape": list(shape), "data_offsets": [int(first), int(last)]}:
            pass
        case _:
            raise CheckpointError(
                f"{source}: tensor {name!r} is not described as fp32 with shape and offsets"
            )
    if any(type(dim) is not int or dim < 0 for dim in shape):
        raise CheckpointError(f"{source}: tensor {name!r} has shape {shape}")
    entry = TensorEntry(name=name, shape=tuple(shape), offset_bytes=start + first)
    if entry.size_bytes != last - first:
        raise CheckpointError(f"{source}: tensor {name!r} of shape {shape} has {last - first} bytes")
    return entry


def _check_cover(entries: list[TensorEntry], start: int, end: int, source: str) -> None:
    for entry in entries:
        if entry.offset_bytes != start:
            raise CheckpointError(f"{source}: a gap or overlap before tensor {entry.name!r}")
        start += entry.size_bytes
    if start != end:
        raise CheckpointError(f"{source}: {end} bytes, but its tensors end at {start}")
