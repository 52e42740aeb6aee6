import doctest
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.catalog import (
    Activation,
    Bias,
    FlopConvention,
    Network,
    NetworkError,
    Norm,
    Positions,
    RopeScaling,
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


def test_experts_are_one_tensor_each_way_behind_a_router() -> None:
    """A strategy splits the dim `experts` of these; one tensor an expert could not be split so."""
    tensors = {tensor.name: tensor for tensor in network("moe-3m", layers=1).tensors()}
    found = {name.removeprefix("layers.0."): (t.dims, t.shape, str(t.kind)) for name, t in tensors.items()}
    assert {name: row for name, row in found.items() if name.startswith(("router", "experts", "mlp"))} == {
        "mlp_norm.weight": (("embed",), (256,), "norm"),
        "router.weight": (("routes", "embed"), (8, 256), "router"),
        "experts.up.weight": (("experts", "mlp", "embed"), (8, 96, 256), "expert"),
        "experts.gate.weight": (("experts", "mlp", "embed"), (8, 96, 256), "expert"),
        "experts.down.weight": (("experts", "embed", "mlp"), (8, 256, 96), "expert"),
    }
    assert all(tensor.layer == 0 for name, tensor in tensors.items() if name.startswith("layers."))


def test_experts_without_a_gate_have_none_and_never_a_bias() -> None:
    """GPT's form of an expert is up and down."""
    names = [t.name for t in network("gpt-3m", layers=1, experts=4, top_k=1).tensors()]
    assert [name for name in names if "expert" in name or "router" in name] == [
        "layers.0.router.weight",
        "layers.0.experts.up.weight",
        "layers.0.experts.down.weight",
    ]
    assert "layers.0.attention.wo.bias" in names


def test_queries_keys_and_values_alone_may_have_a_bias() -> None:
    """Qwen2: a bias on the output as well would be a parameter that no checkpoint holds."""
    names = [t.name for t in network("llama-3m", layers=1, bias="qkv").tensors() if t.name.endswith(".bias")]
    assert names == [f"layers.0.attention.{w}.bias" for w in ("wq", "wk", "wv")]


def test_heads_may_be_wider_than_their_share_and_normalised() -> None:
    """Qwen3: heads of 128 where embed / heads is 64, a norm over each head's queries and keys."""
    shapes = {
        t.name.removeprefix("layers.0.attention."): (t.dims, t.shape)
        for t in network("llama-3m", layers=1, head_size=64, qk_norm=True).tensors()
        if ".attention." in t.name
    }
    assert shapes == {
        "wq.weight": (("heads", "embed"), (512, 256)),
        "wk.weight": (("kv_heads", "embed"), (128, 256)),
        "wv.weight": (("kv_heads", "embed"), (128, 256)),
        "wo.weight": (("embed", "heads"), (256, 512)),
        "q_norm.weight": (("head",), (64,)),
        "k_norm.weight": (("head",), (64,)),
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


def test_the_head_size_follows_width_and_heads_where_it_is_their_quotient() -> None:
    """Else a narrower network would keep the heads of the wide one."""
    assert network("llama-3m", embed=128).head_size == 16
    assert network("llama-3m", heads=4).head_size == 64
    assert network("qwen3-30b-a3b", embed=1024).head_size == 128
    assert network("llama-3m", heads=4, head_size=32).head_size == 32


def test_a_bias_may_be_said_as_true_or_false() -> None:
    """The job file says `bias: false`."""
    assert network("gpt-3m", bias=True) == network("gpt-3m")
    assert network("gpt-3m", bias=False).bias is Bias.NONE
    assert network("gpt-3m", bias=False).name == "gpt-3m(bias=none)"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"heads": 3, "kv_heads": 3}, "heads is 3; it must divide embed, 256, or head_size be given"),
        ({"kv_heads": 3}, "kv_heads is 3; it must divide heads, 8"),
        ({"embed": 8 * 31}, "head_size is 31; .* it must be even"),
        ({"head_size": 33}, "head_size is 33; .* it must be even"),
        ({"head_size": -2}, "head_size is -2; it must be at least 0"),
        ({"experts": 8}, "experts is 8 and top_k is 0; say how many"),
        ({"top_k": 2}, "top_k is 2; a token cannot be sent to more experts than the 0 there are"),
        ({"experts": 2, "top_k": 3}, "top_k is 3; .* more experts than the 2 there are"),
        ({"full_layers": 1}, "full_layers is 1 and window is 0"),
        ({"window": 8, "full_layers": 4}, "full_layers is 4 of 4; no layer is left"),
        ({"layers": 0}, "layers is 0; it must be at least 1"),
        ({"heads": 0}, "heads is 0; it must be at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be from 0 to below 1"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0; it must be above 0"),
        ({"layers": 2.5}, "'layers' is 2.5; it takes a whole number"),
        ({"layers": True}, "'layers' is True; it takes a whole number"),
        ({"dropout": "low"}, "'dropout' is 'low'; it takes a number"),
        ({"tied": 1}, "'tied' is 1; it takes true or false"),
        ({"qk_norm": 1}, "'qk_norm' is 1; it takes true or false"),
        ({"experts": 8.0}, "'experts' is 8.0; it takes a whole number"),
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
        ("gpt-3m", {"bias": "qvk"}, "unknown bias 'qvk'(.|\n)*Did you mean 'qkv'"),
        ("moe-3m", {"topk": 2}, "unknown network field 'topk'(.|\n)*Did you mean 'top_k'"),
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
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_parameters_are_exactly_the_published_ones(name: str, published: int) -> None:
    """Memory, traffic and checkpoint size all follow from this number."""
    assert network(name).num_parameters() == published


@pytest.mark.parametrize(
    ("name", "published_billions"),
    [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.1), ("qwen3-30b-a3b", 3.3)],
)
def test_active_parameters_are_the_published_ones(name: str, published_billions: float) -> None:
    """Announcements of the three: 12.9B, 39B and 3.3B; what a token costs follows from them, not the total."""
    assert network(name).num_active_parameters() / 1e9 == pytest.approx(published_billions, abs=0.06)


