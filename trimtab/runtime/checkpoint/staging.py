"""Memory shared with the writer, holding the exact bytes that its files will have.

One buffer: a save that comes while the one before is still being written is skipped, loudly, instead of
taking twice the memory. The memory has no name in any folder, so nothing stays behind after ``kill -9``; it
is touched once at the start, because the first touch of a page costs more than ten copies into it.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch

from trimtab.ledger.manifests import Part
from trimtab.runtime.checkpoint.loader import State
from trimtab.runtime.checkpoint.tensorfile import TensorEntry, file_of, header_of, split_name, stored_name

_PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class FileImage:
    """Where a file of the checkpoint stands in the staging memory."""

    name: str
    offset_bytes: int
    size_bytes: int
    header: bytes
    tensors: tuple[TensorEntry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Which files a state becomes, byte by byte. Fixed for a run."""

    files: tuple[FileImage, ...]
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, state: State, rank: int | None = None) -> Self:
        """The layout of a state, tensors in the order in which it gives them.

        Args:
            state: Names and shapes.
            rank: Whose files hold it, beside those of other ranks; None for files that hold all.

        Raises: ValueError if a tensor is not fp32, or a part has none.
        """
        by_file: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        for part, tensors in state.items():
            if not tensors:
                raise ValueError(f"part {part!r} of the state has no tensors; leave it out, or find them")
            for name, tensor in tensors.items():
                if tensor.dtype != torch.float32:
                    raise ValueError(f"{part}/{name} is {tensor.dtype}, expected torch.float32")
                by_file.setdefault(file_of(part, rank), []).append(
                    (stored_name(part, name), tuple(tensor.shape))
                )
        if not by_file:
            raise ValueError("a state without parts cannot be saved")
        return cls(
            files=_place(by_file),
            parts=tuple(_part(name, file_of(name, rank), tensors) for name, tensors in state.items()),
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the files of one checkpoint, without the manifest."""
        return sum(file.size_bytes for file in self.files)

    @property
    def image_bytes(self) -> int:
        """Bytes of staging memory; each file begins on a page of its own."""
        last = self.files[-1]
        return last.offset_bytes + last.size_bytes


class StagingBuffer:
    """The staging memory of one saver. Not thread-safe; the writer only reads it."""

    def __init__(self, state: State, rank: int | None = None) -> None:
        self.layout = Layout.of(state, rank)
        self.fd = _anonymous_file(self.layout.image_bytes)
        # torch keeps the mapping alive for as long as a tensor looks into it
        image = torch.frombuffer(mmap.mmap(self.fd, self.layout.image_bytes), dtype=torch.uint8)
        image.zero_()
        self._targets: dict[str, dict[str, torch.Tensor]] = {}
        for file in self.layout.files:
            contents = image[file.offset_bytes : file.offset_bytes + file.size_bytes]
            contents[: len(file.header)] = torch.frombuffer(bytearray(file.header), dtype=torch.uint8)
            for tensor in file.tensors:
                part, name = split_name(file.name, tensor.name)
                last = tensor.offset_bytes + tensor.size_bytes
                elements = contents[tensor.offset_bytes : last].view(torch.float32)
                self._targets.setdefault(part, {})[name] = elements.view(tensor.shape)

    def fill(self, state: State) -> None:
        """Copy the state in: the only time for which a save holds up training.

        The state has exactly the parts, names and shapes of the one at the start.
        """
        assert state.keys() == self._targets.keys()
        with torch.no_grad():
            for part, targets in self._targets.items():
                assert state[part].keys() == targets.keys()
                for name, target in targets.items():
                    assert state[part][name].shape == target.shape  # copy_ would broadcast
                    target.copy_(state[part][name])

    def close(self) -> None:
        """Give the memory back, once the writer is gone too. No other method may be called afterwards."""
        self._targets.clear()
        os.close(self.fd)


def _place(by_file: Mapping[str, list[tuple[str, tuple[int, ...]]]]) -> tuple[FileImage, ...]:
    files = []
    offset = 0
    for name, shapes in by_file.items():
        header, tensors = header_of(shapes)
        size_bytes = len(header) + sum(tensor.size_bytes for tensor in tensors)
        files.append(
            FileImage(name=name, offset_bytes=offset, size_bytes=size_bytes, header=header, tensors=tensors)
        )
        offset += size_bytes + -size_bytes % _PAGE_BYTES
    return tuple(files)


def _part(name: str, file: str, tensors: Mapping[str, torch.Tensor]) -> Part:
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return Part(name=name, file=file, num_tensors=len(tensors), size_bytes=size_bytes)


def _anonymous_file(size_bytes: int) -> int:
    if hasattr(os, "memfd_create"):  # Linux; not limited by the size of /dev/shm, which containers keep small
        fd = os.memfd_create("trimtab-checkpoint")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size_bytes)
    return fd
