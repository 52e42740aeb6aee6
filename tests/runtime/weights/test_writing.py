"""A folder is written whole or not at all, and others can read it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tests.runtime.weights.conftest import GPT2, LLAMA, MIXTRAL, FolderOf, RandomWeights
from trimtab.catalog import NetworkError, network
from trimtab.catalog.hugging_face import Box, stored_tensors
from trimtab.runtime.weights.writing import write_folder
from trimtab.terms import InputError, WeightType


def test_shards_hold_what_the_index_says(folder_of: FolderOf) -> None:
    """No file is larger than it may be, and none holds what another holds."""
    folder = folder_of(MIXTRAL, max_shard_bytes=5000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(folder.glob("*.safetensors"))
    assert [path.name for path in files] == [
        f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)
    ]
    held = {path.name: load_file(path) for path in files}
    assert index["weight_map"] == {name: file for file, tensors in held.items() for name in tensors}
    sizes = [sum(tensor.nbytes for tensor in tensors.values()) for tensors in held.values()]
    assert max(sizes) <= 5000
    assert index["metadata"]["total_size"] == sum(sizes) == 4 * MIXTRAL.num_parameters()


def test_a_tensor_larger_than_a_file_may_be_has_its_own(folder_of: FolderOf) -> None:
    """It cannot be cut: the format has no pieces of tensors."""
    folder = folder_of(max_shard_bytes=1)
    assert len(list(folder.glob("*.safetensors"))) == len(stored_tensors(LLAMA, "llama"))


def test_files_say_that_torch_wrote_them(folder_of: FolderOf) -> None:
    """The transformers library opens no others."""
    with safe_open(folder_of(GPT2) / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_bf16_takes_half_the_bytes(folder_of: FolderOf) -> None:
    """And the configuration says so, or who loads it makes fp32 of it again."""
    folder = folder_of(dtype=WeightType.BF16)
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_what_was_said_of_other_files_is_left_out(tmp_path: Path) -> None:
    """Quantized weights that were trained in fp32 are no longer quantized; code is not copied."""
    base = json.loads((_written(tmp_path / "first") / "config.json").read_text())
    base |= {"quantization_config": {"bits": 4}, "dtype": "float16", "eos_token_id": 7, "auto_map": {}}
    write_folder(tmp_path / "again", LLAMA, RandomWeights(LLAMA), base=base)
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {"quantization_config", "auto_map"}.isdisjoint(config)
    assert (config.get("dtype"), config["torch_dtype"], config["eos_token_id"]) == (None, "float32", 7)


def test_companions_stand_beside_the_weights(tmp_path: Path) -> None:
    """Weights without their tokenizer are numbers."""
    (tmp_path / "mine.json").write_text("{}")
    names = {"tokenizer.json": tmp_path / "mine.json"}
    written = write_folder(tmp_path / "model", LLAMA, RandomWeights(LLAMA), companions=names)
    assert [path.name for path in written] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "model" / "tokenizer.json").read_text() == "{}"


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    """The folder may hold the only copy of something."""
    (tmp_path / "model").mkdir()
    _written(tmp_path / "model")  # An empty one is taken.
    with pytest.raises(InputError, match="already there"):
        _written(tmp_path / "model")


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    """Half a model loads in some tools, with the rest at random."""

    class Failing(RandomWeights):
        def read(self, name: str, box: Box | None = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
            if name == "final_norm.weight":
                raise OSError("the disk is gone")
            return super().read(name, box, dtype=dtype)

    with pytest.raises(OSError, match="the disk is gone"):
        write_folder(tmp_path / "model", LLAMA, Failing(LLAMA))
    assert list(tmp_path.iterdir()) == []


def test_each_element_is_asked_for_once(tmp_path: Path) -> None:
    """A source on a slow disk is read once, and never held."""
    weights = RandomWeights(GPT2)
    write_folder(tmp_path / "model", GPT2, weights)
    assert weights.num_read == GPT2.num_parameters()


def test_a_network_of_no_family_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is refused before the first byte."""
    odd = network("gpt-3m", norm="rmsnorm", layers=1)
    with pytest.raises(NetworkError, match="no family"):
        write_folder(tmp_path / "model", odd, RandomWeights(odd))
    assert list(tmp_path.iterdir()) == []


def _written(folder: Path) -> Path:
    write_folder(folder, LLAMA, RandomWeights(LLAMA))
    return folder
