"""Under which names, and how cut, do Hugging Face files hold the tensors of a network?

A stored tensor and a logical one (``Network.tensors()``) need not be the same: GPT-2 stores its matrices transposed
and those of queries, keys and values as one; experts are stored one by one. What they have in common is told by
blocks, from which reading, writing and reading a part follow alike.

Queries and keys are stored so that rotary positions turn the pairs (i, i + E / 2) of a head, as networks of the
catalog do; nothing is permuted.

Names: the modelling files of the transformers library, ``src/transformers/models/<family>/modeling_<family>.py``, and
for experts, which newer releases stack in memory but not in files, its ``conversion_mapping.py``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.catalog.errors import NetworkError
from trimtab.catalog.networks import Network, Tensor, TensorKind

Box = tuple[tuple[int, int], ...]
"""Indices along each dim of a tensor: from the first up to, and without, the second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The same elements in a logical and in a stored tensor.

    A stored tensor may lack the first dim of the logical one: the matrix of an expert is one index of the stack's.

    Args:
        logical: Name of the logical tensor.
        logical_box: Where the elements stand in it.
        stored: Name of the stored tensor.
        stored_box: Where they stand in that.
        is_transposed: Whether its two dims stand in the other order.
    """

    logical: str
    logical_box: Box
    stored: str
    stored_box: Box
    is_transposed: bool

    def within(self, box: Box) -> "Block | None":
        """The part that lies in a box of the logical tensor; None if nothing does."""
        inside = tuple(
            (max(first, low), min(last, high))
            for (first, last), (low, high) in zip(self.logical_box, box, strict=True)
        )
        if any(first >= last for first, last in inside):
            return None
        steps = [
            (low - first, high - first)
            for (first, _), (low, high) in zip(self.logical_box, inside, strict=True)
        ]
        steps = steps[-len(self.stored_box) :]
        if self.is_transposed:
            steps.reverse()
        stored = tuple(
            (start + low, start + high)
            for (start, _), (low, high) in zip(self.stored_box, steps, strict=True)
        )
        return replace(self, logical_box=inside, stored_box=stored)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """A tensor of a file, and the blocks that fill it."""

    name: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """The tensors that a network needs among those that files hold.

    Args:
        found_as: By the name that the family gives it, the name in the files.
        missing: Needed and not there.
        extra: There, and no part of the network.
        tied_head: In files of a tied network, the head's own copy of the embedding, under its name there.
    """

    found_as: Mapping[str, str]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    tied_head: str | None


def stored_tensors(network: Network, family: str) -> tuple[StoredTensor, ...]:
    """Every tensor that files of a family hold for a network, in the order of ``Network.tensors()``.

    Args:
        network: Whose tensors they are.
        family: A ``model_type``, of which ``family_names()`` lists all.

    Raises: NetworkError if the family has no name for some of its tensors.

    >>> from trimtab.catalog import network
    >>> fused = stored_tensors(network("gpt-3m"), "gpt2")[4]
    >>> fused.name, fused.shape
    ('transformer.h.0.attn.c_attn.weight', (256, 768))
    >>> keys = fused.blocks[1]
    >>> keys.logical, keys.stored_box, keys.is_transposed
    ('layers.0.attention.wk.weight', ((0, 256), (256, 512)), True)
    """
    habit = _HABITS[family]
    _refuse_nameless(network, family)
    placed: dict[str, list[tuple[Tensor, int | None]]] = {}
    for tensor in network.tensors():
        for expert, name in _stored_names(tensor, habit, network.experts):
            placed.setdefault(name, []).append((tensor, expert))
    return tuple(_stored(name, parts, habit) for name, parts in placed.items())


def match_names(found: Iterable[str], needed: Sequence[StoredTensor], family: str) -> Matching:
    """Find what a network needs among the names in files.

    Files may leave out the name of the model in front (``wte.weight`` for ``transformer.wte.weight``, as the first
    files of GPT-2 do), and hold tables that are no parameters.
    """
    habit, names = _HABITS[family], {tensor.name for tensor in needed}
    found_as: dict[str, str] = {}
    extra = []
    tied_head = None
    for name in found:
        full = name if name in names else habit.prefix + name
        if full in names and full not in found_as:
            found_as[full] = name
        elif name == _HEAD and _HEAD not in names:
            tied_head = name
        elif not habit.tables.search(name):
            extra.append(name)
    missing = tuple(tensor.name for tensor in needed if tensor.name not in found_as)
    return Matching(found_as=found_as, missing=missing, extra=tuple(extra), tied_head=tied_head)


def boxes_of_run(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The boxes that make up a run of the flattened elements of a tensor, in order.

    A piece of storage is such a run; reading boxes reads it and nothing else.

    >>> list(boxes_of_run((4, 3), 2, 10))
    [((0, 1), (2, 3)), ((1, 3), (0, 3)), ((3, 4), (0, 1))]
    >>> list(boxes_of_run((), 0, 1))  # a number alone has no dims to tell
    [()]
    """
    if start >= stop:
        return
    if not shape:
        yield ()
        return
    if len(shape) == 1:
        yield ((start, stop),)
        return
    inner, size = shape[1:], 1
    for length in inner:
        size *= length
    row, last = start // size, stop // size
    if start % size or row == last:
        end = min(stop - row * size, size)
        yield from (((row, row + 1), *box) for box in boxes_of_run(inner, start - row * size, end))
        row += 1
    if row < last:
        yield ((row, last), *((0, length) for length in inner))
    if row <= last:
        yield from (((last, last + 1), *box) for box in boxes_of_run(inner, 0, stop - last * size))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Habit:
    """How files of a family name and cut.

    Args:
        prefix: What stands before every name but the head's, and may be left out.
        stems: By the stem of a logical name, that of the stored one. Several with one stem are stored as one, in the
            order of the network.
        is_transposed: Whether the linear layers' matrices are stored [in, out].
        tables: Names of what is computed and stored all the same, such as masks.
    """

    prefix: str
    stems: Mapping[str, str]
    is_transposed: bool
    tables: re.Pattern[str]


