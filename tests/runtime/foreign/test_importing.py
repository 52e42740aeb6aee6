"""Weights that torch and Megatron-LM saved come in as they were, bit by bit."""

import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from trimtab.catalog import NetworkError, network
from trimtab.catalog.hugging_face import read_config, stored_tensors, write_config
from trimtab.runtime.foreign.dcp import DcpFolder
from trimtab.runtime.foreign.errors import ForeignError
from trimtab.runtime.foreign.importing import DcpWeights, import_checkpoint
from trimtab.runtime.weights.reading import open_weights
from trimtab.terms import WeightType

SMALL = {"layers": 3, "embed": 32, "mlp": 48, "vocab": 90, "context": 16}
LLAMA = network("llama-3m", heads=4, kv_heads=2, head_size=8, **SMALL)
GPT = network("gpt-3m", heads=4, **SMALL)
NETWORKS = {"llama": LLAMA, "gpt": GPT}


class Pieces(torch.Tensor):
    """A tensor that this process holds in pieces, as DCP knows them: what Megatron-LM hands it."""

    @classmethod
    def of(cls, whole, sizes):
        found = whole.as_subclass(cls)
        found.whole, found.sizes = whole, sizes
        return found

    def boxes(self):
        starts = [range(0, length, size) for length, size in zip(self.whole.shape, self.sizes, strict=True)]
        for offsets in torch.cartesian_prod(*map(torch.tensor, starts)).reshape(-1, len(starts)).tolist():
            ends = zip(offsets, self.sizes, self.whole.shape, strict=True)
            yield offsets, [min(size, length - offset) for offset, size, length in ends]

    def __create_write_items__(self, fqn, _):
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)),
                    properties=TensorProperties.create_from_tensor(self.whole),
                    size=self.whole.size(),
                ),
            )
            for offsets, sizes in self.boxes()
        ]

    def __get_tensor_shard__(self, index):
        for offsets, sizes in self.boxes():
            if torch.Size(offsets) == index.offset:
                place = tuple(slice(a, a + n) for a, n in zip(offsets, sizes, strict=True))
                return self.whole[place].clone()
        raise AssertionError(index)


def values(source, dtype=torch.float32):
    """Random values of every tensor of a network, by logical name; each is exact in its type and in fp32."""
    generator = torch.Generator().manual_seed(3)
    return {
        tensor.name: torch.randn(tensor.shape, generator=generator).to(dtype).float()
        for tensor in source.tensors()
    }


