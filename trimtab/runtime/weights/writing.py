"""Logical tensors into a Hugging Face folder: ``config.json`` and safetensors files, one tensor in memory at a time."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from trimtab.catalog import Network
from trimtab.catalog.hugging_face import StoredTensor, read_config, stored_tensors, write_config
from trimtab.runtime.checkpoint.durable import sync_folder, write_all
from trimtab.runtime.checkpoint.tensorfile import header_bytes
from trimtab.runtime.weights.folder import INDEX_FILE, SINGLE_FILE
from trimtab.runtime.weights.reading import Weights
from trimtab.terms import InputError, WeightType

MAX_SHARD_BYTES = 5_000_000_000
"""Of tensors in one file: what the Hugging Face hub recommends, from memory."""

CONFIG_FILE = "config.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Type:
    """A type as torch, safetensors and configurations call it."""

    torch: torch.dtype
    stored: str
    configured: str


_TYPES: Mapping[WeightType, _Type] = {
    WeightType.FP32: _Type(torch=torch.float32, stored="F32", configured="float32"),
    WeightType.BF16: _Type(torch=torch.bfloat16, stored="BF16", configured="bfloat16"),
}


def write_folder(
    target: Path,
    network: Network,
    weights: Weights,
    *,
    base: Mapping[str, Any] | None = None,
    dtype: WeightType = WeightType.FP32,
    companions: Mapping[str, Path] = MappingProxyType({}),
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> tuple[Path, ...]:
    """Write a folder that the transformers library and others load; it is there whole or not at all.

    Args:
        target: The folder to make; an empty one is taken, too.
        network: That the weights are of.
        weights: Asked for each logical tensor, or box of one, as often as files hold it.
        base: The configuration that the network began with, if there was one; see ``write_config``.
        dtype: Of the tensors in the files.
        companions: Files to be copied beside the weights, by the name that they get: a tokenizer.
        max_shard_bytes: Of tensors in one file; a larger tensor has a file of its own.

    Returns: The files that were written.

    Raises: InputError if something stands at ``target``; NetworkError if no family computes the network; OSError if the
        system refuses.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is already there and not empty; choose another folder")
    kind = _TYPES[dtype]
    config = _of_these_files(write_config(network, base=base)) | {"torch_dtype": kind.configured}
    family = read_config(config, name=network.name).family
    shards = _shards(stored_tensors(network, family), kind, max_shard_bytes)
    unfinished = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        _write_text(unfinished / CONFIG_FILE, json.dumps(config, indent=2) + "\n")
        for name, tensors in shards.items():
            _write_shard(unfinished / name, tensors, weights, kind)
        if len(shards) > 1:
            _write_text(unfinished / INDEX_FILE, _index(shards, kind))
        for name, companion in companions.items():
            shutil.copyfile(companion, unfinished / name)
        written = sorted(path.name for path in unfinished.iterdir())
        sync_folder(unfinished)
        unfinished.replace(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync_folder(target.parent)
    return tuple(target / name for name in written)


def _of_these_files(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what it says of other files: their types, and code that stood beside them."""
    others = ("dtype", "quantization_config", "auto_map")
    return {key: value for key, value in config.items() if key not in others}


def _shards(
    tensors: Sequence[StoredTensor], kind: _Type, max_shard_bytes: int
) -> dict[str, list[StoredTensor]]:
    """Tensors by file, in order, as many in each as fit."""
    parts: list[list[StoredTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        size_bytes = _size_bytes(tensor, kind)
        if parts[-1] and filled + size_bytes > max_shard_bytes:
            parts.append([])
            filled = 0
        parts[-1].append(tensor)
        filled += size_bytes
    if len(parts) == 1:
        return {SINGLE_FILE: parts[0]}
    return {
        f"model-{number:05}-of-{len(parts):05}.safetensors": part
        for number, part in enumerate(parts, start=1)
    }


def _index(shards: Mapping[str, Sequence[StoredTensor]], kind: _Type) -> str:
    size_bytes = sum(_size_bytes(tensor, kind) for part in shards.values() for tensor in part)
    placed = {tensor.name: file for file, part in shards.items() for tensor in part}
    return json.dumps({"metadata": {"total_size": size_bytes}, "weight_map": placed}, indent=2) + "\n"


def _size_bytes(tensor: StoredTensor, kind: _Type) -> int:
    return torch.Size(tensor.shape).numel() * kind.torch.itemsize


def _write_shard(path: Path, tensors: Sequence[StoredTensor], weights: Weights, kind: _Type) -> None:
    header = header_bytes(
        (tensor.name, kind.stored, tensor.shape, _size_bytes(tensor, kind)) for tensor in tensors
    )
    with path.open("xb", buffering=0) as file:
        write_all(file.fileno(), memoryview(header))
        for tensor in tensors:
            whole = _stored_values(tensor, weights, kind.torch)
            write_all(file.fileno(), whole.reshape(-1).view(torch.uint8).numpy().data)
        os.fsync(file.fileno())


def _stored_values(tensor: StoredTensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """A stored tensor, put together out of its blocks."""
    whole = torch.empty(tensor.shape, dtype=dtype)
    for block in tensor.blocks:
        place = whole[tuple(slice(*ends) for ends in block.stored_box)]
        values = weights.read(block.logical, block.logical_box, dtype=dtype)
        place.copy_(values.T if block.is_transposed else values.view_as(place))
    return whole


def _write_text(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
