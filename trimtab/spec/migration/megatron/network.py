"""The network: its shape as fields of a preset, and what it has that networks here have not."""

import re
from dataclasses import dataclass
from typing import Any

from trimtab.spec.migration.megatron.draft import Draft
from trimtab.spec.migration.megatron.training import OF_MEGATRON
from trimtab.spec.migration.presets import Choice, choose_preset
from trimtab.spec.migration.settings import MigrationError

_VOCABULARIES = {"GPT2BPETokenizer": 50257}
"""Tokens of tokenizers whose vocabulary is fixed. GPT-2's: openai/gpt-2 hparams.json of its models, from memory."""

_POSITIONS = {"learned_absolute": "learned", "rope": "rotary", "rotary": "rotary"}
_NORMS = {"layernorm": "layernorm", "rmsnorm": "rmsnorm"}

MAX_LAYERS = 100_000
"""More layers than any network has: a number beyond it is a typing error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What other readers must know of the network."""

    layers: int
    has_experts: bool


def read_network(draft: Draft, *, tensor: int) -> Shape:
    """Set the preset and what is changed in it.

    Args:
        draft: Gets the keys under model.
        tensor: The tensor degree, which Megatron pads the vocabulary to.

    Raises: MigrationError if the shape is not given.
    """
    wanted = _shape(draft) | _parts(draft) | _experts(draft) | _vocabulary(draft, tensor)
    choice = choose_preset(wanted, draft.networks)
    draft.set("model.preset", choice.preset)
    for field, value in choice.changes.items():
        draft.set(f"model.{field}", value)
    _widen_context(draft, choice.preset, wanted)
    for field, (flags, reason) in _SOURCES.items():
        for flag in flags:
            _tell(draft, flag, field, choice, wanted, reason)
    return Shape(layers=wanted["layers"], has_experts=bool(wanted["experts"]))


def _widen_context(draft: Draft, preset: str, wanted: dict[str, Any]) -> None:
    """A preset whose context nobody changes must hold a sample."""
    sequence = _sequence(draft)
    if "context" not in wanted and sequence > draft.networks.get(preset, {}).get("context", 0):
        draft.set("model.context", sequence)
        draft.notes["model.context"] = "as long as a sample"


def read_sequence(draft: Draft) -> int:
    """The tokens of a sample, set under data."""
    sequence = _sequence(draft)
    if all(name not in draft.flags for name in ("--seq-length", "--encoder-seq-length")):
        draft.warnings.append(f"nothing says how long a sample is; data.sequence is {sequence}")
    draft.set("data.sequence", sequence)
    for flag in ("--seq-length", "--encoder-seq-length"):
        draft.carry(flag, "data.sequence")
    return sequence


def _sequence(draft: Draft) -> int:
    names = ("--seq-length", "--encoder-seq-length", "--max-position-embeddings")
    return next((length for name in names if (length := draft.flags.positive(name))), 2048)


_SOURCES: dict[str, tuple[tuple[str, ...], str]] = {
    "layers": (("--num-layers", "--encoder-num-layers"), ""),
    "embed": (("--hidden-size",), ""),
    "heads": (("--num-attention-heads",), ""),
    "kv_heads": (("--num-query-groups", "--num-key-value-heads", "--group-query-attention"), ""),
    "head_size": (("--kv-channels",), ""),
    "mlp": (("--ffn-hidden-size", "--moe-ffn-hidden-size"), ""),
    "context": (("--max-position-embeddings",), ""),
    "vocab": (
        ("--vocab-size", "--padded-vocab-size", "--make-vocab-size-divisible-by", "--pad-vocab-size-to"),
        "the rows of the embedding, padded as Megatron-LM pads them",
    ),
    "norm": (("--normalization",), ""),
    "norm_eps": (("--norm-epsilon", "--layernorm-epsilon"), ""),
    "positions": (
        ("--position-embedding-type", "--use-rotary-position-embeddings", "--no-position-embedding"),
        "",
    ),
    "rope_base": (("--rotary-base", "--rotary-position-embeddings-theta"), ""),
    "activation": (("--swiglu", "--glu-activation"), ""),
    "tied": (("--untie-embeddings-and-output-weights",), ""),
    "bias": (("--disable-bias-linear", "--add-qkv-bias"), ""),
    "dropout": (("--hidden-dropout", "--attention-dropout"), ""),
    "qk_norm": (("--qk-layernorm",), ""),
    "window": (("--window-size",), "the token's own place counts"),
    "experts": (("--num-experts",), ""),
    "top_k": (("--moe-router-topk", "--topk"), ""),
}
"""The flags that each field of a network is read from, and how it was changed on the way."""