def _refuse_nameless(network: Network, family: str) -> None:
    stems = _HABITS[family].stems
    nameless = [tensor.name for tensor in network.tensors() if _stem(tensor) not in stems]
    if nameless:
        raise NetworkError(
            f"{network.name} is no network of the family {family!r}, whose files have no name for\n"
            + "".join(f"  {name}\n" for name in nameless)
            + "  Take back what changes the network, or begin from random weights."
        )


def _stem(tensor: Tensor) -> str:
    """The name without the layer's number and without ``weight`` or ``bias``."""
    stem = tensor.name.rpartition(".")[0]
    return stem if tensor.layer is None else stem.replace(str(tensor.layer), "{layer}", 1)


def _stored_names(tensor: Tensor, habit: _Habit, experts: int) -> Iterator[tuple[int | None, str]]:
    """The expert, if each is stored alone, and the name."""
    stem, leaf = habit.stems[_stem(tensor)], tensor.name.rpartition(".")[2]
    for expert in range(experts) if "{expert}" in stem else (None,):
        yield expert, f"{stem.format(layer=tensor.layer, expert=expert)}.{leaf}"


def _stored(name: str, parts: Sequence[tuple[Tensor, int | None]], habit: _Habit) -> StoredTensor:
    """A stored tensor out of those that make it up, one behind the other along what they put out."""
    blocks: list[Block] = []
    start = 0
    for tensor, expert in parts:
        whole = tuple((0, length) for length in tensor.shape)
        inner = whole if expert is None else whole[1:]
        is_transposed = habit.is_transposed and tensor.kind is TensorKind.LINEAR and len(inner) == 2
        rows = inner[0][1]
        moved: Box = ((start, start + rows), *inner[1:])
        blocks.append(
            Block(
                logical=tensor.name,
                logical_box=whole if expert is None else ((expert, expert + 1), *inner),
                stored=name,
                stored_box=moved[::-1] if is_transposed else moved,
                is_transposed=is_transposed,
            )
        )
        start += rows
    shape = tuple(last for _, last in blocks[-1].stored_box)
    return StoredTensor(name=name, shape=shape, blocks=tuple(blocks))