def test_a_dense_network_is_active_as_a_whole() -> None:
    """Dividing by no experts must not lose a parameter."""
    assert network("llama-3m").num_active_parameters() == network("llama-3m").num_parameters()


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


def test_flops_of_experts_follow_those_a_token_is_sent_to() -> None:
    """Counting all experts gave five times the work: 192.9 instead of 37.6 GFLOP per token."""
    mixtral = network("mixtral-8x7b")
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    matrices = attention + 8 * 4096 + 2 * 3 * 4096 * 14336
    forward = 32 * (2 * matrices + 2 * 2 * 4096 * 4096) + 2 * 4096 * 32000
    assert mixtral.flops_per_token(4096, causal=False) == 3 * forward
    assert network("mixtral-8x7b", top_k=8).flops_per_token(4096, causal=False) == 3 * (
        forward + 32 * 2 * 6 * 3 * 4096 * 14336
    )


@pytest.mark.parametrize(("experts", "top_k"), [(8, 1), (8, 2), (8, 8)])
def test_one_layer_of_experts_by_hand(experts: int, top_k: int) -> None:
    """The router scores every expert whatever the number chosen."""
    net = network("moe-3m", layers=1, experts=experts, top_k=top_k)
    dense = 256 * 256 * 2 + 256 * 64 * 2
    assert net.layer_forward_flops(0, 1, causal=True) == 2 * (
        dense + experts * 256 + top_k * 3 * 96 * 256
    ) + 2 * 256 * (1 + 1)


@pytest.mark.parametrize(("window", "sequence"), [(8, 32), (1, 5), (5, 5), (40, 32)])
def test_a_window_counts_the_scores_that_are_seen(window: int, sequence: int) -> None:
    """A full triangle under a window of 8 in 32 would count more than twice the scores computed."""
    net = network("llama-3m", layers=2, window=window, full_layers=1)
    seen = [sum(min(query + 1, limit) for query in range(sequence)) for limit in (sequence, window)]
    for layer, scores in enumerate(seen):
        both_products = 2 * 2 * 256 * scores
        matrices = net.layer_forward_flops(layer, sequence, causal=True) - both_products // sequence
        assert matrices == 2 * (2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 768)


