"""What does a Hugging Face ``config.json`` describe? Its network, or why we cannot compute it.

Every key of a configuration is used, known to say nothing about the network, or warned about: a key that is
passed over in silence is how two systems come to train different networks under one name.

What the keys mean, and what holds where one is missing: the configuration classes of the transformers
library, ``src/transformers/models/<family>/configuration_<family>.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.catalog.errors import ConfigError, ConfigProblem
from trimtab.catalog.networks import Activation, Bias, Network, Norm, Positions, RopeScaling
from trimtab.terms import nearest_name

Fields = dict[str, Any]
"""Fields of a Network by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadConfig:
    """A network, and what its configuration says that is not part of it, each under its key.

    Args:
        network: That it describes.
        family: Its ``model_type``, stated or told by ``architectures``.
        warnings: What it says that is not carried over.
    """

    network: Network
    family: str
    warnings: tuple[ConfigProblem, ...]


def network_from_config(config: Mapping[str, Any], *, name: str) -> Network:
    """The network that a parsed ``config.json`` describes; see ``read_config``."""
    return read_config(config, name=name).network


def read_config(config: Mapping[str, Any], *, name: str) -> ReadConfig:
    """The network that a parsed ``config.json`` describes, with warnings.

    Args:
        config: As JSON gives it.
        name: What reports call the network.

    Raises: ConfigError with everything in it that is missing, of a wrong type, contradictory, or describes
        what cannot be computed; NetworkError if the sizes do not fit together.
    """
    keys = _Keys(config)
    name_of_family = _family(keys)
    family = _FAMILIES[name_of_family]
    fields = family.read(keys)
    _check_layer_types(keys, fields)
    keys.ignore(*_SAYS_NOTHING, *family.says_nothing)
    _warn_of_unknown_keys(keys)
    keys.raise_problems()
    described = Network(name=name, **fields)
    return ReadConfig(network=described, family=name_of_family, warnings=tuple(keys.warnings))


def family_names() -> tuple[str, ...]:
    """The families whose configurations are read, by their ``model_type``."""
    return tuple(_FAMILIES)


def architecture_of(family: str) -> str:
    """The class of a family that predicts the next token, as ``architectures`` names it."""
    return _FAMILIES[family].architecture


