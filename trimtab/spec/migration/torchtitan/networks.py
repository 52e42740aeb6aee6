"""The networks that torchtitan trains by name, where the catalog has them or one that differs in sizes.

Source: torchtitan 0.1.0 to 0.2.2, torchtitan/models/llama3/__init__.py and qwen3/__init__.py.
"""

from collections.abc import Mapping
from typing import Any

from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout
from trimtab.spec.migration.stand_ins import stand_in

NAME, FLAVOR = "model.name", "model.flavor"

_PRESETS: Mapping[tuple[str, str], str] = {
    ("llama2", "7B"): "llama2-7b",
    ("llama2", "13B"): "llama2-13b",
    ("llama2", "70B"): "llama2-70b",
    ("llama3", "8B"): "llama3-8b",
    ("llama3", "70B"): "llama3-70b",
    ("llama3", "405B"): "llama3-405b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
}
"""Name and flavor there, and the catalog's name."""

_DENSE = {"experts": 0, "top_k": 0}
_TIED = {**_DENSE, "tied": True}

_CHANGED: Mapping[tuple[str, str], tuple[str, Mapping[str, Any]]] = {
    # The width of the feed-forward part is 8/3 of the stream, rounded up to a multiple of 256.
    ("llama3", "debugmodel"): (
        "llama3-8b",
        {"layers": 6, "embed": 256, "heads": 16, "kv_heads": 16, "mlp": 768, "vocab": 2048},
    ),
    ("qwen3", "debugmodel"): (
        "qwen3-30b-a3b",
        {"layers": 8, "embed": 256, "heads": 16, "kv_heads": 8, "mlp": 3072, "vocab": 2048, **_TIED},
    ),
    ("qwen3", "debugmodel_moe"): (
        "qwen3-30b-a3b",
        {"layers": 8, "embed": 256, "heads": 16, "kv_heads": 8, "vocab": 2048, "experts": 64},
    ),
    ("qwen3", "0.6B"): (
        "qwen3-30b-a3b",
        {"layers": 28, "embed": 1024, "heads": 16, "kv_heads": 8, "mlp": 3072, **_TIED},
    ),
    ("qwen3", "1.7B"): (
        "qwen3-30b-a3b",
        {"layers": 28, "embed": 2048, "heads": 16, "kv_heads": 8, "mlp": 6144, **_TIED},
    ),
    ("qwen3", "4B"): (
        "qwen3-30b-a3b",
        {"layers": 36, "embed": 2560, "heads": 32, "kv_heads": 8, "mlp": 9728, **_TIED},
    ),
    ("qwen3", "8B"): (
        "qwen3-30b-a3b",
        {"layers": 36, "embed": 4096, "heads": 32, "kv_heads": 8, "mlp": 12288, **_DENSE},
    ),
    ("qwen3", "14B"): (
        "qwen3-30b-a3b",
        {"layers": 40, "embed": 5120, "heads": 40, "kv_heads": 8, "mlp": 17408, **_DENSE},
    ),
    ("qwen3", "32B"): (
        "qwen3-30b-a3b",
        {"layers": 64, "embed": 5120, "heads": 64, "kv_heads": 8, "mlp": 25600, **_DENSE},
    ),
    ("qwen3", "235B-A22B"): (
        "qwen3-30b-a3b",
        {"layers": 94, "embed": 4096, "heads": 64, "kv_heads": 4, "mlp": 1536, "rope_base": 5e6},
    ),
}
"""Networks that are one of the catalog in other sizes: its name, and what is changed in it."""

_WITH_EXPERTS = ("deepseek_v3", "llama4", "gpt_oss")


def answer_network(
    draft: Draft, layout: Layout, networks: Mapping[str, Mapping[str, Any]], *, fewest_layers: int
) -> None:
    """Write the network, or one that stands in for it.

    Args:
        draft: The settings.
        layout: Into how many parts the network must be divisible.
        networks: What the catalog has.
        fewest_layers: Layers that the stages of a pipeline need.
    """
    name, flavor = draft.word(NAME) or "llama3", draft.word(FLAVOR) or "debugmodel"
    known = _known(name, flavor)
    if known is None:
        has_experts = name in _WITH_EXPERTS or "moe" in flavor
        model = stand_in(layout, networks, has_experts=has_experts, fewest_layers=fewest_layers)
        preset = model["model.preset"]
        _answer_stand_in(draft, model)
    else:
        preset, changes = known
        draft.carried(NAME, "model.preset")
        _answer_flavor(draft, preset, changes)
    context = networks.get(preset, {}).get("context")
    sequence = draft.integer("training.seq_len") or 2048
    if context is not None and sequence > context:
        draft.put({"model.context": sequence}, note="as long as a sequence")


def num_layers(draft: Draft, networks: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Layers of the network as torchtitan knows it; None if the catalog does not have it."""
    name, flavor = draft.word(NAME) or "llama3", draft.word(FLAVOR) or "debugmodel"
    preset, changes = _known(name, flavor) or ("", {})
    layers = {**networks.get(preset, {}), **changes}.get("layers")
    return layers if isinstance(layers, int) else None


def _known(name: str, flavor: str) -> tuple[str, Mapping[str, Any]] | None:
    """The catalog's network and what is changed in it; None if it has nothing like it."""
    if preset := _PRESETS.get((name, flavor)):
        return preset, {}
    return _CHANGED.get((name, flavor))


def _answer_flavor(draft: Draft, preset: str, changes: Mapping[str, Any]) -> None:
    if not changes:
        draft.carried(FLAVOR, {"model.preset": preset})
        return
    keys = {f"model.{key}": value for key, value in changes.items()}
    draft.changed(
        FLAVOR, {"model.preset": preset, **keys}, reason="a network of the same kind, in other sizes"
    )


def _answer_stand_in(draft: Draft, model: Mapping[str, Any]) -> None:
    preset = model["model.preset"]
    reason = f"the catalog has no such network: {preset} stands in; name the folder of its Hugging Face model"
    for flag in (NAME, FLAVOR):
        draft.impossible(flag, reason)
    draft.put(model, note="stands in")
    draft.warnings.append(
        f"{draft.word(NAME)} {draft.word(FLAVOR)} is not in the catalog: {preset} stands in, so that the job runs as it "
        "is. Set model.folder to its Hugging Face model, or model.module to a class of your own."
    )
