import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.catalog import Network, NetworkError, changed_network, network
from trimtab.catalog.hugging_face import (
    boxes_of_run,
    match_names,
    network_from_config,
    read_config,
    stored_tensors,
)

CONFIGURATIONS = Path(__file__).parent / "configurations"
SMALL = {"layers": 2, "embed": 8, "heads": 4, "kv_heads": 2, "head_size": 4, "mlp": 12, "vocab": 10}
FAMILIES = {
    "gpt2": network("gpt-3m", **{**SMALL, "kv_heads": 4, "head_size": 2, "context": 6}),
    "llama": network("llama-3m", **SMALL),
    "mistral": network("llama-3m", **SMALL),
    "mixtral": network("moe-3m", **SMALL, experts=3),
    "qwen2": network("llama-3m", **SMALL, bias="qkv"),
    "qwen3": network("llama-3m", **SMALL, qk_norm=True, tied=True),
    "qwen3_moe": network("moe-3m", **SMALL, experts=3, qk_norm=True),
}
"""A network of each family, small enough to look at every element."""


def filled(model: Network, family: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Logical tensors of which no two elements are alike, and the stored ones that their blocks make."""
    logical, count = {}, 0
    for tensor in model.tensors():
        logical[tensor.name] = np.arange(count, count + tensor.numel).reshape(tensor.shape)
        count += tensor.numel
    stored = {}
    for tensor in stored_tensors(model, family):
        stored[tensor.name] = np.full(tensor.shape, -1)
        for block in tensor.blocks:
            place = stored[tensor.name][tuple(slice(*ends) for ends in block.stored_box)]
            values = logical[block.logical][tuple(slice(*ends) for ends in block.logical_box)]
            place[...] = values.T if block.is_transposed else values.reshape(place.shape)
    return logical, stored


@pytest.mark.parametrize("family", FAMILIES)
def test_every_element_is_stored_exactly_once(family: str) -> None:
    """One that is stored twice, or not at all, is a weight that another program has and this one has not."""
    logical, stored = filled(FAMILIES[family], family)
    before = np.sort(np.concatenate([values.ravel() for values in logical.values()]))
    after = np.sort(np.concatenate([values.ravel() for values in stored.values()]))
    assert np.array_equal(before, after)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGURATIONS.glob("*.json")))
def test_published_networks_are_stored_whole(name: str) -> None:
    """Tens of thousands of experts' matrices among them."""
    read = read_config(json.loads((CONFIGURATIONS / f"{name}.json").read_text()), name=name)
    numels = [int(np.prod(tensor.shape)) for tensor in stored_tensors(read.network, read.family)]
    assert sum(numels) == read.network.num_parameters()


@pytest.mark.parametrize(
    ("name", "stored", "shape"),
    [
        ("gpt2", "transformer.h.11.attn.c_attn.bias", (2304,)),
        ("gpt2", "transformer.h.11.mlp.c_fc.weight", (768, 3072)),
        ("gpt2", "transformer.wpe.weight", (1024, 768)),
        ("mistral-nemo-12b", "model.layers.39.self_attn.q_proj.weight", (4096, 5120)),
        ("mixtral-8x7b", "model.layers.31.block_sparse_moe.experts.7.w2.weight", (4096, 14336)),
        ("mixtral-8x7b", "model.layers.0.block_sparse_moe.gate.weight", (8, 4096)),
        ("qwen2.5-7b", "model.layers.27.self_attn.k_proj.bias", (512,)),
        ("qwen3-0.6b", "model.layers.27.self_attn.k_norm.weight", (128,)),
        ("qwen3-30b-a3b", "model.layers.47.mlp.experts.127.down_proj.weight", (2048, 768)),
    ],
)
def test_stored_tensors_have_published_names_and_shapes(
    name: str, stored: str, shape: tuple[int, ...]
) -> None:
    """What stands in the index files of the published models, from memory of their layout."""
    read = read_config(json.loads((CONFIGURATIONS / f"{name}.json").read_text()), name=name)
    assert {tensor.name: tensor.shape for tensor in stored_tensors(read.network, read.family)}[
        stored
    ] == shape


def test_a_tied_head_is_stored_once() -> None:
    """Twice, and who loads it does not know which of the two was trained."""
    names = {tensor.name for tensor in stored_tensors(FAMILIES["qwen3"], "qwen3")}
    assert "lm_head.weight" not in names
    assert "lm_head.weight" in {tensor.name for tensor in stored_tensors(FAMILIES["llama"], "llama")}


@given(st.sampled_from(sorted(FAMILIES)), st.data())
def test_a_box_is_found_where_its_blocks_say(family: str, data: st.DataObject) -> None:
    """A rank that reads a part must get that part, however the files cut and turn it."""
    model = FAMILIES[family]
    logical, stored = filled(model, family)
    tensor = data.draw(st.sampled_from(model.tensors()))
    box = tuple(data.draw(ranges(length)) for length in tensor.shape)
    found = np.full([last - first for first, last in box], -1)
    for part in stored_tensors(model, family):
        for block in part.blocks:
            inside = block.within(box) if block.logical == tensor.name else None
            if inside is not None:
                place = found[
                    tuple(
                        slice(low - first, high - first)
                        for (low, high), (first, _) in zip(inside.logical_box, box, strict=True)
                    )
                ]
                values = stored[part.name][tuple(slice(*ends) for ends in inside.stored_box)]
                place[...] = (values.T if block.is_transposed else values).reshape(place.shape)
    assert np.array_equal(found, logical[tensor.name][tuple(slice(*ends) for ends in box)])


@st.composite
def ranges(draw: st.DrawFn, length: int) -> tuple[int, int]:
    """Some indices of a dim, at least one."""
    first = draw(st.integers(0, length - 1))
    return first, draw(st.integers(first + 1, length))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_boxes_make_up_a_run_in_order(shape: list[int], data: st.DataObject) -> None:
    """A piece of storage is a run; what its boxes leave out, or read too much, is a wrong weight."""
    elements = np.arange(int(np.prod(shape))).reshape(shape)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, elements.size)] * 2)))
    boxes = list(boxes_of_run(shape, start, stop))
    found = [elements[tuple(slice(*ends) for ends in box)].ravel() for box in boxes]
    assert list(np.concatenate([np.empty(0, int), *found])) == list(range(start, stop))
    assert len(boxes) <= 2 * len(shape) - 1


