"""The transformers library loads what Trimtab writes, and both compute the same of what the other wrote.

The library takes seconds to import; every test that needs it stands here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from trimtab.catalog import THIS_MACHINE, Machine, Network, cluster
from trimtab.catalog.hugging_face import read_config
from trimtab.plan.compiling import compile_program
from trimtab.plan.program import Operator
from trimtab.plan.training import Training
from trimtab.runtime.decoder import Decoder
from trimtab.runtime.lowering import Rank, Rules, Wires
from trimtab.runtime.lowering.experts import Region
from trimtab.runtime.lowering.scopes import Observer, Scope
from trimtab.runtime.optimizers import Sgd
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.weights.reading import FolderWeights, open_weights
from trimtab.runtime.weights.writing import write_folder
from trimtab.spec import Mesh, parse_strategy
from trimtab.terms import WeightType

SAMPLES, SEQUENCE, VOCAB = 2, 16, 96
TOKENS = torch.randint(0, VOCAB, (SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(1))
NEAR = {"rtol": 1e-5, "atol": 1e-5}
"""Logits of a few units, in fp32: sums in another order. A head, a layer or a rotation at a wrong place moves them by
units."""

NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": SEQUENCE,
    **NO_TOKENS,
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.0}
DENSE: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, **NO_TOKENS},
    "llama": SIZES,
    "llama with biases, tied, scaled": {
        **SIZES,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": SCALED,
    },
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 16},
    "mistral": {**SIZES, "head_dim": 16, "sliding_window": SEQUENCE},
    "mistral with a window": {**SIZES, "head_dim": 16, "sliding_window": 5},
    "qwen2 with a window in one layer": {
        **SIZES,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
}
SPARSE: dict[str, dict[str, Any]] = {
    "mixtral": {**SIZES, **EXPERTS, "num_local_experts": 4},
    "qwen3_moe": {
        **SIZES,
        **EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 24,
        "head_dim": 16,
        "norm_topk_prob": True,
    },
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The library draws a bar for every file."""
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


class Published:
    """A random model of a family as the library saves it, in several files, and the network that it is."""

    def __init__(self, folder: Path, name: str, dtype: torch.dtype = torch.float32) -> None:
        family = name.split(" ", maxsplit=1)[0]
        config = transformers.AutoConfig.for_model(family, **(DENSE | SPARSE)[name])
        torch.manual_seed(0)
        self.model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for parameter in self.model.parameters():
            # Norms and biases, too: ones and zeros would hide that they are exchanged.
            nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
        self.model.to(dtype)
        self.folder = folder / "published"
        self.model.save_pretrained(self.folder, max_shard_size="20KB")
        self.config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        read = read_config(self.config, name=name)
        self.network, self.family = read.network, read.family

    def weights(self) -> FolderWeights:
        return open_weights(self.folder, self.network, self.family)

    @torch.no_grad()
    def logits(self) -> Tensor:
        found: Tensor = self.model(TOKENS).logits
        return found


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("name", DENSE)
def test_logits_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """A matrix that is turned, or a head that is rotated otherwise, trains on all the same, from a worse beginning."""
    published = Published(tmp_path, name)
    decoder = Decoder(published.network, KeyedRandom())
    decoder.fill(published.weights().read)
    with torch.no_grad():
        torch.testing.assert_close(decoder.eval()(TOKENS), published.logits(), **NEAR)


@pytest.mark.parametrize("name", SPARSE)
def test_logits_of_experts_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """By the plan of one device; each token is routed alone, so that none is dropped, as the library drops none."""
    published = Published(tmp_path, name)
    alone = [
        Region(slice(sample, sample + 1), slice(position, position + 1))
        for sample in range(SAMPLES)
        for position in range(SEQUENCE)
    ]
    logits: list[Tensor] = []

    class Look(Observer):
        """Keeps the logits."""

        def made(self, scope: Scope, operator: Operator) -> None:
            if "logits" in operator.outputs:
                logits.append(scope.tensors["logits"].detach().clone())

    rank = Rank(
        plan_of_one_device(published.network),
        0,
        Wires(0, 1),
        Rules(optimizer=Sgd(lr=1.0), learning_rate=lambda _: 1.0, clip=None),
        seed=0,
        weights=published.weights(),
        regions=dict.fromkeys(range(published.network.layers), alone),
        observe=Look(),
    )
    rank.step([(TOKENS, TOKENS)], 0)
    torch.testing.assert_close(logits[0], published.logits(), **NEAR)


def plan_of_one_device(network: Network) -> Any:
    training = Training(
        network=network,
        batch=SAMPLES,
        microbatch=SAMPLES,
        sequence=SEQUENCE,
        shares=None,
        compute="fp32",
        num_states=0,
    )
    here = cluster(THIS_MACHINE, machine=Machine(num_devices=1, cores=1, memory_bytes=2**40))
    program = parse_strategy("", source="one device")
    return compile_program(program, training, mesh=Mesh(axes=(("dp", 1),)), cluster=here)


@pytest.mark.parametrize("keeps_config", [True, False])
@pytest.mark.parametrize("name", DENSE | SPARSE)
def test_a_folder_comes_back_bit_for_bit(tmp_path: Path, name: str, keeps_config: bool) -> None:
    """In and out without training must lose nothing, and the library must take it for the same model."""
    published = Published(tmp_path, name)
    logical = Held(published)
    write_folder(
        tmp_path / "again",
        published.network,
        logical,
        base=published.config if keeps_config else None,
        max_shard_bytes=20_000,
    )
    before, after = tensors_of(published.folder), tensors_of(tmp_path / "again")
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key].view(torch.uint8), before[key].view(torch.uint8)) for key in before)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert type(loaded) is type(published.model)
    assert loaded.dtype is torch.float32
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS).logits, published.logits())


def test_bf16_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """Through fp32, in which every bf16 is exact; and it is loaded as bf16."""
    published = Published(tmp_path, "qwen3", torch.bfloat16)
    write_folder(tmp_path / "again", published.network, Held(published), dtype=WeightType.BF16)
    before, after = tensors_of(published.folder), tensors_of(tmp_path / "again")
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype="auto")
    assert loaded.dtype is torch.bfloat16


class Held:
    """All logical tensors of a folder, in fp32, as a checkpoint holds them."""

    def __init__(self, published: Published) -> None:
        weights = published.weights()
        self._tensors = {tensor.name: weights.read(tensor.name) for tensor in published.network.tensors()}

    def read(self, name: str, box: Any = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return self._tensors[name][tuple(slice(*ends) for ends in box)].to(dtype, copy=True)
