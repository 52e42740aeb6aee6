import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.catalog import Bias, ConfigError, Network, NetworkError, RopeScaling, changed_network, network
from trimtab.catalog.hugging_face import family_names, network_from_config, read_config

CONFIGURATIONS = Path(__file__).parent / "configurations"

PUBLISHED = {
    # File: (where its figures stand, parameters; tied ones once, attention masks of GPT-2 not counted).
    "gpt2": ("huggingface.co/openai-community/gpt2", 124_439_808),
    "gpt2-xl": ("huggingface.co/openai-community/gpt2-xl", 1_557_611_200),
    "llama-2-7b": ("huggingface.co/meta-llama/Llama-2-7b-hf", 6_738_415_616),
    "llama-3.1-8b": ("huggingface.co/meta-llama/Llama-3.1-8B", 8_030_261_248),
    "llama-3.2-1b": ("huggingface.co/meta-llama/Llama-3.2-1B", 1_235_814_400),
    "smollm2-135m": ("huggingface.co/HuggingFaceTB/SmolLM2-135M", 134_515_008),
    "mistral-7b-v0.1": ("huggingface.co/mistralai/Mistral-7B-v0.1", 7_241_732_096),
    "mistral-nemo-12b": ("huggingface.co/mistralai/Mistral-Nemo-Base-2407", 12_247_782_400),
    "mixtral-8x7b": ("huggingface.co/mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
    "mixtral-8x22b": ("huggingface.co/mistralai/Mixtral-8x22B-v0.1", 140_620_634_112),
    "qwen2.5-0.5b": ("huggingface.co/Qwen/Qwen2.5-0.5B", 494_032_768),
    "qwen2.5-7b": ("huggingface.co/Qwen/Qwen2.5-7B", 7_615_616_512),
    "qwen3-0.6b": ("huggingface.co/Qwen/Qwen3-0.6B", 596_049_920),
    "qwen3-8b": ("huggingface.co/Qwen/Qwen3-8B", 8_190_735_360),
    "qwen3-30b-a3b": ("huggingface.co/Qwen/Qwen3-30B-A3B", 30_532_122_624),
    "qwen3-235b-a22b": ("huggingface.co/Qwen/Qwen3-235B-A22B", 235_093_634_560),
}


def config(name: str, **changes: Any) -> dict[str, Any]:
    """A published configuration with some keys changed; `...` takes one out."""
    values = json.loads((CONFIGURATIONS / f"{name}.json").read_text()) | changes
    return {key: value for key, value in values.items() if value is not ...}


def refused(name: str, **changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        network_from_config(config(name, **changes), name="mine")
    assert all(problem.key.partition(".")[0] in problem.message for problem in caught.value.problems)
    return str(caught.value).splitlines()


def warnings(name: str, **changes: Any) -> dict[str, str]:
    read = read_config(config(name, **changes), name="mine")
    return {warning.key: warning.message for warning in read.warnings}


def test_every_configuration_has_a_published_figure() -> None:
    """A file that nobody checks is no evidence."""
    assert {path.stem for path in CONFIGURATIONS.glob("*.json")} == set(PUBLISHED)
    assert {config(name)["model_type"] for name in PUBLISHED} == set(family_names())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_exactly_the_published_ones(name: str) -> None:
    """One tensor too many, or one of another shape, and a plan is for another model."""
    source, parameters = PUBLISHED[name]
    assert network_from_config(config(name), name=name).num_parameters() == parameters, source


@pytest.mark.parametrize(
    ("name", "preset", "changes"),
    [
        ("gpt2", "gpt2-124m", {"dropout": 0.1}),
        ("llama-2-7b", "llama2-7b", {}),
        ("mixtral-8x7b", "mixtral-8x7b", {}),
        ("mixtral-8x22b", "mixtral-8x22b", {}),
        ("qwen3-30b-a3b", "qwen3-30b-a3b", {}),
    ],
)
def test_a_configuration_gives_the_preset_of_its_name(
    name: str, preset: str, changes: dict[str, Any]
) -> None:
    """Two ways to name one network must not give two networks."""
    expected = changed_network(network(preset), changes)
    assert network_from_config(config(name), name=expected.name) == expected


def test_what_a_family_says_stands_in_the_network() -> None:
    """The parts that parameters do not show."""
    read: dict[str, Network] = {name: network_from_config(config(name), name=name) for name in PUBLISHED}
    assert read["llama-3.1-8b"].rope_scaling == RopeScaling(
        factor=8.0, low_factor=1.0, high_factor=4.0, original_context=8192
    )
    assert read["llama-3.1-8b"].rope_base == 500000.0
    assert read["llama-3.2-1b"].tied
    assert read["llama-2-7b"].rope_base == 10000.0
    assert read["mistral-7b-v0.1"].window == 4096
    assert read["mistral-nemo-12b"].window == 0
    assert (read["mistral-nemo-12b"].head_size, read["mistral-nemo-12b"].embed) == (128, 32 * 160)
    assert read["qwen2.5-7b"].bias is Bias.QKV
    assert read["qwen3-8b"].qk_norm
    assert (read["qwen3-30b-a3b"].experts, read["qwen3-30b-a3b"].top_k) == (128, 8)
    assert read["gpt2-xl"].mlp == 6400


def test_published_configurations_warn_of_little() -> None:
    """A warning at every start is a warning that nobody reads."""
    assert {name: set(warnings(name)) for name in PUBLISHED if warnings(name)} == {
        "gpt2": {"attn_pdrop"},
        "gpt2-xl": {"attn_pdrop"},
        "smollm2-135m": {"initializer_range", "is_llama_config"},
        "mixtral-8x7b": {"router_aux_loss_coef"},
        "mixtral-8x22b": {"router_aux_loss_coef"},
        "qwen3-30b-a3b": {"router_aux_loss_coef"},
        "qwen3-235b-a22b": {"router_aux_loss_coef"},
    }


def test_warnings_say_what_will_be_otherwise() -> None:
    """The user decides whether it matters."""
    found = warnings("llama-2-7b", hidden_sizes=3, attention_dropout=0.1, quantization_config={"bits": 4})
    assert found == {
        "attention_dropout": "attention_dropout is 0.1: probabilities of attention are not dropped",
        "quantization_config": "quantization_config is {'bits': 4}: weights are trained unquantized, in fp32",
        "hidden_sizes": "hidden_sizes is no key that we know, and changes nothing  Did you mean 'hidden_size'?",
    }
    scaling = config("llama-3.1-8b")["rope_scaling"] | {"fast": 1}
    assert set(warnings("llama-3.1-8b", rope_scaling=scaling)) == {"rope_scaling.fast"}


def test_a_configuration_in_the_newer_form_is_the_same_network() -> None:
    """Newer releases write rotary settings under one key and the type of the weights under another."""
    old = config("llama-3.1-8b")
    new = config(
        "llama-3.1-8b",
        rope_theta=...,
        rope_scaling=...,
        rope_parameters={"rope_theta": 500000.0, **old["rope_scaling"]},
        torch_dtype=...,
        dtype="bfloat16",
    )
    assert read_config(new, name="x") == read_config(old, name="x")
    qwen = config("qwen3-8b", layer_types=["full_attention"] * 36)
    assert read_config(qwen, name="x") == read_config(config("qwen3-8b"), name="x")


def test_an_architecture_stands_for_a_missing_model_type() -> None:
    """Some tools write one of the two only."""
    bare = network_from_config(config("qwen3-8b", model_type=...), name="x")
    assert bare == network_from_config(config("qwen3-8b", architectures=...), name="x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2_moe"}, "model_type is 'qwen2_moe'; .* Did you mean 'qwen3_moe'?"),
        ({"model_type": "gemma3"}, "are read: gpt2, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe"),
        ({"model_type": ["llama"]}, "model_type is ['llama']; configurations of these families"),
        (
            {"model_type": ..., "architectures": ["FalconForCausalLM"]},
            "there is no model_type, and architectures is ['FalconForCausalLM']",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures is ['LlamaForSequenceClassification'] and model_type is 'llama'; .* LlamaForCausalLM",
        ),
        ({"architectures": ["MistralForCausalLM"]}, "architectures is ['MistralForCausalLM'] and model_type"),
    ],
)
def test_families_that_we_do_not_know_are_refused(changes: dict[str, Any], message: str) -> None:
    """A network that is nearly the one described would train without a word."""
    (line,) = refused("llama-3.1-8b", **changes)
    parts = message.split(" .* ")
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama-3.1-8b", {"hidden_size": ...}, "hidden_size is missing; it takes a whole number above 0"),
        ("llama-3.1-8b", {"hidden_size": None}, "hidden_size is missing; it takes a whole number above 0"),
        ("llama-3.1-8b", {"hidden_size": "4096"}, "hidden_size is '4096'; it takes a whole number above 0"),
        ("llama-3.1-8b", {"num_hidden_layers": True}, "num_hidden_layers is true; it takes a whole number"),
        ("llama-3.1-8b", {"num_hidden_layers": 0}, "num_hidden_layers is 0; it takes a whole number above 0"),
        ("llama-3.1-8b", {"rms_norm_eps": ...}, "rms_norm_eps is missing; it takes a number"),
        ("llama-3.1-8b", {"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it takes true or false"),
        ("llama-3.1-8b", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; the MLP is up times SiLU of gate"),
        ("llama-3.1-8b", {"attention_bias": True}, "attention_bias is true and mlp_bias is false"),
        ("llama-3.1-8b", {"partial_rotary_factor": 0.5}, "whole heads are rotated, so it must be 1"),
        ("llama-3.1-8b", {"rope_scaling": "llama3"}, "rope_scaling is 'llama3'; it takes a mapping"),
        (
            "llama-3.1-8b",
            {"rope_scaling": {"rope_type": "yarn", "factor": 4}},
            "rope_scaling.rope_type is 'yarn'; frequencies are scaled as in Llama 3.1 ('llama3') or not at all",
        ),
        (
            "llama-3.1-8b",
            {"rope_scaling": {"type": "linear", "factor": 4}},
            "rope_scaling.type is 'linear'; frequencies",
        ),
        (
            "llama-3.1-8b",
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                              "high_freq_factor": 4.0}},
            "rope_scaling.original_max_position_embeddings is missing",
        ),
        (
            "llama-3.1-8b",
            {"rope_parameters": {"rope_type": "default"}},
            "rope_scaling and rope_parameters are both given",
        ),
        (
            "llama-2-7b",
            {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 500000.0}},
            "rope_theta is 10000 and rope_parameters.rope_theta is 500000; keep one",
        ),
        ("mistral-7b-v0.1", {"sliding_window": ...}, "sliding_window is missing; it takes a whole number, or null"),
        ("mistral-7b-v0.1", {"sliding_window": 0}, "sliding_window is 0; it takes a whole number above 0"),
        (
            "mistral-7b-v0.1",
            {"layer_types": ["full_attention"] * 32},
            "by the other keys the first 0 of 32 layers see everything",
        ),
        ("mixtral-8x7b", {"num_local_experts": ...}, "num_local_experts is missing"),
        ("qwen3-8b", {"head_dim": ...}, "head_dim is missing; it takes a whole number above 0"),
        ("qwen3-8b", {"attention_bias": True}, "attention_bias is true; a bias on all four matrices"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [3]}, "mlp_only_layers is [3]; every layer has experts"),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; every layer has experts"),
        ("qwen3-30b-a3b", {"norm_topk_prob": False}, "norm_topk_prob is false; the weights of the chosen"),
        ("qwen3-30b-a3b", {"norm_topk_prob": ...}, "norm_topk_prob is missing; it must be true"),
        ("qwen3-30b-a3b", {"use_sliding_window": True}, "use_sliding_window is true; which of its layers"),
        ("gpt2", {"n_ctx": 512}, "n_ctx is 512; n_positions is 1024, so it must be 1024"),
        ("gpt2", {"activation_function": "gelu"}, "activation_function is 'gelu'; GELU is computed in its tanh"),
        ("gpt2", {"embd_pdrop": 0.0}, "embd_pdrop is 0.0; resid_pdrop is 0.1 and a network has one dropout"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is true; there is nothing else"),
    ],
)  # fmt: skip
def test_what_is_missing_wrong_or_contradictory_is_named(
    name: str, changes: dict[str, Any], message: str
) -> None:
    """The sentence must tell the key, what it says and what it may say."""
    lines = refused(name, **changes)
    assert len([line for line in lines if message in line]) == 1, lines