_UNUSED = {
    "vocab": "the size of the vocabulary is not given; the preset's holds",
    "rope_base": "positions are not rotary",
    "context": "the preset's holds",
    "top_k": "there are no experts",
    "head_size": "the width over the heads",
}
"""Why a field may be left to the preset although a flag of it was given."""


def _tell(draft: Draft, flag: str, field: str, choice: Choice, wanted: dict[str, Any], reason: str) -> None:
    if flag not in draft.flags or draft.is_settled(flag):
        return
    target = f"model.{field}" if field in choice.changes else "model.preset"
    if field in choice.lost:
        draft.refuse(
            flag, f"model.preset {choice.preset} has {field} {choice.lost[field]}, and no key changes it"
        )
    elif field not in wanted:
        draft.drop(flag, _UNUSED[field])
    elif reason:
        draft.change(flag, target, reason=reason)
    else:
        draft.carry(flag, target)


def _shape(draft: Draft) -> dict[str, Any]:
    flags = draft.flags
    layers = flags.positive("--num-layers") or flags.positive("--encoder-num-layers")
    embed, heads = flags.positive("--hidden-size"), flags.positive("--num-attention-heads")
    if layers is None or embed is None or heads is None:
        names = {"--num-layers": layers, "--hidden-size": embed, "--num-attention-heads": heads}
        missing = ", ".join(name for name, value in names.items() if value is None)
        raise MigrationError(
            f"the shape of the network is not given, or a variable holds it: {missing}. Give what is missing behind "
            "the file: trimtab import megatron FILE -- --num-layers 32 --hidden-size 4096 …"
        )
    if layers > MAX_LAYERS:
        raise MigrationError(f"--num-layers is {layers}; no network has more than {MAX_LAYERS}")
    groups = flags.positive("--num-query-groups") or flags.positive("--num-key-value-heads")
    shape: dict[str, Any] = {"layers": layers, "embed": embed, "heads": heads, "kv_heads": groups or heads}
    if head_size := flags.positive("--kv-channels"):
        shape["head_size"] = head_size
    elif embed % heads == 0:
        shape["head_size"] = embed // heads
    context = flags.positive("--max-position-embeddings")
    if context:
        shape["context"] = context
    return shape | {"mlp": _mlp(draft, embed)}


def _mlp(draft: Draft, embed: int) -> int:
    """The inner width as given, else Megatron's: four times the width, less a third with a gate, in steps of 64."""
    expert = draft.flags.positive("--moe-ffn-hidden-size") if "--num-experts" in draft.flags else None
    given = expert or draft.flags.positive("--ffn-hidden-size")
    if given:
        return given
    draft.notes["model.mlp"] = OF_MEGATRON
    return int(4 * embed * 2 / 3 / 64) * 64 if "--swiglu" in draft.flags else 4 * embed


def _parts(draft: Draft) -> dict[str, Any]:
    """Everything of a layer but its sizes, Megatron's defaults filled in."""
    flags = draft.flags
    eps, eps_of_old = flags.number("--norm-epsilon"), flags.number("--layernorm-epsilon")
    parts: dict[str, Any] = {
        "norm": _norm(draft),
        "positions": _positions(draft),
        "activation": _activation(draft),
        "tied": "--untie-embeddings-and-output-weights" not in flags,
        "bias": _bias(draft),
        "dropout": _dropout(draft),
        "norm_eps": next((value for value in (eps, eps_of_old) if value is not None), 1e-5),
        "qk_norm": "--qk-layernorm" in flags,
        "window": _window(draft),
    }
    if parts["positions"] == "rotary":
        base, base_of_old = flags.number("--rotary-base"), flags.number("--rotary-position-embeddings-theta")
        parts["rope_base"] = next((value for value in (base, base_of_old) if value is not None), 10000.0)
    _rotated_part(draft)
    return parts


def _norm(draft: Draft) -> str:
    given = (draft.flags.text("--normalization") or "LayerNorm").casefold()
    if given not in _NORMS:
        draft.refuse("--normalization", "norms are layernorm and rmsnorm")
    return _NORMS.get(given, "layernorm")


def _positions(draft: Draft) -> str:
    name, switch, none = (
        "--position-embedding-type",
        "--use-rotary-position-embeddings",
        "--no-position-embedding",
    )
    given = draft.flags.text(name)
    if switch in draft.flags and given in (None, "learned_absolute"):
        given = "rope"
    if given is not None and given not in _POSITIONS:
        draft.refuse(name, f"positions are learned or rotary; {given} needs a module:Class")
        draft.warnings.append(f"positions were {given} and became rotary: the network is another one")
        return "rotary"
    positions = _POSITIONS[given or "learned_absolute"]
    if none in draft.flags and positions == "learned":
        draft.refuse(none, "positions are learned or rotary; none at all needs a module:Class")
    draft.drop(none, "with rotary positions none are added to the embedding")
    return positions


