import doctest
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.catalog import (
    Activation,
    FlopConvention,
    Network,
    NetworkError,
    Norm,
    Positions,
    UnknownNameError,
    network,
    network_names,
    networks,
)
from trimtab.catalog.tables import toml_table


def test_the_small_gpt_names_its_tensors_in_canonical_order() -> None:
    """The runtime's state dict and every strategy's WHERE use these names."""
    names = [tensor.name for tensor in network("gpt-3m", layers=1).tensors()]
    assert names == [
        "embedding.weight",
        "positions.weight",
        "layers.0.attention_norm.weight",
        "layers.0.attention_norm.bias",
        "layers.0.attention.wq.weight",
        "layers.0.attention.wq.bias",
        "layers.0.attention.wk.weight",
        "layers.0.attention.wk.bias",
        "layers.0.attention.wv.weight",
        "layers.0.attention.wv.bias",
        "layers.0.attention.wo.weight",
        "layers.0.attention.wo.bias",
        "layers.0.mlp_norm.weight",
        "layers.0.mlp_norm.bias",
        "layers.0.mlp.up.weight",
        "layers.0.mlp.up.bias",
        "layers.0.mlp.down.weight",
        "layers.0.mlp.down.bias",
        "final_norm.weight",
        "final_norm.bias",
    ]


def test_the_small_llama_has_grouped_keys_a_gate_and_its_own_head() -> None:
    """A kv head counted as a query head would make memory and FLOPs of every grouped network wrong."""
    shapes = {tensor.name: (tensor.dims, tensor.shape) for tensor in network("llama-3m", layers=1).tensors()}
    assert shapes == {
        "embedding.weight": (("vocab", "embed"), (256, 256)),
        "layers.0.attention_norm.weight": (("embed",), (256,)),
        "layers.0.attention.wq.weight": (("heads", "embed"), (256, 256)),
        "layers.0.attention.wk.weight": (("kv_heads", "embed"), (64, 256)),
        "layers.0.attention.wv.weight": (("kv_heads", "embed"), (64, 256)),
        "layers.0.attention.wo.weight": (("embed", "heads"), (256, 256)),
        "layers.0.mlp_norm.weight": (("embed",), (256,)),
        "layers.0.mlp.up.weight": (("mlp", "embed"), (768, 256)),
        "layers.0.mlp.gate.weight": (("mlp", "embed"), (768, 256)),
        "layers.0.mlp.down.weight": (("embed", "mlp"), (256, 768)),
        "final_norm.weight": (("embed",), (256,)),
        "head.weight": (("vocab", "embed"), (256, 256)),
    }


def test_layer_and_kind_tell_tensors_apart() -> None:
    """A strategy selects by these columns: a wrong one moves the wrong gradient."""
    columns = {tensor.name: (tensor.layer, str(tensor.kind)) for tensor in network("llama-3m").tensors()}
    assert columns["embedding.weight"] == (None, "embedding")
    assert columns["layers.3.attention.wq.weight"] == (3, "linear")
    assert columns["layers.3.mlp_norm.weight"] == (3, "norm")
    assert columns["final_norm.weight"] == (None, "norm")
    assert columns["head.weight"] == (None, "head")


def test_the_documented_figure_holds() -> None:
    """The example in the docstring is what a reader checks first."""
    assert doctest.testmod(networks).failed == 0


def test_both_conventions_are_printed_by_name() -> None:
    """A FLOP figure without its convention cannot be compared with another."""
    flops = network("llama-3m").flops_by_convention(128)
    assert {convention.value for convention in flops} == {"causal", "full"}
    assert flops[FlopConvention.CAUSAL] < flops[FlopConvention.FULL]


def test_an_override_replaces_a_field_and_shows_in_the_name() -> None:
    """A report that says gpt-3m for a smaller network would mislead whoever compares runs."""
    changed = network("gpt-3m", layers=2, norm="rmsnorm", dropout=None)
    assert changed == replace(
        network("gpt-3m"), name="gpt-3m(layers=2, norm=rmsnorm)", layers=2, norm=Norm.RMSNORM
    )


def test_an_override_with_the_value_of_the_preset_changes_nothing() -> None:
    """Saying the default aloud must give the same run."""
    assert network("gpt-3m", layers=4, norm="layernorm") == network("gpt-3m")


