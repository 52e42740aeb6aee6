"""How does a Hugging Face ``config.json`` describe a network?

A configuration is written and read back: the first family whose configuration describes the same network is the one.
So a network that no family computes is refused, and never given away as another.

Settings of rotary positions are written in the older form, ``rope_theta`` and ``rope_scaling``, which old and new
releases of the transformers library read alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from trimtab.catalog.errors import NetworkError
from trimtab.catalog.hugging_face.configurations import architecture_of, read_config
from trimtab.catalog.networks import Bias, Network

Config = dict[str, Any]
"""As JSON takes it."""


def write_config(network: Network, *, base: Mapping[str, Any] | None = None) -> Config:
    """A configuration that describes a network, with its ``model_type``.

    Dropout is a matter of training: where a family has no key for it, it is left out.

    Args:
        network: To describe.
        base: The configuration that the network began with. Where it describes the network still, it is given back;
            else its family is tried first, and its tokens with a meaning are taken over.

    Raises: NetworkError if no family computes the network, with what the nearest would compute otherwise.
    """
    families = list(_WRITERS)
    tokens = dict.fromkeys(_TOKENS)
    if base is not None:
        read = read_config(base, name=network.name)
        if not _differences(read.network, network):
            return {**base, "model_type": read.family, "architectures": [architecture_of(read.family)]}
        families.remove(read.family)
        families.insert(0, read.family)
        tokens = {key: base.get(key) for key in _TOKENS}
    attempts: list[tuple[str, list[str]]] = []
    for family in families:
        config = _written(network, family) | tokens
        different = _read_back_differences(config, network)
        if not different:
            return config
        attempts.append((family, different))
    family, different = min(attempts, key=lambda attempt: len(attempt[1]))
    raise NetworkError(
        f"no family of Hugging Face configurations describes {network.name}; the nearest is {family!r}, where\n"
        + "\n".join(f"  {line}" for line in different)
    )


_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Keys that name tokens; null where nobody says them, for the defaults of a family are those of one vocabulary."""


def _written(network: Network, family: str) -> Config:
    return {
        "architectures": [architecture_of(family)],
        "model_type": family,
        "vocab_size": network.vocab,
        "tie_word_embeddings": network.tied,
        "initializer_range": 0.02,
        **_WRITERS[family](network),
    }


def _read_back_differences(config: Config, network: Network) -> list[str]:
    try:
        read = read_config(config, name=network.name).network
    except NetworkError as error:
        return str(error).splitlines()
    return _differences(read, network)


def _differences(read: Network, network: Network) -> list[str]:
    """The fields in which two networks differ that matters after training."""
    pairs = [(replace(read, name="", dropout=0.0), replace(network, name="", dropout=0.0))]
    return [
        f"{field.name} is {getattr(there, field.name)}, and not {getattr(here, field.name)}"
        for there, here in pairs
        for field in fields(Network)
        if getattr(there, field.name) != getattr(here, field.name)
    ]


def _gpt2(network: Network) -> Config:
    return {
        "n_embd": network.embed,
        "n_layer": network.layers,
        "n_head": network.heads,
        "n_inner": network.mlp,
        "n_positions": network.context,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": network.norm_eps,
        "resid_pdrop": network.dropout,
        "embd_pdrop": network.dropout,
        "attn_pdrop": 0.0,
    }


def _llama_like(network: Network) -> Config:
    return {
        "hidden_size": network.embed,
        "num_hidden_layers": network.layers,
        "num_attention_heads": network.heads,
        "num_key_value_heads": network.kv_heads,
        "head_dim": network.head_size,
        "intermediate_size": network.mlp,
        "max_position_embeddings": network.context,
        "hidden_act": "silu",
        "rms_norm_eps": network.norm_eps,
        "rope_theta": network.rope_base,
        "rope_scaling": _rope_scaling(network),
        "attention_dropout": 0.0,
    }


def _rope_scaling(network: Network) -> Config | None:
    scaling = network.rope_scaling
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_factor,
        "high_freq_factor": scaling.high_factor,
        "original_max_position_embeddings": scaling.original_context,
    }


def _llama(network: Network) -> Config:
    has_bias = network.bias is Bias.ALL
    return {**_llama_like(network), "attention_bias": has_bias, "mlp_bias": has_bias}


def _mistral(network: Network) -> Config:
    return {**_llama_like(network), "sliding_window": network.window or None}


def _mixtral(network: Network) -> Config:
    return {
        **_mistral(network),
        "num_local_experts": network.experts,
        "num_experts_per_tok": network.top_k,
        "router_aux_loss_coef": 0.0,
    }


def _qwen2(network: Network) -> Config:
    return {
        **_llama_like(network),
        "use_sliding_window": network.window > 0,
        "sliding_window": network.window or None,
        "max_window_layers": network.full_layers if network.window else network.layers,
    }


def _qwen3(network: Network) -> Config:
    return {**_qwen2(network), "attention_bias": False}


def _qwen3_moe(network: Network) -> Config:
    return {
        **_qwen3(network),
        "moe_intermediate_size": network.mlp,
        "num_experts": network.experts,
        "num_experts_per_tok": network.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.0,
    }


_WRITERS: Mapping[str, Callable[[Network], Config]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
"""What writes the configurations of each ``model_type``, in the order in which families are tried."""