def _activation(draft: Draft) -> str:
    given = draft.flags.text("--glu-activation")
    is_gated = "--swiglu" in draft.flags or given == "swiglu"
    if given not in (None, "swiglu"):
        draft.refuse("--glu-activation", "activations are gelu and swiglu")
    draft.drop("--openai-gelu", "another formula of the same activation")
    for name in ("--squared-relu", "--quick-geglu"):
        if name in draft.flags and is_gated:
            draft.refuse(name, "two activations were named, and swiglu holds")
        elif name in draft.flags:
            draft.refuse(name, "activations are gelu and swiglu; another one needs a module:Class")
            draft.warnings.append(f"{name} became gelu: the network is another one")
    return "swiglu" if is_gated else "gelu"


def _bias(draft: Draft) -> bool | str:
    """All linear layers have a bias, none has, or those of queries, keys and values alone."""
    if "--disable-bias-linear" not in draft.flags:
        draft.drop("--add-qkv-bias", "all linear layers have a bias")
        return True
    return "qkv" if "--add-qkv-bias" in draft.flags else False


def _window(draft: Draft) -> int:
    """Tokens that a query sees, its own included; 0 for all before it."""
    size, skipped = "--window-size", "--window-attn-skip-freq"
    numbers = re.findall(r"-?\d+", draft.flags.text(size) or "")
    if len(numbers) != 2 or numbers[1] != "0" or int(numbers[0]) < 0:
        draft.refuse(size, "a window is so many tokens before each token, in all layers")
        return 0
    if skipped in draft.flags:
        draft.refuse(size, "a window holds in all layers; the network is another one without it")
        draft.refuse(skipped, "a window holds in all layers")
        return 0
    return int(numbers[0][:9]) + 1


def _dropout(draft: Draft) -> float:
    hidden, attention = draft.flags.number("--hidden-dropout"), draft.flags.number("--attention-dropout")
    given = 0.1 if hidden is None else hidden
    if hidden is None:
        draft.notes["model.dropout"] = OF_MEGATRON
    if attention is not None and attention != given:
        draft.refuse(
            "--attention-dropout",
            f"one probability holds for all activations: {given:g}, that of --hidden-dropout",
        )
    return given


def _rotated_part(draft: Draft) -> None:
    percent = draft.flags.number("--rotary-percent")
    if percent in (None, 1.0):
        draft.drop("--rotary-percent", "the whole head is rotated, as here")
    else:
        draft.refuse("--rotary-percent", "the whole head is rotated")


def _experts(draft: Draft) -> dict[str, Any]:
    frequency = draft.flags.text("--moe-layer-freq")
    count = draft.flags.whole("--num-experts")
    if not count or count == 1:
        for flag in draft.flags:
            if flag.name.startswith("--moe-") or flag.name in ("--num-experts", "--topk"):
                draft.drop(flag.name, "there are no experts")
        return {"experts": 0, "top_k": 0}
    if "--moe-ffn-hidden-size" in draft.flags:
        draft.refuse("--ffn-hidden-size", "all layers hold experts, and this is the width of a layer without")
    if frequency in (None, "1"):
        draft.drop("--moe-layer-freq", "all layers hold experts, as here")
    else:
        draft.refuse("--moe-layer-freq", "all layers hold experts")
        draft.warnings.append("some layers had no experts; here all have: the network is larger")
    top = draft.flags.positive("--moe-router-topk") or draft.flags.positive("--topk") or 2
    return {"experts": count, "top_k": top}


def _vocabulary(draft: Draft, tensor: int) -> dict[str, Any]:
    """The rows of the embedding: padded to a multiple of a number times the tensor degree."""
    flags = draft.flags
    padded = flags.positive("--padded-vocab-size") or flags.positive("--pad-vocab-size-to")
    size = flags.positive("--vocab-size") or _VOCABULARIES.get(_tokenizer(draft))
    if padded is None and size is None:
        draft.warnings.append("nothing says how many tokens the tokenizer knows; model.vocab is the preset's")
        return {}
    multiple = (flags.positive("--make-vocab-size-divisible-by") or 128) * tensor
    if padded is None:
        draft.notes["model.vocab"] = f"{size} padded to a multiple of {multiple}, as by Megatron-LM"
    return {"vocab": padded or -(-(size or 1) // multiple) * multiple}


def _tokenizer(draft: Draft) -> str:
    """The kind of tokenizer; files of merges without a kind were GPT-2's."""
    given = draft.flags.text("--tokenizer-type")
    return given or ("GPT2BPETokenizer" if "--merge-file" in draft.flags else "")
