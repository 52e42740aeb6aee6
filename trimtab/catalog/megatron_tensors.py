"""Under which names, and how cut, does Megatron-LM's core hold the tensors of a network?

Layers of one kind are stacked along a first dim, or stand one by one. Queries, keys and values are one matrix, group by
group: the query heads that share a key head, this, and its value head. The gate stands before what goes up, in one
matrix. Rows beyond the vocabulary, which fill it up to a round number, are nobody's.

Names: ``megatron/core/models/gpt/gpt_layer_specs.py`` and the ``sharded_state_dict`` of its modules, release 0.14.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.catalog.errors import NetworkError
from trimtab.catalog.hugging_face.tensors import Block, Box
from trimtab.catalog.networks import Network

_STACK, _LAYER = "decoder.layers", "layers"
_IGNORED = ("_extra_state", "optimizer.", "rng_state", "rerun_state")
"""In names of what is no weight."""
_NORMS = {
    "attention_norm": ("self_attention.linear_qkv.layer_norm_{}", "input_layernorm.{}"),
    "mlp_norm": ("mlp.linear_fc1.layer_norm_{}", "pre_mlp_layernorm.{}"),
    "attention.q_norm": ("self_attention.q_layernorm.{}",),
    "attention.k_norm": ("self_attention.k_layernorm.{}",),
}
"""Fused with the matrix after them, or on their own."""
_OUTSIDE = {
    "embedding": "embedding.word_embeddings",
    "positions": "embedding.position_embeddings",
    "final_norm": "decoder.final_layernorm",
    "head": "output_layer",
}
_PADDED = ("embedding.weight", "head.weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class StackedBlock:
    """Elements of a logical tensor in a stored one, which may have the layers as its first dim.

    Args:
        block: Without that dim.
        layer: The index along it; None if there is none.
    """

    block: Block
    layer: int | None


def is_megatron(names: Sequence[str]) -> bool:
    """Whether a checkpoint's names are Megatron's."""
    return any(name.endswith("embedding.word_embeddings.weight") for name in names)


def megatron_blocks(
    network: Network, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[StackedBlock], list[str]]:
    """Where the tensors of a network stand among those of a checkpoint, and every reason why some do not.

    Args:
        network: Whose tensors they are.
        shapes: Of the checkpoint's tensors, by name.

    Raises: NetworkError for a network with experts, whose names are not known here.
    """
    if network.experts:
        raise NetworkError(
            f"{network.name} has experts; of Megatron's checkpoints dense networks are imported"
        )
    prefix = "model." if f"model.{_OUTSIDE['embedding']}.weight" in shapes else ""
    found, problems, used = [], [], set()
    for tensor in network.tensors():
        for candidates, logical_box, first in _places(network, tensor.name, tensor.shape):
            stored = next((name for name in candidates if prefix + name in shapes), None)
            layer = tensor.layer if stored and f"{_STACK}.{tensor.layer}." not in stored else None
            if stored is None:
                problems.append(f"missing: {prefix}{candidates[0]}, for {tensor.name}")
                continue
            used.add(prefix + stored)
            sizes = tuple(last - low for low, last in logical_box)
            moved: Box = ((first, first + sizes[0]), *((0, size) for size in sizes[1:]))
            found.append(
                StackedBlock(
                    block=Block(
                        logical=tensor.name,
                        logical_box=logical_box,
                        stored=prefix + stored,
                        stored_box=moved,
                        is_transposed=False,
                    ),
                    layer=layer,
                )
            )
    problems += _shape_problems(network, found, shapes)
    problems += [
        f"extra: {name}, of {list(shape)}"
        for name, shape in shapes.items()
        if name not in used and not any(word in name for word in _IGNORED)
    ]
    return found, problems


def _places(network: Network, name: str, shape: Sequence[int]) -> Iterator[tuple[list[str], Box, int]]:
    """Names under which a box of a logical tensor may stand, and the row at which it begins there."""
    whole = tuple((0, length) for length in shape)
    stem, _, leaf = name.rpartition(".")
    if not stem.startswith(f"{_LAYER}."):
        yield [f"{_OUTSIDE[stem]}.{leaf}"], whole, 0
        return
    _, number, part = stem.split(".", 2)
    if part in _NORMS:
        yield _named(number, [form.format(leaf) for form in _NORMS[part]]), whole, 0
    elif part in ("attention.wq", "attention.wk", "attention.wv"):
        names = _named(number, [f"self_attention.linear_qkv.{leaf}"])
        for box, first in _of_groups(network, part[-1], whole):
            yield names, box, first
    elif part in ("mlp.up", "mlp.gate"):
        is_behind = part == "mlp.up" and network.activation == "swiglu"
        yield _named(number, [f"mlp.linear_fc1.{leaf}"]), whole, shape[0] if is_behind else 0
    else:
        last = {"attention.wo": "self_attention.linear_proj", "mlp.down": "mlp.linear_fc2"}[part]
        yield _named(number, [f"{last}.{leaf}"]), whole, 0


def _named(number: str, parts: Sequence[str]) -> list[str]:
    """Stacked, or one by one."""
    return [f"{_STACK}.{part}" for part in parts] + [f"{_STACK}.{number}.{part}" for part in parts]


def _of_groups(network: Network, which: str, whole: Box) -> Iterator[tuple[Box, int]]:
    """The rows of queries, keys or values, group by group, and where each group's begin in the stored matrix."""
    size, heads = network.head_size, network.heads // network.kv_heads
    rows = {"q": heads, "k": 1, "v": 1}[which] * size
    before = {"q": 0, "k": heads, "v": heads + 1}[which] * size
    for group in range(network.kv_heads):
        yield ((group * rows, (group + 1) * rows), *whole[1:]), group * (heads + 2) * size + before


def _shape_problems(
    network: Network, found: Sequence[StackedBlock], shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Tensors that have other sizes than the network's blocks fill."""
    needed: dict[str, tuple[int, ...]] = {}
    padded = set()
    for item in found:
        ends = tuple(last for _, last in item.block.stored_box)
        before = needed.get(item.block.stored, ends)
        needed[item.block.stored] = tuple(map(max, before, ends))
        if item.block.logical in _PADDED:
            padded.add(item.block.stored)
    problems = []
    for name, wanted in needed.items():
        stacked = any(item.layer is not None and item.block.stored == name for item in found)
        full = (network.layers, *wanted) if stacked else wanted
        shape = shapes[name]
        if shape != full and not (name in padded and shape[0] >= full[0] and shape[1:] == full[1:]):
            problems.append(f"shape of {name}: {list(shape)}; the network needs {list(full)}")
    return problems