def test_names_may_leave_out_the_model_in_front() -> None:
    """The first published files of GPT-2 do, and hold the masks of attention, too."""
    needed = stored_tensors(FAMILIES["gpt2"], "gpt2")
    found = [tensor.name.removeprefix("transformer.") for tensor in needed]
    masks = ["h.0.attn.bias", "h.1.attn.bias", "h.0.attn.masked_bias"]
    matching = match_names([*found, *masks], needed, "gpt2")
    assert (matching.missing, matching.extra, matching.tied_head) == ((), (), None)
    assert matching.found_as["transformer.h.0.attn.c_attn.bias"] == "h.0.attn.c_attn.bias"


def test_what_is_missing_and_what_is_too_much_is_told() -> None:
    """Both at once: a name that is misspelt is both."""
    needed = stored_tensors(FAMILIES["qwen3"], "qwen3")
    names = [tensor.name for tensor in needed if tensor.name != "model.norm.weight"]
    more = ["model.rms.weight", "lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]
    matching = match_names([*names, *more], needed, "qwen3")
    assert matching.missing == ("model.norm.weight",)
    assert matching.extra == ("model.rms.weight",)
    assert matching.tied_head == "lm_head.weight"


def test_a_tensor_under_two_names_is_one_too_many() -> None:
    """Which of the two is meant, nobody knows."""
    needed = stored_tensors(FAMILIES["gpt2"], "gpt2")
    names = [*(tensor.name for tensor in needed), "wte.weight"]
    assert match_names(names, needed, "gpt2").extra == ("wte.weight",)


def test_a_change_that_the_family_does_not_know_is_refused() -> None:
    """`qk_norm: true` on a Llama adds tensors that no Llama has."""
    changed = changed_network(FAMILIES["llama"], {"qk_norm": True})
    with pytest.raises(NetworkError) as caught:
        stored_tensors(changed, "llama")
    assert "no network of the family 'llama'" in str(caught.value)
    names = [f"layers.{n}.attention.{which}_norm.weight" for n, which in product((0, 1), "qk")]
    assert all(f"  {name}\n" in str(caught.value) for name in names)


def test_layers_of_two_digits_have_their_own_names() -> None:
    """A number that is replaced where it does not stand for a layer would name two tensors alike."""
    config = json.loads((CONFIGURATIONS / "gpt2.json").read_text())
    names = [tensor.name for tensor in stored_tensors(network_from_config(config, name="x"), "gpt2")]
    norms = [name for name in names if name.endswith(".ln_1.weight")]
    assert norms == [f"transformer.h.{layer}.ln_1.weight" for layer in range(12)]
