"""Logical tensors out of the files of a Hugging Face folder, one or a part of one at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from trimtab.catalog import Network
from trimtab.catalog.hugging_face import Block, Box
from trimtab.runtime.weights.errors import WeightsError
from trimtab.runtime.weights.folder import CheckedFolder, FoundTensor, check_folder

_COMPARED_BYTES = 64_000_000
"""Of a tied head and of its embedding, at a time."""


class Weights(Protocol):
    """Values of logical tensors."""

    def read(self, name: str, box: Box | None = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor, or a box of it, on the CPU, contiguous and the caller's own."""


class FolderWeights:
    """The weights of a Hugging Face folder under the logical names of its network; see Weights.

    Nothing is kept: a read takes the memory of what it returns, and of one block of it. What a read does not ask for is
    not read from the files.

    Args:
        checked: A folder that holds all that is needed.

    Raises: WeightsError if a tied head in the files is another matrix than the embedding.
    """

    def __init__(self, checked: CheckedFolder) -> None:
        self._found = checked.found
        self._shapes = {tensor.name: tensor.shape for tensor in checked.network.tensors()}
        self._files = _Files()
        self._blocks: dict[str, list[Block]] = {}
        for tensor in checked.tensors:
            for block in tensor.blocks:
                self._blocks.setdefault(block.logical, []).append(block)
        if checked.tied_head is not None:
            self._check_tied_head(checked.folder, checked.tied_head)

    def read(self, name: str, box: Box | None = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """See Weights.

        Args:
            name: Of a logical tensor.
            box: Indices along its dims; all of them by default.
            dtype: Of the result; a stored bf16 or fp16 is exact in fp32.
        """
        box = box or _whole(self._shapes[name])
        whole = torch.empty([last - first for first, last in box], dtype=dtype)
        for block in self._blocks[name]:
            part = block.within(box)
            if part is not None:
                place = tuple(
                    slice(low - first, high - first)
                    for (low, high), (first, _) in zip(part.logical_box, box, strict=True)
                )
                stored = self._files.read(self._found[block.stored], part.stored_box)
                whole[place] = (stored.T if block.is_transposed else stored).view_as(whole[place])
        return whole

    def _check_tied_head(self, folder: Path, head: FoundTensor) -> None:
        rows, width = self._shapes[_EMBEDDING]
        step = max(1, _COMPARED_BYTES // (4 * width))
        boxes = [((first, min(first + step, rows)), (0, width)) for first in range(0, rows, step)]
        if head.shape == (rows, width) and all(
            torch.equal(self._files.read(head, box).float(), self.read(_EMBEDDING, box)) for box in boxes
        ):
            return
        raise WeightsError(
            folder,
            [
                f"{head.name} in {head.file.name} is another matrix than the embedding, and the network is tied"
            ],
            "Set model.tied: false to keep both, or take the head out of the files.",
        )


def open_weights(folder: Path, network: Network, family: str) -> FolderWeights:
    """Check a folder's weights and open them.

    Raises: WeightsError, NetworkError; see ``check_folder`` and ``FolderWeights``.
    """
    return FolderWeights(check_folder(folder, network, family))


_EMBEDDING = "embedding.weight"


class _Files:
    """Weight files, opened when they are first read from; their contents are mapped, not loaded."""

    def __init__(self) -> None:
        self._open: dict[Path, Any] = {}

    def read(self, tensor: FoundTensor, box: Box) -> Tensor:
        """A box of a stored tensor, in its stored type."""
        if tensor.file not in self._open:
            self._open[tensor.file] = safe_open(tensor.file, framework="pt")
        found: Tensor = self._open[tensor.file].get_slice(tensor.name)[tuple(slice(*ends) for ends in box)]
        return found


def _whole(shape: Sequence[int]) -> Box:
    return tuple((0, length) for length in shape)
