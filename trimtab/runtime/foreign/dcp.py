"""The tensors of a torch distributed checkpoint, one or a part of one at a time.

A folder holds ``.metadata``, a pickle that says which boxes of which tensors stand where, and files of pieces, each a
tensor as ``torch.save`` writes it. The metadata is read by ``pickles``, the pieces by torch's own reader of weights
alone. Written by torch itself, by whoever saves with it, and by Megatron-LM as ``torch_dist``.
"""

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.catalog.hugging_face import Box
from trimtab.runtime.checkpoint.pieces import inside, overlap, whole_box
from trimtab.runtime.foreign.errors import ForeignError
from trimtab.runtime.foreign.pickles import (
    BytesRecord,
    IndexRecord,
    Metadata,
    Record,
    StorageRecord,
    TensorRecord,
    read_metadata,
)

METADATA_FILE = ".metadata"
_PLAIN_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_DAMAGED = "It is damaged, or was written by something else; save it again."


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A box of a tensor, and where it stands."""

    box: Box
    file: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DcpTensor:
    """A tensor by the metadata."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch calls it, without ``torch.``"""
    pieces: tuple[Piece, ...]


class DcpFolder:
    """A torch distributed checkpoint, its metadata read.

    Args:
        folder: That holds ``.metadata``.

    Raises: ForeignError naming the file and what is wrong with it; nothing of it was run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = str(folder / METADATA_FILE)
        try:
            contents = (folder / METADATA_FILE).read_bytes()
        except OSError as error:
            raise ForeignError(
                str(folder),
                [f"{METADATA_FILE}: {error.strerror}"],
                "Name the folder of a torch distributed checkpoint; of Megatron-LM's, iter_0001000.",
            ) from error
        self.tensors: Mapping[str, DcpTensor] = _tensors(read_metadata(contents, source), source)
        self._newest: tuple[Piece, Tensor] | None = None

    def read(self, name: str, box: Box) -> Tensor:
        """A box of a tensor, in its stored type.

        Raises: ForeignError naming the file that is damaged.
        """
        tensor = self.tensors[name]
        found = torch.empty([last - first for first, last in box], dtype=getattr(torch, tensor.dtype))
        for piece in tensor.pieces:
            common = overlap(piece.box, box)
            if common is not None:
                found[inside(common, box)] = self._piece(tensor, piece)[inside(common, piece.box)]
        return found

    def _piece(self, tensor: DcpTensor, piece: Piece) -> Tensor:
        if self._newest is None or self._newest[0] is not piece:
            self._newest = piece, self._load(tensor, piece)
        return self._newest[1]

    def _load(self, tensor: DcpTensor, piece: Piece) -> Tensor:
        source = str(self.folder / piece.file)
        try:
            fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(fd, "rb") as file:
                file.seek(piece.offset_bytes)
                contents = file.read(piece.size_bytes)
            found = torch.load(io.BytesIO(contents), map_location="cpu", weights_only=True)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ForeignError(source, [f"{tensor.name}: {reason}"], _DAMAGED) from error
        wanted = tuple(last - first for first, last in piece.box)
        if (
            not isinstance(found, Tensor)
            or tuple(found.shape) != wanted
            or str(found.dtype) != f"torch.{tensor.dtype}"
        ):
            what = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ForeignError(
                source,
                [f"{tensor.name}: {what} stands there, expected torch.{tensor.dtype} {list(wanted)}"],
                _DAMAGED,
            )
        return found


def _tensors(metadata: Metadata, source: str) -> dict[str, DcpTensor]:
    try:
        places = _places(metadata)
        return {
            name: _tensor(name, found, places)
            for name, found in metadata.get("state_dict_metadata").items()
            if not isinstance(found, BytesRecord)
        }
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise ForeignError(source, [f"does not fit together: {error}"], _DAMAGED) from error


def _places(metadata: Metadata) -> dict[tuple[str, tuple[int, ...]], StorageRecord]:
    found = {}
    for index, place in metadata.get("storage_data").items():
        if not isinstance(index, IndexRecord) or not isinstance(place, StorageRecord):
            raise TypeError("its table of places has something else in it")
        if index.get("offset") is not None:
            found[index.get("fqn"), tuple(index.get("offset"))] = place
    return found


def _tensor(name: str, found: Any, places: Mapping[tuple[str, tuple[int, ...]], StorageRecord]) -> DcpTensor:
    if not isinstance(found, TensorRecord):
        raise TypeError(f"{name} is described as {type(found).__name__}")
    shape = tuple(found.get("size"))
    dtype = _dtype(name, found.get("properties"))
    pieces = tuple(_piece(name, shape, chunk, places) for chunk in found.get("chunks"))
    num_elements = sum(math.prod(last - first for first, last in piece.box) for piece in pieces)
    if num_elements != math.prod(shape) or len({piece.box for piece in pieces}) != len(pieces):
        raise ValueError(f"the pieces of {name} have {num_elements} elements, its shape is {list(shape)}")
    return DcpTensor(name=name, shape=shape, dtype=dtype, pieces=pieces)


def _dtype(name: str, properties: Record) -> str:
    """The first of the values that torch's tensor properties keep."""
    state = properties.state
    dtype = state[0] if isinstance(state, tuple) else state["dtype"]
    if not isinstance(dtype, str):
        raise TypeError(f"{name} has no type")
    return dtype


def _piece(
    name: str,
    shape: Sequence[int],
    chunk: Record,
    places: Mapping[tuple[str, tuple[int, ...]], StorageRecord],
) -> Piece:
    offsets, sizes = tuple(chunk.get("offsets")), tuple(chunk.get("sizes"))
    box = tuple((first, first + length) for first, length in zip(offsets, sizes, strict=True))
    if len(box) != len(shape) or overlap(box, whole_box(shape)) != box:
        raise ValueError(f"a piece of {name} at {list(offsets)} of {list(sizes)} is not inside {list(shape)}")
    place = places[name, offsets]
    file, offset, length = (place.get(field) for field in ("relative_path", "offset", "length"))
    if not isinstance(file, str) or not _PLAIN_FILE.fullmatch(file):
        raise ValueError(f"file name {file!r} could lead outside the folder")
    if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
        raise ValueError(f"{name} stands at {offset!r}, {length!r} bytes")
    if place.get("transform_descriptors"):
        raise ValueError(f"{name} is compressed, which is not read")
    return Piece(box=box, file=file, offset_bytes=offset, size_bytes=length)
