"""Logical tensors out of files, whole and in parts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.runtime.weights.conftest import GPT2, LLAMA, MIXTRAL, TIED, FolderOf, RandomWeights
from trimtab.catalog import Network
from trimtab.runtime.weights.errors import WeightsError
from trimtab.runtime.weights.reading import open_weights
from trimtab.terms import WeightType


@pytest.mark.parametrize(
    ("model", "family"), [(GPT2, "gpt2"), (LLAMA, "llama"), (TIED, "llama"), (MIXTRAL, "mixtral")]
)
def test_every_tensor_is_read_whole(folder_of: FolderOf, model: Network, family: str) -> None:
    """Transposed, fused and stacked ones among them."""
    weights, expected = open_weights(folder_of(model), model, family), RandomWeights(model).tensors
    for tensor in model.tensors():
        found = weights.read(tensor.name)
        assert found.is_contiguous()
        assert torch.equal(found, expected[tensor.name]), tensor.name


@pytest.mark.parametrize(
    ("model", "family", "name", "box"),
    [
        (GPT2, "gpt2", "layers.1.attention.wv.weight", ((3, 9), (2, 16))),
        (GPT2, "gpt2", "layers.1.attention.wk.bias", ((5, 6),)),
        (MIXTRAL, "mixtral", "layers.0.experts.down.weight", ((1, 3), (0, 16), (7, 9))),
        (LLAMA, "llama", "embedding.weight", ((39, 40), (0, 16))),
    ],
)
def test_a_box_is_that_part_of_the_whole(
    folder_of: FolderOf, model: Network, family: str, name: str, box: tuple[tuple[int, int], ...]
) -> None:
    """A rank of a split tensor gets its own rows, not its neighbour's."""
    found = open_weights(folder_of(model), model, family).read(name, box)
    assert torch.equal(found, RandomWeights(model).tensors[name][tuple(slice(*ends) for ends in box)])


def test_what_is_read_is_the_readers_own(folder_of: FolderOf) -> None:
    """Training in place must not write through to what the next read returns."""
    weights = open_weights(folder_of(), LLAMA, "llama")
    weights.read("embedding.weight").zero_()
    assert torch.equal(weights.read("embedding.weight"), RandomWeights(LLAMA).tensors["embedding.weight"])


def test_bf16_is_exact_in_fp32(folder_of: FolderOf) -> None:
    """Most published weights are bf16; a master weight must be the same number."""
    found = open_weights(folder_of(dtype=WeightType.BF16), LLAMA, "llama").read("head.weight")
    assert found.dtype is torch.float32
    assert torch.equal(found, RandomWeights(LLAMA).tensors["head.weight"].bfloat16().float())


def test_a_tied_heads_own_copy_may_stand_in_the_files(folder_of: FolderOf) -> None:
    """Some tools write it; it is no tensor too many."""
    folder = add_head(folder_of(TIED), 0.0)
    weights = open_weights(folder, TIED, "llama")
    assert torch.equal(weights.read("embedding.weight"), RandomWeights(TIED).tensors["embedding.weight"])


def test_a_tied_head_that_differs_is_refused(folder_of: FolderOf) -> None:
    """One of the two matrices would be lost without a word."""
    with pytest.raises(WeightsError, match=r"lm_head.weight .* another matrix .*\n.*model.tied: false"):
        open_weights(add_head(folder_of(TIED), 1e-3), TIED, "llama")


def add_head(folder: Path, difference: float) -> Path:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"].clone()
    head[-1, -1] += difference
    save_file({**tensors, "lm_head.weight": head}, path)
    return folder
