"""What do the weight files of a Hugging Face folder hold, and is it what a network needs? Without torch.

A folder holds ``model.safetensors``, or ``model.safetensors.index.json`` and the files that it names. Only headers are
read here. Files that hold pickles are never opened: reading one runs what it says.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from trimtab.catalog import Network
from trimtab.catalog.hugging_face import Matching, StoredTensor, match_names, stored_tensors
from trimtab.runtime.weights.errors import WeightsError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
READ_TYPES = ("F32", "BF16", "F16")
"""Types of stored weights, as safetensors calls them; quantized ones mean nothing without their scales."""

_MAX_INDEX_BYTES = 256_000_000
"""The index of a network of a million tensors has about 100 MB."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_BEGIN_ANEW = "Take the folder whose config.json this is, or begin anew with model.weights: random."


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTensor:
    """A tensor of a file, by its header.

    Args:
        name: In the file.
        file: That holds it.
        dtype: As safetensors calls it.
        shape: Of the stored tensor.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedFolder:
    """A folder that holds every tensor that a network needs, in a type and shape that can be taken.

    Args:
        folder: The folder.
        network: Whose weights it holds.
        tensors: That the family's files hold for the network.
        found: Where they stand, by the family's name.
        tied_head: The head's own copy of a tied embedding, if there is one.
    """

    folder: Path
    network: Network
    tensors: tuple[StoredTensor, ...]
    found: Mapping[str, FoundTensor]
    tied_head: FoundTensor | None


def check_folder(folder: Path, network: Network, family: str) -> CheckedFolder:
    """Look at the headers of a folder's weights.

    Args:
        folder: Of a Hugging Face model.
        network: Whose weights it should hold.
        family: Its ``model_type``.

    Raises: WeightsError with every tensor that is missing, that is no part of the network, or that has another shape
        or a type that is not read, and with every file that is damaged or not there; NetworkError if the family has
        no such network.
    """
    needed = stored_tensors(network, family)
    problems: list[str] = []
    found = _find_tensors(folder, problems)
    matching = match_names(found, needed, family)
    problems += _problems(found, needed, matching)
    if problems:
        raise WeightsError(folder, problems, _BEGIN_ANEW)
    return CheckedFolder(
        folder=folder,
        network=network,
        tensors=needed,
        found={full: found[name] for full, name in matching.found_as.items()},
        tied_head=found[matching.tied_head] if matching.tied_head else None,
    )


def _problems(
    found: Mapping[str, FoundTensor], needed: tuple[StoredTensor, ...], matching: Matching
) -> Iterator[str]:
    """What does not fit, each in a line."""
    for name in matching.missing:
        yield f"missing: {name}"
    for name in matching.extra:
        yield f"extra: {name}, in {found[name].file.name}"
    for tensor in needed:
        if tensor.name not in matching.found_as:
            continue
        name = matching.found_as[tensor.name]
        there = found[name]
        if there.shape != tensor.shape:
            yield (
                f"shape of {name}: {list(there.shape)} in {there.file.name}; the network needs "
                f"{list(tensor.shape)}"
            )
        if there.dtype not in READ_TYPES:
            yield f"type of {name}: {there.dtype} in {there.file.name}; read are {', '.join(READ_TYPES)}"


def _find_tensors(folder: Path, problems: list[str]) -> dict[str, FoundTensor]:
    """Every tensor by name; what is wrong with files is added to ``problems``.

    Raises: WeightsError if there are no weights that can be read at all.
    """
    if (folder / SINGLE_FILE).is_file():  # As the transformers library: before an index.
        return {tensor.name: tensor for tensor in _header(folder / SINGLE_FILE, problems)}
    if not (folder / INDEX_FILE).is_file():
        raise _nothing_to_read(folder)
    placed = _read_index(folder)
    found: dict[str, FoundTensor] = {}
    for file in sorted(set(placed.values())):
        if not (folder / file).is_file():
            problems.append(f"no file {file}, which {INDEX_FILE} names")
            continue
        for tensor in _header(folder / file, problems):
            if placed.get(tensor.name, file) == file:
                found[tensor.name] = tensor
            else:
                problems.append(f"{tensor.name} stands in {file}; {INDEX_FILE} says {placed[tensor.name]}")
    return found


def _header(path: Path, problems: list[str]) -> list[FoundTensor]:
    try:
        # The framework decides what slices would become; none is taken here, and numpy is there already.
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return [
                FoundTensor(name=name, file=path, dtype=one.get_dtype(), shape=tuple(one.get_shape()))
                for name, one in slices.items()
            ]
    except (SafetensorError, OSError) as error:
        problems.append(f"{path.name} is damaged, or no safetensors file: {error}")
        return []


def _read_index(folder: Path) -> dict[str, str]:
    """The file of each tensor, by the index; every one a plain name.

    Raises: WeightsError if the index cannot be read, or names a file that is not plainly in the folder.
    """
    again = "Download the folder again, or write it anew with save_pretrained of the transformers library."
    path = folder / INDEX_FILE
    try:
        if path.stat().st_size > _MAX_INDEX_BYTES:
            raise WeightsError(folder, [f"{INDEX_FILE} has more than {_MAX_INDEX_BYTES} bytes"], again)
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(folder, [f"{INDEX_FILE} is not JSON: {error}"], again) from error
    placed = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
        raise WeightsError(folder, [f"{INDEX_FILE} has no weight_map from tensors to files"], again)
    strange = sorted({file for file in placed.values() if not _is_plain(file)})
    if strange:
        problems = [
            f"{INDEX_FILE} names {file!r}; a name of a .safetensors file is needed" for file in strange
        ]
        raise WeightsError(folder, problems, again)
    return placed


def _is_plain(file: str) -> bool:
    """Whether a name is that of a weight file in the folder itself: nothing leads up, down or elsewhere."""
    is_alone = PurePosixPath(file).name == file and "\\" not in file and "\0" not in file
    return is_alone and file.endswith(".safetensors") and not file.startswith(".")


def _nothing_to_read(folder: Path) -> WeightsError:
    found = f"there is neither {SINGLE_FILE} nor {INDEX_FILE}"
    if not folder.is_dir():
        return WeightsError(folder, ["there is no such folder"], "See model.folder.")
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        return WeightsError(
            folder,
            [found, f"pickles are not read, for reading one runs what it says: {', '.join(pickles)}"],
            "Convert it where you trust it, with save_pretrained of the transformers library, which writes "
            "safetensors; or begin anew with model.weights: random.",
        )
    return WeightsError(
        folder, [found], "Download the weights, too; or begin anew with model.weights: random."
    )
