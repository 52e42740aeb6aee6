"""Small networks and folders of their weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trimtab.catalog import Network, network
from trimtab.catalog.hugging_face import Box
from trimtab.runtime.weights.writing import write_folder

SMALL = {"layers": 2, "embed": 16, "heads": 4, "kv_heads": 2, "mlp": 24, "vocab": 40, "context": 8}
GPT2 = network("gpt-3m", **{**SMALL, "kv_heads": 4})
LLAMA = network("llama-3m", **SMALL)
TIED = network("llama-3m", **SMALL, tied=True)
MIXTRAL = network("moe-3m", **SMALL, experts=3)


class RandomWeights:
    """Values of a network, in memory; counts the elements that it is asked for."""

    def __init__(self, model: Network, seed: int = 0) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.tensors = {
            tensor.name: torch.randn(tensor.shape, generator=chance) for tensor in model.tensors()
        }
        self.num_read = 0

    def read(self, name: str, box: Box | None = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
        whole = self.tensors[name]
        ends = box or tuple((0, length) for length in whole.shape)
        found = whole[tuple(slice(*pair) for pair in ends)].to(dtype, copy=True)
        self.num_read += found.numel()
        return found


FolderOf = Callable[..., Path]


@pytest.fixture
def folder_of(tmp_path: Path) -> FolderOf:
    """Writes the folder `model` of a network with random weights."""

    def write(model: Network = LLAMA, **settings: object) -> Path:
        folder = tmp_path / "model"
        write_folder(folder, model, RandomWeights(model), **settings)  # type: ignore[arg-type]
        return folder

    return write
