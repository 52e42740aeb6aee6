"""What a folder must hold, and how it is told what is wrong with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.runtime.weights.conftest import GPT2, LLAMA, TIED, FolderOf
from trimtab.catalog import Network
from trimtab.runtime.weights.errors import WeightsError
from trimtab.runtime.weights.folder import check_folder

MANY_FILES = {"max_shard_bytes": 6000}


def problems(folder: Path, model: Network = LLAMA, family: str = "llama") -> tuple[str, ...]:
    with pytest.raises(WeightsError) as caught:
        check_folder(folder, model, family)
    assert str(caught.value).startswith(f"{folder}: its weights cannot be taken\n")
    return caught.value.problems


def test_a_whole_folder_is_found_in_one_file_or_many(folder_of: FolderOf, tmp_path: Path) -> None:
    """Both forms are published."""
    one = check_folder(folder_of(), LLAMA, "llama")
    (tmp_path / "model").rename(tmp_path / "one")
    many = check_folder(folder_of(**MANY_FILES), LLAMA, "llama")
    assert {name: tensor.shape for name, tensor in one.found.items()} == {
        name: tensor.shape for name, tensor in many.found.items()
    }
    assert {tensor.file.name for tensor in one.found.values()} == {"model.safetensors"}
    assert len({tensor.file.name for tensor in many.found.values()}) > 2


def test_everything_that_does_not_fit_is_told_at_once(folder_of: FolderOf) -> None:
    """One error at a time costs a download, or a queue, each."""
    folder = folder_of()
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(24, 16)
    tensors["lm_head.weight"] = torch.zeros(41, 16)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(24, 16, dtype=torch.int8)
    save_file(tensors, path)
    assert problems(folder) == (
        "missing: model.norm.weight",
        "extra: model.layers.2.mlp.up_proj.weight, in model.safetensors",
        "type of model.layers.1.mlp.up_proj.weight: I8 in model.safetensors; read are F32, BF16, F16",
        "shape of lm_head.weight: [41, 16] in model.safetensors; the network needs [40, 16]",
    )


def test_a_network_of_another_size_is_refused(folder_of: FolderOf) -> None:
    """`layers: 1` over a folder of two layers would train on half of a model."""
    with pytest.raises(WeightsError, match=r"model\.weights: random"):
        check_folder(folder_of(GPT2), LLAMA, "llama")


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", ".x.safetensors"],
)
def test_an_index_leads_nowhere_else(folder_of: FolderOf, name: str) -> None:
    """A downloaded index must not choose which files of this machine are opened."""
    folder = folder_of(**MANY_FILES)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert problems(folder) == (
        f"model.safetensors.index.json names {name!r}; a name of a .safetensors file is needed",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "model.safetensors.index.json is not JSON"),
        ("[" * 100_000, "model.safetensors.index.json is not JSON"),
        ("[]", "model.safetensors.index.json has no weight_map from tensors to files"),
        ('{"weight_map": {"a": 1}}', "model.safetensors.index.json has no weight_map from tensors to files"),
    ],
)
def test_an_index_that_is_none_is_refused(folder_of: FolderOf, text: str, problem: str) -> None:
    """With its name, and not with a traceback."""
    folder = folder_of(**MANY_FILES)
    (folder / "model.safetensors.index.json").write_text(text)
    assert problems(folder)[0].startswith(problem)


def test_pickles_are_refused_by_name(folder_of: FolderOf, tmp_path: Path) -> None:
    """Opening one runs whatever its author wrote."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    with pytest.raises(WeightsError, match=r"pickles are not read.*pytorch_model\.bin"):
        check_folder(folder, LLAMA, "llama")
    with pytest.raises(WeightsError, match="save_pretrained"):
        check_folder(folder, LLAMA, "llama")


def test_pickles_beside_safetensors_are_left_alone(folder_of: FolderOf) -> None:
    """Many published folders hold both."""
    folder = folder_of()
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert check_folder(folder, LLAMA, "llama").found


def test_a_folder_without_weights_says_what_to_do(tmp_path: Path) -> None:
    """A job that named the folder for its shape alone needs one key more."""
    with pytest.raises(WeightsError, match=r"model\.weights: random"):
        check_folder(tmp_path, LLAMA, "llama")
    with pytest.raises(WeightsError, match="no such folder"):
        check_folder(tmp_path / "nowhere", LLAMA, "llama")


def test_a_file_that_is_missing_or_damaged_is_named(folder_of: FolderOf) -> None:
    """A download that was cut short is the usual cause."""
    folder = folder_of(**MANY_FILES)
    files = sorted(folder.glob("*.safetensors"))
    files[0].unlink()
    os.truncate(files[1], files[1].stat().st_size - 4)
    found = problems(folder)
    assert f"no file {files[0].name}, which model.safetensors.index.json names" in found
    assert any(line.startswith(f"{files[1].name} is damaged, or no safetensors file") for line in found)


def test_a_tensor_in_another_file_than_the_index_says_is_told(folder_of: FolderOf) -> None:
    """Files of two versions of a model in one folder, usually."""
    folder = folder_of(**MANY_FILES)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first, last = index["weight_map"]["model.embed_tokens.weight"], index["weight_map"]["model.norm.weight"]
    index["weight_map"]["model.norm.weight"] = first
    path.write_text(json.dumps(index))
    assert f"model.norm.weight stands in {last}; model.safetensors.index.json says {first}" in problems(
        folder
    )


def test_links_of_a_cache_are_followed(folder_of: FolderOf, tmp_path: Path) -> None:
    """The hub's cache holds links to files elsewhere; those are the user's own."""
    folder = folder_of()
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert check_folder(folder, LLAMA, "llama").found


def test_looking_needs_no_torch(folder_of: FolderOf) -> None:
    """`run` looks before it starts anything; seconds of import would be its user's."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom trimtab.catalog import network\n"
        "from trimtab.runtime.weights.folder import check_folder\n"
        f"check_folder(Path({str(folder_of(TIED))!r}), network('llama-3m', layers=2, embed=16, heads=4, kv_heads=2, "
        "mlp=24, vocab=40, context=8, tied=True), 'llama')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