def test_everything_wrong_is_told_at_once() -> None:
    """One error a try costs one try an error."""
    lines = refused("qwen3-30b-a3b", hidden_size=..., num_experts="many", rms_norm_eps=[], head_dim=...)
    assert {line.split(" ")[0] for line in lines} == {
        "rms_norm_eps",
        "hidden_size",
        "head_dim",
        "num_experts",
    }


def test_sizes_that_do_not_fit_are_refused_as_in_any_network() -> None:
    """The configuration may be well formed and still describe nothing."""
    with pytest.raises(NetworkError, match="kv_heads is 5; it must divide heads, 32"):
        network_from_config(config("llama-3.1-8b", num_key_value_heads=5), name="mine")


@pytest.mark.parametrize(
    ("changes", "window", "full_layers"),
    [
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}, 4096, 20),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28}, 0, 0),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 4096,
                "max_window_layers": 27,
                "layer_types": ["full_attention"] * 27 + ["sliding_attention"],
            },
            4096,
            27,
        ),
        ({"sliding_window": 4096}, 0, 0),
    ],
)
def test_qwens_window_begins_above_the_first_layers(
    changes: dict[str, Any], window: int, full_layers: int
) -> None:
    """`max_window_layers` are those without a window, whatever the name suggests."""
    read = network_from_config(config("qwen2.5-7b", **changes), name="mine")
    assert (read.window, read.full_layers) == (window, full_layers)


def test_experts_are_counted_under_either_name() -> None:
    """Newer releases write `num_local_experts` for every family; two numbers are none."""
    newer = config("qwen3-30b-a3b", num_experts=..., num_local_experts=128)
    assert network_from_config(newer, name="x") == network_from_config(config("qwen3-30b-a3b"), name="x")
    assert refused("qwen3-30b-a3b", num_local_experts=64) == [
        "num_experts is 128 and num_local_experts is 64; keep one of the two"
    ]


def test_the_family_is_told_by_either_key() -> None:
    """What finds the tensors of a folder asks for it."""
    assert read_config(config("gpt2"), name="x").family == "gpt2"
    assert read_config(config("qwen3-0.6b", model_type=...), name="x").family == "qwen3"
