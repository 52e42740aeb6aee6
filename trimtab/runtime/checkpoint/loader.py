"""Tensors of a checkpoint for those who go on from it, one or a part of one at a time. Needs no saver."""

from collections.abc import Mapping

import torch
from torch import Tensor

from trimtab.catalog.hugging_face import Box
from trimtab.runtime.checkpoint.contents import Contents, Shapes
from trimtab.runtime.checkpoint.pieces import whole_box

State = Mapping[str, Mapping[str, Tensor]]
"""Tensors by part (``parameters``, ``exp_avg``, ...) and full parameter name."""


class CheckpointWeights:
    """One part of a checkpoint's state; see ``trimtab.runtime.weights.reading.Weights``.

    Args:
        contents: Of the checkpoint, open.
        part: ``parameters``, or a state of the optimizer.
    """

    def __init__(self, contents: Contents, part: str) -> None:
        self._contents, self._part = contents, part

    def read(self, name: str, box: Box | None = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """See Weights. What is not asked for takes no memory.

        Raises: CheckpointError naming the file that is damaged.
        """
        box = box or whole_box(self._contents.parts[self._part][name].shape)
        found = torch.empty([last - first for first, last in box], dtype=torch.float32)
        self._contents.copy(self._part, name, box, found.numpy())
        return found.to(dtype)


class CheckpointState:
    """The state in an open checkpoint; see ``trimtab.runtime.run_state.StateSource``."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def part(self, name: str) -> CheckpointWeights:
        """See StateSource."""
        return CheckpointWeights(self._contents, name)


def shapes_of(state: State) -> Shapes:
    """Shapes of all tensors."""
    return {
        part: {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for part, tensors in state.items()
    }