def test_kv_heads_follow_heads_where_the_preset_has_as_many() -> None:
    """Without it every override of heads in a plain network would be refused."""
    assert network("gpt-3m", heads=4).kv_heads == 4
    assert network("llama-3m", heads=4).kv_heads == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"heads": 3}, "heads is 3; it must divide embed, 256"),
        ({"kv_heads": 3}, "kv_heads is 3; it must divide heads, 8"),
        ({"embed": 8 * 31}, r"head size \(embed / heads\) is 31; .* it must be even"),
        ({"layers": 0}, "layers is 0; it must be at least 1"),
        ({"heads": 0}, "heads is 0; it must be at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be from 0 to below 1"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0; it must be above 0"),
        ({"layers": 2.5}, "'layers' is 2.5; it takes a whole number"),
        ({"layers": True}, "'layers' is True; it takes a whole number"),
        ({"dropout": "low"}, "'dropout' is 'low'; it takes a number"),
        ({"tied": 1}, "'tied' is 1; it takes true or false"),
    ],
)
def test_fields_that_do_not_fit_are_refused(overrides: dict[str, object], message: str) -> None:
    """The user learns which field and what it must be before anything is built."""
    with pytest.raises(NetworkError, match=message):
        network("llama-3m", **overrides)


def test_all_problems_of_a_network_are_told_at_once() -> None:
    """One error per attempt would cost a user one attempt per error."""
    with pytest.raises(NetworkError) as refused:
        network("llama-3m", kv_heads=3, dropout=2, layers=-1)
    assert len(str(refused.value).splitlines()) == 4


def test_learned_positions_allow_an_odd_head_size() -> None:
    """Only rotation needs pairs."""
    assert network("gpt-3m", embed=8 * 31).positions is Positions.LEARNED


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("gpt-3n", {}, "unknown network 'gpt-3n'(.|\n)*Did you mean 'gpt-3m'"),
        ("gpt-3m", {"layer": 2}, "unknown network field 'layer'(.|\n)*Did you mean 'layers'"),
        ("gpt-3m", {"norm": "rms"}, "unknown norm 'rms'(.|\n)*Did you mean 'rmsnorm'"),
        ("gpt-3m", {"name": "mine"}, "unknown network field 'name'"),
    ],
)
def test_unknown_names_get_the_nearest_one(name: str, overrides: dict[str, object], message: str) -> None:
    """A typing error is found at once instead of after a search in the documentation."""
    with pytest.raises(UnknownNameError, match=message):
        network(name, **overrides)


@pytest.mark.parametrize("name", network_names())
def test_every_preset_can_be_built(name: str) -> None:
    """A preset that is listed must load."""
    assert network(name).name == name


@pytest.mark.parametrize(
    ("name", "published"),
    [
        (
            "gpt2-124m",
            124_439_808,
        ),  # all parameters of transformers' GPT2LMHeadModel
        ("llama2-7b", 6_738_415_616),  # from here: totals of the safetensors on huggingface.co
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
    ],
)
def test_parameters_are_exactly_the_published_ones(name: str, published: int) -> None:
    """Memory, traffic and checkpoint size all follow from this number."""
    assert network(name).num_parameters() == published


def test_gpt3_has_the_parameters_of_its_shape() -> None:
    """The paper rounds to 175.0 billion; its shape gives 174.6."""
    layer = 12 * 12288**2 + 13 * 12288  # matrices; four biases of 1, one of 4, one of 3, two norms
    expected = 96 * layer + (50257 + 2048 + 2) * 12288
    assert network("gpt3-175b").num_parameters() == expected == 174_604_259_328


def test_full_flops_of_a_plain_network_are_those_of_megatron() -> None:
    """The formula behind most published figures: 72 B s l h² (1 + s / 6h + V / 12 l h), without recompute.

    Narayanan et al. 2021 (Megatron-LM on clusters), appendix, whose 96 counts full recompute: 72 = 96 × 3/4.
    """
    gpt3 = network("gpt3-175b")
    layers, embed, sequence = gpt3.layers, gpt3.embed, 2048
    expected = 72 * layers * embed**2 * (1 + sequence / (6 * embed) + gpt3.vocab / (12 * layers * embed))
    assert gpt3.flops_per_token(sequence, causal=False) == pytest.approx(expected, rel=1e-12)