class _Keys:
    """A configuration that is being read: what was asked for, and what was wrong with it.

    Whatever is wrong is noted and a stand-in of the right type returned, so that one reading finds
    everything. A key whose value is null counts as missing, as in the transformers library.
    """

    def __init__(self, config: Mapping[str, Any], *, prefix: str = "") -> None:
        self.config = config
        self.prefix = prefix
        self.problems: list[ConfigProblem] = []
        self.warnings: list[ConfigProblem] = []
        self.seen: set[str] = set()
        self.sections: list[_Keys] = []

    def section(self, key: str) -> "_Keys":
        """The keys of a mapping under a key; none if it is missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            self.problem(key, f"{self.prefix}{key} is {_shown(value)}; it takes a mapping")
        inner = _Keys(value if isinstance(value, Mapping) else {}, prefix=f"{self.prefix}{key}.")
        inner.problems, inner.warnings = self.problems, self.warnings
        self.sections.append(inner)
        return inner

    def get(self, key: str) -> Any:
        """The value as it is; None if it is missing."""
        self.seen.add(key)
        return self.config.get(key)

    def whole(self, key: str, *, missing: int | None = None) -> int:
        """A whole number of at least 1; without ``missing`` the key must be there."""
        return int(
            self._read(key, missing, lambda value: _is_whole(value) and value > 0, "a whole number above 0")
        )

    def number(self, key: str, *, missing: float | None = None) -> float:
        """A number of at least 0; without ``missing`` the key must be there."""
        return float(self._read(key, missing, lambda value: _is_number(value) and value >= 0, "a number"))

    def flag(self, key: str, *, missing: bool) -> bool:
        """True or false."""
        return bool(self._read(key, missing, lambda value: isinstance(value, bool), "true or false"))

    def expect(self, key: str, *accepted: object, reason: str) -> None:
        """Refuse every value but the accepted ones; a missing key is accepted."""
        value = self.get(key)
        if value is not None and value not in accepted:
            choices = " or ".join(_shown(choice) for choice in accepted)
            self.problem(key, f"{self.prefix}{key} is {_shown(value)}; {reason}, so it must be {choices}")

    def warn_unless(self, key: str, *accepted: object, reason: str) -> None:
        """Warn of every value but the accepted ones; a missing key is accepted."""
        value = self.get(key)
        if value is not None and value not in accepted:
            self.warn(key, f"{self.prefix}{key} is {_shown(value)}: {reason}")

    def ignore(self, *keys: str) -> None:
        """Know keys that say nothing about the network."""
        self.seen.update(keys)

    def problem(self, key: str, message: str) -> None:
        """Note what is wrong with a key."""
        self.problems.append(ConfigProblem(key=self.prefix + key, message=message))

    def warn(self, key: str, message: str) -> None:
        """Note what a key says that will not be so."""
        self.warnings.append(ConfigProblem(key=self.prefix + key, message=message))

    def raise_problems(self) -> None:
        """Raise everything noted; the stand-ins must not become a network."""
        if self.problems:
            raise ConfigError(self.problems)

    def _read(self, key: str, missing: Any, is_right: Callable[[Any], bool], takes: str) -> Any:
        value = self.get(key)
        if value is None and missing is not None:
            return missing
        if value is None:
            self.problem(key, f"{self.prefix}{key} is missing; it takes {takes}")
        elif not is_right(value):
            self.problem(key, f"{self.prefix}{key} is {_shown(value)}; it takes {takes}")
        else:
            return value
        return missing if missing is not None else 1


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """A value as JSON writes it, cut where it is long."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Families.


@dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    """How the configurations of one ``model_type`` are read.

    Args:
        architecture: The class that predicts the next token.
        read: The network's fields, out of the keys.
        says_nothing: Keys of this family that say nothing about the network.
    """

    architecture: str
    read: Callable[[_Keys], Fields]
    says_nothing: tuple[str, ...] = ()


def _family(keys: _Keys) -> str:
    """The family of a configuration, by its ``model_type``.

    Raises: ConfigError if it names none that we know, or two.
    """
    model_type, architectures = keys.get("model_type"), keys.get("architectures")
    named = architectures if isinstance(architectures, list | tuple) else ()
    if model_type is None:
        model_type = next((name for name, family in _FAMILIES.items() if family.architecture in named), None)
    family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or not isinstance(model_type, str):
        problem = ConfigProblem(key="model_type", message=_unknown_family(model_type, architectures))
        raise ConfigError([problem])
    if named and family.architecture not in named:
        keys.problem(
            "architectures",
            f"architectures is {_shown(named)} and model_type is {_shown(model_type)}; the network of that "
            f"family that predicts the next token is {family.architecture}",
        )
    return model_type


def _unknown_family(model_type: object, architectures: object) -> str:
    found = f"model_type is {_shown(model_type)}"
    if model_type is None:
        found = f"there is no model_type, and architectures is {_shown(architectures)}"
    near = nearest_name(str(model_type), _FAMILIES)
    question = f"  Did you mean {near!r}?" if near else ""
    return f"{found}; configurations of these families are read: {', '.join(_FAMILIES)}.{question}"


