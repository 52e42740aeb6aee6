import doctest
from dataclasses import replace

import pytest

from trimtab.catalog import (
    FlopConvention,
    NetworkError,
    Norm,
    Positions,
    UnknownNameError,
    network,
    network_names,
    networks,
)


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