def test_the_full_convention_counts_the_window_for_every_token() -> None:
    """Between the two conventions the matrices must not move."""
    net = network("llama-3m", layers=1, window=8)
    full, causal = (net.layer_forward_flops(0, 32, is_causal) for is_causal in (False, True))
    assert full - causal == 2 * 2 * 256 * (32 * 8 - (36 + 24 * 8)) // 32


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


@pytest.mark.parametrize(
    ("factor", "low", "high", "context"), [(0.5, 1, 4, 8192), (8, 4, 4, 8192), (8, 0, 4, 8192), (8, 1, 4, 0)]
)
def test_factors_that_cannot_scale_are_refused(factor: float, low: float, high: float, context: int) -> None:
    """Equal factors divide by zero: every angle of the network would be nan."""
    with pytest.raises(NetworkError, match="low_factor above 0 and below high_factor"):
        RopeScaling(factor=factor, low_factor=low, high_factor=high, original_context=context)


def test_learned_positions_have_no_frequencies_to_scale() -> None:
    """A setting that does nothing would be believed."""
    scaling = RopeScaling(factor=8, low_factor=1, high_factor=4, original_context=8192)
    with pytest.raises(NetworkError, match="rope_scaling slows rotary frequencies; positions are learned"):
        replace(network("gpt-3m"), rope_scaling=scaling)


@st.composite
def any_network(draw: st.DrawFn) -> Network:
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 4))
    layers = draw(st.integers(1, 5))
    experts = draw(st.sampled_from((0, 0, 1, 2, 5, 8)))
    window = draw(st.sampled_from((0, 1, 7, 64)))
    return Network(
        name="any",
        layers=layers,
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
        bias=draw(st.sampled_from(Bias)),
        dropout=0.0,
        head_size=draw(st.sampled_from((0, 2, 6))),
        qk_norm=draw(st.booleans()),
        experts=experts,
        top_k=draw(st.integers(1, experts)) if experts else 0,
        window=window,
        full_layers=draw(st.integers(0, layers - 1)) if window else 0,
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
    per_norm = 2 if n.norm is Norm.LAYERNORM else 1
    num_ups = 2 if n.activation is Activation.SWIGLU else 1
    size, kv_size = n.heads * n.head_size, n.kv_heads * n.head_size
    attention = n.embed * (2 * size + 2 * kv_size)
    attention += {"none": 0, "qkv": size + 2 * kv_size, "all": size + 2 * kv_size + n.embed}[n.bias]
    norms = per_norm * (2 * n.embed + (2 * n.head_size if n.qk_norm else 0))
    mlp = (num_ups + 1) * n.embed * n.mlp
    if n.experts:
        mlp = n.experts * (mlp + n.embed)
    elif n.bias is Bias.ALL:
        mlp += num_ups * n.mlp + n.embed
    learned = n.context * n.embed if n.positions is Positions.LEARNED else 0
    heads = (1 if n.tied else 2) * n.vocab * n.embed
    expected = n.layers * (attention + norms + mlp) + learned + heads + per_norm * n.embed
    assert n.num_parameters() == expected == sum(tensor.numel for tensor in n.tensors())


@given(any_network(), st.integers(1, 512))
def test_flops_are_the_sum_over_layers_and_head_and_grow(any_network: Network, sequence: int) -> None:
    """A pipeline's stages are balanced by the parts; the parts must make up the whole."""
    layers = [any_network.layer_forward_flops(i, sequence, causal=True) for i in range(any_network.layers)]
    whole = any_network.flops_per_token(sequence, causal=True)
    assert whole == 3 * (sum(layers) + any_network.head_forward_flops())
    assert whole <= any_network.flops_per_token(sequence, causal=False)
    assert whole < replace(any_network, layers=any_network.layers + 1).flops_per_token(sequence, causal=True)
    longer = any_network.flops_per_token(sequence + 1, causal=True)
    assert whole < longer or (any_network.window and whole == longer)


@pytest.mark.parametrize("row", toml_table("networks.toml").items(), ids=lambda row: row[0])
def test_every_preset_states_its_source(row: tuple[str, dict[str, object]]) -> None:
    """A number without a source cannot be checked by anybody."""
    assert row[1]["source"]