def save(folder, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is there
        dcp.save(state, checkpoint_id=folder, no_dist=True)


def assert_read(weights, wanted):
    for name, tensor in wanted.items():
        assert torch.equal(weights.read(name), tensor), name
        rows = tensor.shape[0] // 2
        box = ((rows, tensor.shape[0]), *((0, length) for length in tensor.shape[1:]))
        assert torch.equal(weights.read(name, box), tensor[rows:]), name


def hugging_face(source, wanted):
    """A state under the names of the family."""
    state = {}
    for tensor in stored_tensors(source, read_config(write_config(source), name="n").family):
        whole = torch.empty(tensor.shape)
        for block in tensor.blocks:
            place = tuple(slice(*ends) for ends in block.stored_box)
            part = wanted[block.logical]
            whole[place] = part.T if block.is_transposed else part
        state[tensor.name] = whole
    return state


def stacked(source, wanted, *, fused=True, padding=6):
    """A state as Megatron-LM's core stacks it, put together without the package."""
    heads, groups, size = source.heads, source.kv_heads, source.head_size

    def layer(number, leaf):
        def of(part):
            return wanted[f"layers.{number}.{part}.{leaf}"]

        def each(part, rows):
            return of(part).view(groups, rows, *of(part).shape[1:])

        per_group = heads // groups * size
        qkv = [each("attention.wq", per_group), each("attention.wk", size), each("attention.wv", size)]
        found = {
            "self_attention.linear_qkv": torch.cat(qkv, dim=1).flatten(0, 1),
            "self_attention.linear_proj": of("attention.wo"),
            "mlp.linear_fc2": of("mlp.down"),
            "mlp.linear_fc1": torch.cat([of("mlp.gate"), of("mlp.up")])
            if source.activation == "swiglu"
            else of("mlp.up"),
        }
        return {f"{name}.{leaf}": tensor for name, tensor in found.items()}

    def norms(number, leaf):
        first, second = (
            wanted[f"layers.{number}.attention_norm.{leaf}"],
            wanted[f"layers.{number}.mlp_norm.{leaf}"],
        )
        if fused:
            return {
                f"self_attention.linear_qkv.layer_norm_{leaf}": first,
                f"mlp.linear_fc1.layer_norm_{leaf}": second,
            }
        return {f"input_layernorm.{leaf}": first, f"pre_mlp_layernorm.{leaf}": second}

    leaves = ["weight", "bias"] if "layers.0.attention.wq.bias" in wanted else ["weight"]
    by_layer = [
        {name: tensor for leaf in leaves for name, tensor in (layer(n, leaf) | norms(n, leaf)).items()}
        for n in range(source.layers)
    ]
    state = {
        f"decoder.layers.{name}": torch.stack([found[name] for found in by_layer]) for name in by_layer[0]
    }
    embedding = wanted["embedding.weight"]
    filling = torch.full((padding, embedding.shape[1]), 7.0)
    state["embedding.word_embeddings.weight"] = torch.cat([embedding, filling])
    if "head.weight" in wanted:
        state["output_layer.weight"] = torch.cat([wanted["head.weight"], filling])
    if "positions.weight" in wanted:
        state["embedding.position_embeddings.weight"] = wanted["positions.weight"]
    for leaf in leaves:
        state[f"decoder.final_layernorm.{leaf}"] = wanted[f"final_norm.{leaf}"]
    return state


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("prefix", ["", "model", "app"])
def test_a_state_of_torch_comes_in(tmp_path, name, prefix):
    """Weights that FSDP saved, under the names of the transformers library, beside an optimizer's state."""
    source = NETWORKS[name]
    wanted = values(source)
    state = hugging_face(source, wanted)
    other = {"optimizer": {"state": {key: {"exp_avg": tensor} for key, tensor in state.items()}}, "step": 3}
    save(tmp_path / "saved", ({prefix: state} if prefix else state) | other)
    assert_read(DcpWeights(DcpFolder(tmp_path / "saved"), source), wanted)


def test_trimtabs_own_names_come_in(tmp_path):
    """Weights that were loaded into a model of ours, and saved by torch."""
    wanted = values(LLAMA)
    save(tmp_path / "saved", {"model": wanted})
    assert_read(DcpWeights(DcpFolder(tmp_path / "saved"), LLAMA), wanted)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("form", ["fused", "apart", "one by one", "under model"])
def test_a_distributed_checkpoint_of_megatron_comes_in(tmp_path, name, form):
    """Groups of heads, gate before up, layers along a dim, a vocabulary that was filled up, pieces of four ranks, bf16."""
    source = NETWORKS[name]
    wanted = values(source, torch.bfloat16)
    state = {key: tensor.bfloat16() for key, tensor in stacked(source, wanted, fused=form != "apart").items()}
    if form == "one by one":
        layers = {key: state.pop(key) for key in list(state) if key.startswith("decoder.layers.")}
        for key, tensor in layers.items():
            for number, one in enumerate(tensor):
                state[key.replace("layers.", f"layers.{number}.")] = one
    if form == "under model":
        state = {f"model.{key}": tensor for key, tensor in state.items()}
    pieces = {
        key: Pieces.of(
            tensor,
            [1 if tensor.dim() == 3 and n == 0 else -(-length // 2) for n, length in enumerate(tensor.shape)],
        )
        for key, tensor in state.items()
    }
    others = {"optimizer.state.exp_avg.embedding.word_embeddings.weight": torch.zeros(3), "rng_state": 5}
    save(tmp_path / "saved", pieces | others)
    assert_read(DcpWeights(DcpFolder(tmp_path / "saved"), source), wanted)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_comes_in_is_a_folder_that_training_begins_with(tmp_path, name):
    """``model: {folder: ...}`` reads what the import wrote."""
    source = NETWORKS[name]
    wanted = values(source, torch.bfloat16)
    save(tmp_path / "saved", stacked(source, wanted))
    import_checkpoint(tmp_path / "saved", source, tmp_path / "mine", dtype=WeightType.BF16)
    family = read_config(write_config(source), name="n").family
    assert_read(open_weights(tmp_path / "mine", source, family), wanted)


def test_what_does_not_fit_is_all_listed(tmp_path):
    """S-CKP-17: a network with fewer layers would take the first ones, and report success."""
    wanted = values(LLAMA)
    state = stacked(LLAMA, wanted)
    state["decoder.layers.mlp.adapter.weight"] = torch.zeros(3, 2)
    del state["decoder.final_layernorm.weight"]
    state["decoder.layers.mlp.linear_fc2.weight"] = state["decoder.layers.mlp.linear_fc2.weight"][
        :, :5
    ].double()
    save(tmp_path / "saved", state)
    with pytest.raises(ForeignError) as caught:
        DcpWeights(DcpFolder(tmp_path / "saved"), LLAMA)
    lines = str(caught.value).splitlines()[1:-1]
    assert [line.strip() for line in lines] == [
        "missing: decoder.final_layernorm.weight, for final_norm.weight",
        "shape of decoder.layers.mlp.linear_fc2.weight: [3, 5, 48]; the network needs [3, 32, 48]",
        "extra: decoder.layers.mlp.adapter.weight, of [3, 2]",
        "type of decoder.layers.mlp.linear_fc2.weight: float64; read are float32, bfloat16, float16",
    ]


@pytest.mark.parametrize("form", ["theirs", "megatron"])
def test_fewer_layers_than_were_saved_are_refused(tmp_path, form):
    """S-CKP-17: as above, for a job that says fewer layers."""
    wanted = values(LLAMA)
    save(tmp_path / "saved", hugging_face(LLAMA, wanted) if form == "theirs" else stacked(LLAMA, wanted))
    fewer = network("llama-3m", heads=4, kv_heads=2, head_size=8, **(SMALL | {"layers": 2}))
    with pytest.raises(ForeignError, match=r"extra: model\.layers\.2\.|the network needs \[2, "):
        DcpWeights(DcpFolder(tmp_path / "saved"), fewer)


def test_experts_of_megatron_are_refused_by_name(tmp_path):
    """They would be taken for a dense network's."""
    save(tmp_path / "saved", stacked(LLAMA, values(LLAMA)))
    with pytest.raises(NetworkError, match="has experts"):
        DcpWeights(DcpFolder(tmp_path / "saved"), network("mixtral-8x7b"))
