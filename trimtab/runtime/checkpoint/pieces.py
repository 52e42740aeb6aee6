"""Where in a checkpoint's files does each logical tensor stand: in one place, or in boxes that ranks wrote? Without torch.

A box is named ``layers.0.mlp.up.weight[0:8,16:32]``, by its indices along each dim. Only files of ranks hold boxes, and
together the boxes of a tensor have each of its elements once.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.catalog.hugging_face import Box
from trimtab.ledger.manifests import CheckpointError, FileEntry, whole_file
from trimtab.runtime.checkpoint.tensorfile import TensorEntry, split_name

_BOX_NAME = re.compile(r"(.+)\[((?:[0-9]{1,18}:[0-9]{1,18})(?:,[0-9]{1,18}:[0-9]{1,18})*)\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBox:
    """Elements of a logical tensor that stand together.

    Args:
        file: Where.
        tensor: Where in the file.
        box: Which they are.
    """

    file: FileEntry
    tensor: TensorEntry
    box: Box


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """A logical tensor.

    Args:
        shape: Of all of it.
        boxes: That make it up.
    """

    shape: tuple[int, ...]
    boxes: tuple[StoredBox, ...]


StoredParts = Mapping[str, Mapping[str, StoredTensor]]
"""By part (``parameters``, ``exp_avg``, …) and logical name, in the order in which they stand in the files."""


def whole_box(shape: Sequence[int]) -> Box:
    """All indices."""
    return tuple((0, length) for length in shape)


def box_name(name: str, box: Box, shape: Sequence[int]) -> str:
    """What a box of a tensor is called; a tensor that is whole bears its own name.

    >>> box_name("w", ((0, 8), (16, 32)), (16, 32)), box_name("w", ((0, 16), (0, 32)), (16, 32))
    ('w[0:8,16:32]', 'w')
    """
    if box == whole_box(shape):
        return name
    return f"{name}[{','.join(f'{first}:{last}' for first, last in box)}]"


def split_box(name: str) -> tuple[str, Box | None]:
    """The inverse; None for a tensor that is whole.

    >>> split_box("w[0:8,16:32]"), split_box("w")
    (('w', ((0, 8), (16, 32))), ('w', None))
    """
    match = _BOX_NAME.fullmatch(name)
    if match is None:
        return name, None
    ends = (ends.split(":") for ends in match[2].split(","))
    return match[1], tuple((int(first), int(last)) for first, last in ends)


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes have in common; None if that is nothing.

    >>> overlap(((0, 4), (0, 8)), ((2, 6), (4, 8))), overlap(((0, 4),), ((4, 6),))
    (((2, 4), (4, 8)), None)
    """
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(first < last for first, last in found) else None


def inside(box: Box, frame: Box) -> tuple[slice, ...]:
    """A box as indices counted from where its frame begins."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(box, frame, strict=True))


def stored_parts(tensors: Mapping[FileEntry, Sequence[TensorEntry]], source: str) -> StoredParts:
    """The logical tensors of a checkpoint.

    Args:
        tensors: What each of its files holds.
        source: The checkpoint's name in messages.

    Raises: CheckpointError if the boxes of a tensor do not make it up, naming it.
    """
    boxes: dict[str, dict[str, list[StoredBox]]] = {}
    for part, name, box in _all_boxes(tensors):
        boxes.setdefault(part, {}).setdefault(name, []).append(box)
    return {
        part: {name: _put_together(found, f"{part}/{name}", source) for name, found in by_name.items()}
        for part, by_name in boxes.items()
    }


def _all_boxes(
    tensors: Mapping[FileEntry, Sequence[TensorEntry]],
) -> Iterator[tuple[str, str, StoredBox]]:
    for file, entries in tensors.items():
        for entry in entries:
            part, stored = split_name(file.name, entry.name)
            name, box = split_box(stored) if whole_file(file.name) != file.name else (stored, None)
            yield part, name, StoredBox(file=file, tensor=entry, box=box or whole_box(entry.shape))


def _put_together(boxes: Sequence[StoredBox], name: str, source: str) -> StoredTensor:
    """Boxes have as many elements as the smallest tensor that has room for them, and none stands twice."""
    shapes = {tuple(last - first for first, last in found.box) for found in boxes}
    num_dims = {len(shape) for shape in shapes}
    is_sound = len(num_dims) == 1 and all(
        tuple(last - first for first, last in found.box) == found.tensor.shape for found in boxes
    )
    if is_sound:
        shape = tuple(max(ends) for ends in zip(*(_ends(found.box) for found in boxes), strict=True))
        num_elements = sum(math.prod(found.tensor.shape) for found in boxes)
        if num_elements == math.prod(shape) and len({found.box for found in boxes}) == len(boxes):
            return StoredTensor(shape=shape, boxes=tuple(boxes))
    raise CheckpointError(
        f"{source}: the pieces of {name} do not make up a tensor: "
        + ", ".join(f"{_printed(found.box)} in {found.file.name}" for found in boxes)
    )


def _ends(box: Box) -> tuple[int, ...]:
    return tuple(last for _, last in box)


def _printed(box: Box) -> str:
    return f"[{','.join(f'{first}:{last}' for first, last in box)}]"
