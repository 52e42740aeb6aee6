"""Weights of another system's checkpoint into a Hugging Face folder, with which training can begin."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trimtab.catalog import Network
from trimtab.catalog.hugging_face import (
    Block,
    Box,
    match_names,
    read_config,
    stored_tensors,
    write_config,
)
from trimtab.catalog.megatron_tensors import StackedBlock, is_megatron, megatron_blocks
from trimtab.runtime.checkpoint.pieces import whole_box
from trimtab.runtime.foreign.dcp import DcpFolder
from trimtab.runtime.foreign.errors import ForeignError
from trimtab.runtime.weights.writing import write_folder
from trimtab.terms import WeightType

READ_TYPES = ("float32", "bfloat16", "float16")
_PREFIXES = ("", "model.", "state_dict.", "app.", "app.model.", "module.", "model.module.")
"""That a state may stand under; tried in this order."""
_NO_WEIGHTS = re.compile(r"^(optim|lr_scheduler|train_state|dataloader|rng)|exp_avg|\.step$")
"""Names of what stands beside weights in the states that others save."""


class DcpWeights:
    """The weights of a torch distributed checkpoint under the logical names of a network; see ``Weights``.

    Args:
        folder: The checkpoint.
        network: Whose weights it should hold.

    Raises: ForeignError with every tensor that is missing, that is no part of the network, or that has another shape or a
        type that is not read; NetworkError for a network whose names there are not known.
    """

    def __init__(self, folder: DcpFolder, network: Network) -> None:
        self._folder = folder
        self._shapes = {tensor.name: tensor.shape for tensor in network.tensors()}
        shapes = {name: tensor.shape for name, tensor in folder.tensors.items()}
        blocks, problems = _matched(network, shapes)
        used = {item.block.stored for item in blocks}
        problems += [
            f"type of {name}: {folder.tensors[name].dtype}; read are {', '.join(READ_TYPES)}"
            for name in sorted(used)
            if folder.tensors[name].dtype not in READ_TYPES
        ]
        if problems:
            raise ForeignError(str(folder.folder), problems, "Name the job whose network was saved there.")
        self._blocks: dict[str, list[StackedBlock]] = {}
        for item in blocks:
            self._blocks.setdefault(item.block.logical, []).append(item)

    def read(self, name: str, box: Box | None = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """See Weights.

        Raises: ForeignError naming the file that is damaged.
        """
        box = box or whole_box(self._shapes[name])
        whole = torch.empty([last - first for first, last in box], dtype=dtype)
        for item in self._blocks[name]:
            part = item.block.within(box)
            if part is not None:
                place = tuple(
                    slice(low - first, high - first)
                    for (low, high), (first, _) in zip(part.logical_box, box, strict=True)
                )
                layer: Box = () if item.layer is None else ((item.layer, item.layer + 1),)
                stored = self._folder.read(item.block.stored, (*layer, *part.stored_box))
                if item.layer is not None:
                    stored = stored[0]
                whole[place] = (stored.T if part.is_transposed else stored).view_as(whole[place])
        return whole


def import_checkpoint(
    folder: Path, network: Network, target: Path, *, dtype: WeightType = WeightType.FP32
) -> tuple[Path, ...]:
    """Write the weights of a torch distributed checkpoint as a Hugging Face folder; returns the files.

    Args:
        folder: The checkpoint, of torch itself or of Megatron-LM.
        network: Whose weights it holds.
        target: The folder to make.
        dtype: Of the tensors in the files.

    Raises: As ``DcpFolder``, ``DcpWeights`` and ``write_folder``.
    """
    return write_folder(target, network, DcpWeights(DcpFolder(folder), network), dtype=dtype)


def _matched(network: Network, shapes: Mapping[str, tuple[int, ...]]) -> tuple[list[StackedBlock], list[str]]:
    """Where the network's tensors stand, and every reason why some do not."""
    if is_megatron(list(shapes)):
        return megatron_blocks(network, shapes)
    candidates = [
        candidate for prefix in _PREFIXES for candidate in _under(prefix, network, shapes) if candidate
    ]
    blocks, problems = min(candidates, key=lambda found: len(found[1]))
    return blocks, problems


def _under(
    prefix: str, network: Network, shapes: Mapping[str, tuple[int, ...]]
) -> list[tuple[list[StackedBlock], list[str]]]:
    """What a state under one name holds, as Hugging Face calls tensors and as Trimtab does."""
    named = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
    family = read_config(write_config(network), name=network.name).family
    needed = stored_tensors(network, family)
    matching = match_names(named, needed, family)
    theirs = [
        (tensor.blocks, tensor.shape, matching.found_as.get(tensor.name), tensor.name) for tensor in needed
    ]
    own = [
        (
            (_itself(tensor.name, tensor.shape),),
            tensor.shape,
            named.get(tensor.name) and tensor.name,
            tensor.name,
        )
        for tensor in network.tensors()
    ]
    unnamed = [name for name in named if name not in {tensor.name for tensor in network.tensors()}]
    return [
        _gathered(theirs, matching.extra, named, shapes),
        _gathered(own, unnamed, named, shapes),
    ]


def _gathered(
    found: Sequence[tuple[Sequence[Block], tuple[int, ...], str | None, str]],
    extra: Sequence[str],
    named: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[list[StackedBlock], list[str]]:
    blocks = []
    problems = [f"extra: {named[name]}" for name in extra if not _NO_WEIGHTS.search(name)]
    for parts, shape, there, name in found:
        if there is None:
            problems.append(f"missing: {name}")
            continue
        stored = named[there]
        if shapes[stored] != shape:
            problems.append(f"shape of {stored}: {list(shapes[stored])}; the network needs {list(shape)}")
        blocks += [
            StackedBlock(
                block=Block(
                    logical=part.logical,
                    logical_box=part.logical_box,
                    stored=stored,
                    stored_box=part.stored_box,
                    is_transposed=part.is_transposed,
                ),
                layer=None,
            )
            for part in parts
        ]
    return blocks, problems


def _itself(name: str, shape: tuple[int, ...]) -> Block:
    whole = whole_box(shape)
    return Block(logical=name, logical_box=whole, stored=name, stored_box=whole, is_transposed=False)