def test_flops_of_a_grouped_network_follow_its_matrices() -> None:
    """Keys and values of one kv head serve several heads: their projections shrink, the scores do not."""
    grouped = network("llama3-8b")
    matrices = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    scores_and_values = 2 * 2 * 4096 * 8192
    forward = 32 * (2 * matrices + scores_and_values) + 2 * 4096 * 128256
    assert grouped.flops_per_token(8192, causal=False) == 3 * forward


def test_causal_attention_at_16k_is_not_counted_twice() -> None:
    """Counting the upper triangle, which no causal kernel computes, once gave a utilisation of 1.21."""
    llama = network("llama2-7b")
    flops = llama.flops_by_convention(16384)
    attention_full = 3 * 32 * 4 * 4096 * 16384
    triangle = 3 * 32 * 4 * 4096 * 16385 // 2
    assert flops[FlopConvention.FULL] - flops[FlopConvention.CAUSAL] == attention_full - triangle


def test_a_tied_head_is_computed_but_not_stored() -> None:
    """The head's product is work whether or not its matrix is shared; the parameters are there once."""
    tied, untied = network("llama-3m", tied=True), network("llama-3m")
    assert tied.flops_per_token(64, causal=True) == untied.flops_per_token(64, causal=True)
    assert untied.num_parameters() - tied.num_parameters() == 256 * 256


@st.composite
def any_network(draw: st.DrawFn) -> Network:
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 4))
    return Network(
        name="any",
        layers=draw(st.integers(1, 5)),
        embed=heads * 2 * draw(st.integers(1, 8)),
        heads=heads,
        kv_heads=kv_heads,
        mlp=draw(st.integers(1, 64)),
        vocab=draw(st.integers(1, 300)),
        context=draw(st.integers(1, 64)),
        norm=draw(st.sampled_from(Norm)),
        positions=draw(st.sampled_from(Positions)),
        activation=draw(st.sampled_from(Activation)),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        dropout=0.0,
    )


@given(any_network())
def test_tensors_have_distinct_names_and_shapes_that_follow_their_dims(any_network: Network) -> None:
    """Two tensors of one name would overwrite each other in a checkpoint."""
    tensors = any_network.tensors()
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    assert all(tensor.shape == tuple(map(any_network.size_of, tensor.dims)) for tensor in tensors)


@given(any_network())
def test_parameters_match_a_count_by_hand(any_network: Network) -> None:
    """The sum over tensors must be the closed formula for every combination of choices."""
    n = any_network
    norm_size = n.embed * (2 if n.norm is Norm.LAYERNORM else 1)
    num_ups = 2 if n.activation is Activation.SWIGLU else 1
    kv_size = n.kv_heads * n.embed // n.heads
    matrices = 2 * n.embed**2 + 2 * n.embed * kv_size + (num_ups + 1) * n.embed * n.mlp
    biases = (2 * n.embed + 2 * kv_size + num_ups * n.mlp + n.embed) if n.bias else 0
    learned = n.context * n.embed if n.positions is Positions.LEARNED else 0
    heads = (1 if n.tied else 2) * n.vocab * n.embed
    assert n.num_parameters() == n.layers * (matrices + biases + 2 * norm_size) + learned + heads + norm_size


@given(any_network(), st.integers(1, 512))
def test_flops_are_the_sum_over_layers_and_head_and_grow(any_network: Network, sequence: int) -> None:
    """A pipeline's stages are balanced by the parts; the parts must make up the whole."""
    layers = [any_network.layer_forward_flops(i, sequence, causal=True) for i in range(any_network.layers)]
    whole = any_network.flops_per_token(sequence, causal=True)
    assert whole == 3 * (sum(layers) + any_network.head_forward_flops())
    assert whole <= any_network.flops_per_token(sequence, causal=False)
    assert whole < replace(any_network, layers=any_network.layers + 1).flops_per_token(sequence, causal=True)
    assert whole < any_network.flops_per_token(sequence + 1, causal=True)


@pytest.mark.parametrize("row", toml_table("networks.toml").items(), ids=lambda row: row[0])
def test_every_preset_states_its_source(row: tuple[str, dict[str, object]]) -> None:
    """A number without a source cannot be checked by anybody."""
    assert row[1]["source"]