_HEAD = "lm_head.weight"

_GPT2 = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "layers.{layer}.attention_norm": "transformer.h.{layer}.ln_1",
    "layers.{layer}.attention.wq": "transformer.h.{layer}.attn.c_attn",
    "layers.{layer}.attention.wk": "transformer.h.{layer}.attn.c_attn",
    "layers.{layer}.attention.wv": "transformer.h.{layer}.attn.c_attn",
    "layers.{layer}.attention.wo": "transformer.h.{layer}.attn.c_proj",
    "layers.{layer}.mlp_norm": "transformer.h.{layer}.ln_2",
    "layers.{layer}.mlp.up": "transformer.h.{layer}.mlp.c_fc",
    "layers.{layer}.mlp.down": "transformer.h.{layer}.mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
}

_LLAMA_ATTENTION = {
    "embedding": "model.embed_tokens",
    "layers.{layer}.attention_norm": "model.layers.{layer}.input_layernorm",
    "layers.{layer}.attention.wq": "model.layers.{layer}.self_attn.q_proj",
    "layers.{layer}.attention.wk": "model.layers.{layer}.self_attn.k_proj",
    "layers.{layer}.attention.wv": "model.layers.{layer}.self_attn.v_proj",
    "layers.{layer}.attention.wo": "model.layers.{layer}.self_attn.o_proj",
    "layers.{layer}.mlp_norm": "model.layers.{layer}.post_attention_layernorm",
    "final_norm": "model.norm",
    "head": "lm_head",
}

_QWEN3_ATTENTION = _LLAMA_ATTENTION | {
    "layers.{layer}.attention.q_norm": "model.layers.{layer}.self_attn.q_norm",
    "layers.{layer}.attention.k_norm": "model.layers.{layer}.self_attn.k_norm",
}

_LLAMA_MLP = {
    "layers.{layer}.mlp.up": "model.layers.{layer}.mlp.up_proj",
    "layers.{layer}.mlp.gate": "model.layers.{layer}.mlp.gate_proj",
    "layers.{layer}.mlp.down": "model.layers.{layer}.mlp.down_proj",
}

_MIXTRAL_EXPERTS = {
    "layers.{layer}.router": "model.layers.{layer}.block_sparse_moe.gate",
    "layers.{layer}.experts.up": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3",
    "layers.{layer}.experts.gate": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1",
    "layers.{layer}.experts.down": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2",
}

_QWEN3_EXPERTS = {
    "layers.{layer}.router": "model.layers.{layer}.mlp.gate",
    "layers.{layer}.experts.up": "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    "layers.{layer}.experts.gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
    "layers.{layer}.experts.down": "model.layers.{layer}.mlp.experts.{expert}.down_proj",
}


def _llama_like(stems: Mapping[str, str]) -> _Habit:
    tables = re.compile(r"\.rotary_emb\.inv_freq$")
    return _Habit(prefix="model.", stems=stems, is_transposed=False, tables=tables)


_HABITS: Mapping[str, _Habit] = {
    "gpt2": _Habit(
        prefix="transformer.",
        stems=_GPT2,
        is_transposed=True,
        tables=re.compile(r"(^|\.)h\.\d+\.attn\.(masked_)?bias$"),
    ),
    "llama": _llama_like(_LLAMA_ATTENTION | _LLAMA_MLP),
    "mistral": _llama_like(_LLAMA_ATTENTION | _LLAMA_MLP),
    "mixtral": _llama_like(_LLAMA_ATTENTION | _MIXTRAL_EXPERTS),
    "qwen2": _llama_like(_LLAMA_ATTENTION | _LLAMA_MLP),
    "qwen3": _llama_like(_QWEN3_ATTENTION | _LLAMA_MLP),
    "qwen3_moe": _llama_like(_QWEN3_ATTENTION | _QWEN3_EXPERTS),
}
"""The families of ``hugging_face.py``, each by its ``model_type``."""