def _gpt2(keys: _Keys) -> Fields:
    embed, positions = keys.whole("n_embd"), keys.whole("n_positions")
    for key, needed, reason in (
        ("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "GELU is computed in its tanh form"),
        ("scale_attn_weights", (True,), "scores are scaled by the root of the head size"),
        ("scale_attn_by_inverse_layer_idx", (False,), "scores are scaled alike in every layer"),
        ("add_cross_attention", (False,), "there is nothing else to attend to"),
        ("n_ctx", (positions,), f"n_positions is {positions}"),
    ):
        keys.expect(key, *needed, reason=reason)
    dropout = keys.number("resid_pdrop", missing=0.1)
    keys.expect("embd_pdrop", dropout, reason=f"resid_pdrop is {dropout:g} and a network has one dropout")
    keys.warn_unless("attn_pdrop", 0, reason="probabilities of attention are not dropped")
    return {
        **_common(keys),
        "layers": keys.whole("n_layer"),
        "embed": embed,
        "heads": (heads := keys.whole("n_head")),
        "kv_heads": heads,
        "mlp": keys.whole("n_inner", missing=4 * embed),
        "context": positions,
        "norm": Norm.LAYERNORM,
        "norm_eps": keys.number("layer_norm_epsilon", missing=1e-5),
        "positions": Positions.LEARNED,
        "activation": Activation.GELU,
        "tied": keys.flag("tie_word_embeddings", missing=True),
        "bias": Bias.ALL,
        "dropout": dropout,
    }


def _llama(keys: _Keys) -> Fields:
    attention, mlp = keys.flag("attention_bias", missing=False), keys.flag("mlp_bias", missing=False)
    if attention != mlp:
        keys.problem(
            "attention_bias",
            f"attention_bias is {_shown(attention)} and mlp_bias is {_shown(mlp)}; both have a bias or neither",
        )
    return {**_llama_like(keys), "bias": Bias.ALL if attention else Bias.NONE}


def _mistral(keys: _Keys) -> Fields:
    if "sliding_window" not in keys.config:
        keys.problem("sliding_window", "sliding_window is missing; it takes a whole number, or null for none")
    return {**_llama_like(keys), "window": keys.whole("sliding_window", missing=0)}


def _mixtral(keys: _Keys) -> Fields:
    keys.warn_unless("router_jitter_noise", 0, reason="no noise is added to what the router sees")
    return {
        **_llama_like(keys, rope_base=1e6),
        "window": keys.whole("sliding_window", missing=0),
        "experts": keys.whole("num_local_experts"),
        "top_k": keys.whole("num_experts_per_tok"),
    }


def _qwen2(keys: _Keys) -> Fields:
    keys.expect("use_mrope", False, reason="positions have one axis")
    fields = {**_llama_like(keys), "bias": Bias.QKV}
    return fields | _qwen_window(keys, fields["layers"])


def _qwen3(keys: _Keys, *, mlp: str = "intermediate_size") -> Fields:
    keys.expect(
        "attention_bias", False, reason="a bias on all four matrices of attention alone is not computed"
    )
    fields = {**_llama_like(keys, mlp=mlp), "qk_norm": True}
    if keys.get("head_dim") is None:
        # The library takes 128 here, and not the quotient that every other family takes.
        keys.problem("head_dim", "head_dim is missing; it takes a whole number above 0")
    return fields | _qwen_window(keys, fields["layers"])


def _qwen3_moe(keys: _Keys) -> Fields:
    for key, needed, reason in (
        ("use_sliding_window", (False,), "which of its layers have a window differs between releases"),
        ("decoder_sparse_step", (1,), "every layer has experts"),
        ("mlp_only_layers", ([], ()), "every layer has experts"),
        ("norm_topk_prob", (True,), "the weights of the chosen experts add up to one"),
    ):
        keys.expect(key, *needed, reason=reason)
    if keys.get("norm_topk_prob") is None:
        keys.problem("norm_topk_prob", "norm_topk_prob is missing; it must be true")
    return {
        **_qwen3(keys, mlp="moe_intermediate_size"),
        "experts": keys.whole(_one_of(keys, "num_experts", "num_local_experts")),
        "top_k": keys.whole("num_experts_per_tok"),
    }


def _one_of(keys: _Keys, older: str, newer: str) -> str:
    """The one that is given of two names of a key, of which releases of the library write one or the other."""
    old, new = keys.get(older), keys.get(newer)
    if old is not None and new is not None and old != new:
        keys.problem(newer, f"{older} is {_shown(old)} and {newer} is {_shown(new)}; keep one of the two")
    return newer if old is None and new is not None else older


def _common(keys: _Keys) -> Fields:
    """What every family says alike."""
    keys.warn_unless("initializer_range", 0.02, reason="initial weights have a deviation of 0.02")
    keys.warn_unless("quantization_config", reason="weights are trained unquantized, in fp32")
    keys.expect("is_encoder_decoder", False, reason="a network is a decoder")
    keys.expect("pruned_heads", {}, reason="every layer has the same heads")
    return {"vocab": keys.whole("vocab_size")}


def _llama_like(keys: _Keys, *, rope_base: float = 10000.0, mlp: str = "intermediate_size") -> Fields:
    """What the families that descend from Llama say alike: grouped queries, rotary positions, SwiGLU.

    Args:
        keys: The configuration.
        rope_base: What the family takes where it is missing.
        mlp: The key of the MLP's width.
    """
    heads = keys.whole("num_attention_heads")
    keys.expect("hidden_act", "silu", "swish", reason="the MLP is up times SiLU of gate")
    keys.expect("partial_rotary_factor", 1, reason="whole heads are rotated")
    keys.expect("rope_interleaved", False, reason="pairs are half a head apart")
    keys.warn_unless("attention_dropout", 0, reason="probabilities of attention are not dropped")
    keys.warn_unless("router_aux_loss_coef", 0, reason="no balance loss is added to the loss")
    return {
        **_common(keys),
        **_rotary(keys, rope_base),
        "layers": keys.whole("num_hidden_layers"),
        "embed": keys.whole("hidden_size"),
        "heads": heads,
        "kv_heads": keys.whole("num_key_value_heads", missing=heads),
        "head_size": keys.whole("head_dim", missing=0),
        "mlp": keys.whole(mlp),
        "context": keys.whole("max_position_embeddings"),
        "norm": Norm.RMSNORM,
        "norm_eps": keys.number("rms_norm_eps"),
        "positions": Positions.ROTARY,
        "activation": Activation.SWIGLU,
        "tied": keys.flag("tie_word_embeddings", missing=False),
        "bias": Bias.NONE,
        "dropout": 0.0,
    }


def _rotary(keys: _Keys, base: float) -> Fields:
    """The base of rotary frequencies, ``base`` where it is missing, and their scaling.

    Newer configurations hold both under ``rope_parameters``, older ones under ``rope_theta`` and
    ``rope_scaling``.
    """
    outer_base, is_new = keys.number("rope_theta", missing=base), keys.get("rope_parameters") is not None
    if is_new and keys.get("rope_scaling") is not None:
        keys.problem("rope_scaling", "rope_scaling and rope_parameters are both given; keep one of the two")
    parameters = keys.section("rope_parameters" if is_new else "rope_scaling")
    inner_base = parameters.number("rope_theta", missing=outer_base)
    if keys.get("rope_theta") is not None and inner_base != outer_base:
        keys.problem(
            "rope_theta",
            f"rope_theta is {outer_base:g} and {parameters.prefix}rope_theta is {inner_base:g}; keep one of the two",
        )
    parameters.expect("partial_rotary_factor", 1, reason="whole heads are rotated")
    return {"rope_base": inner_base, "rope_scaling": _rope_scaling(parameters)}


def _rope_scaling(parameters: _Keys) -> RopeScaling | None:
    """How frequencies are slowed down: as in Llama 3.1, or not at all."""
    key = "type" if parameters.get("rope_type") is None and "type" in parameters.config else "rope_type"
    kind = parameters.get(key)
    if kind in (None, "default") or not parameters.config:
        return None
    if kind != "llama3":
        parameters.problem(
            key,
            f"{parameters.prefix}{key} is {_shown(kind)}; frequencies are scaled as in Llama 3.1 ('llama3') or "
            "not at all ('default')",
        )
        parameters.ignore(*parameters.config)
        return None
    fields = {
        "factor": parameters.number("factor"),
        "low_factor": parameters.number("low_freq_factor"),
        "high_factor": parameters.number("high_freq_factor"),
    }
    original_context = parameters.whole("original_max_position_embeddings")
    return None if parameters.problems else RopeScaling(original_context=original_context, **fields)


def _qwen_window(keys: _Keys, layers: int) -> Fields:
    """The window of Qwen's layers, which those below ``max_window_layers`` do not have."""
    keys.ignore("sliding_window", "max_window_layers")
    if not keys.flag("use_sliding_window", missing=False):
        return {}
    window, full_layers = keys.whole("sliding_window"), keys.whole("max_window_layers")
    return {"window": window, "full_layers": full_layers} if full_layers < layers else {}


def _check_layer_types(keys: _Keys, fields: Fields) -> None:
    """Refuse a list of what each layer attends to that contradicts the window."""
    layers, window, full_layers = fields["layers"], fields.get("window", 0), fields.get("full_layers", 0)
    num_full = full_layers if window else layers
    needed = ["full_attention"] * num_full + ["sliding_attention"] * (layers - num_full)
    found = keys.get("layer_types")
    if found is not None and found not in (needed, tuple(needed)):
        keys.problem(
            "layer_types",
            f"layer_types is {_shown(found)}; by the other keys the first {num_full} of {layers} layers see "
            "everything and the others have a window",
        )


def _warn_of_unknown_keys(keys: _Keys) -> None:
    for key in keys.config:
        if key not in keys.seen:
            near = nearest_name(key, keys.seen)
            question = f"  Did you mean {near!r}?" if near else ""
            keys.warn(key, f"{keys.prefix}{key} is no key that we know, and changes nothing{question}")
    for section in keys.sections:
        _warn_of_unknown_keys(section)


_FAMILIES: Mapping[str, _Family] = {
    "gpt2": _Family(
        architecture="GPT2LMHeadModel",
        read=_gpt2,
        says_nothing=(
            "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "summary_activation",
            "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        ),
    ),
    "llama": _Family(architecture="LlamaForCausalLM", read=_llama, says_nothing=("pretraining_tp",)),
    "mistral": _Family(architecture="MistralForCausalLM", read=_mistral),
    "mixtral": _Family(
        architecture="MixtralForCausalLM", read=_mixtral, says_nothing=("output_router_logits",)
    ),
    "qwen2": _Family(architecture="Qwen2ForCausalLM", read=_qwen2),
    "qwen3": _Family(architecture="Qwen3ForCausalLM", read=_qwen3),
    "qwen3_moe": _Family(
        architecture="Qwen3MoeForCausalLM",
        read=_qwen3_moe,
        # The width of an MLP in place of experts, which no layer has.
        says_nothing=("output_router_logits", "intermediate_size"),
    ),
}  # fmt: skip
"""What reads the configurations of each ``model_type``."""

_SAYS_NOTHING = (
    # Where it comes from and how it was stored.
    "_name_or_path", "_commit_hash", "transformers_version", "torch_dtype", "dtype", "tokenizer_class",
    # Tokens with a meaning of their own.
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id",
    # How the library runs it.
    "use_cache", "output_attentions", "output_hidden_states", "return_dict", "torchscript", "use_bfloat16",
    "gradient_checkpointing", "chunk_size_feed_forward", "_attn_implementation", "attn_implementation",
    "_attn_implementation_autoset", "tf_legacy_loss", "is_decoder", "tie_encoder_decoder",
    "cross_attention_hidden_size",
    # How text is generated from it.
    "task_specific_params", "prefix", "max_length", "min_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "suppress_tokens",
    "begin_suppress_tokens", "output_past", "exponential_decay_length_penalty",
    # What a classifier on top of it would answer.
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task",
)  # fmt: skip
"""Keys of every family that say nothing about the network."""
