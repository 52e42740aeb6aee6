"""What is a parameter of a user's module, and what are its axes called, by all that can be seen of it?

By the types of its submodules, by the habits of naming in the field, and by sizes. An axis of which nothing
is known is called by its size, ``d1024``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import nn

Dims = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inferred:
    """What a parameter is, and its axes.

    Args:
        dims: Names of the axes.
        reason: What they follow from, in a few words.
        kind: ``embedding``, ``norm``, ``linear``, ``expert``, ``router`` or ``head``.
    """

    dims: Dims
    reason: str
    kind: str = "linear"


class DimInference:
    """Names the axes of one module's parameters; no value is read."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._layers = layer_stacks(module)
        self._owners = {
            f"{path}.{name}" if path else name: (path, child)
            for path, child in module.named_modules()
            for name, _ in child.named_parameters(recurse=False)
        }
        tables = [(p, m) for p, m in module.named_modules() if isinstance(m, nn.Embedding)]
        tokens = next((m for path, m in tables if not _POSITIONS.search(last_word(path))), None)
        self._embed = tokens.embedding_dim if tokens else None
        self._vocab = tokens.num_embeddings if tokens else None

    def infer(self, name: str, shape: tuple[int, ...]) -> Inferred:
        """The axes of the parameter of this name."""
        path, owner = self._owners[name]
        inferred = self._of(path, owner, last_word(name), shape)
        return replace(inferred, kind="expert") if is_expert(name) and inferred.kind == "linear" else inferred

    def layer_of(self, name: str) -> int | None:
        """The layer that a path leads into; None outside of layers."""
        return next((number for path, number in self._layers.items() if _is_inside(name, path)), None)

    def _of(self, path: str, owner: nn.Module, word: str, shape: tuple[int, ...]) -> Inferred:
        if isinstance(owner, nn.Embedding):
            return self._of_embedding(path, shape)
        if is_norm(owner):
            return Inferred(dims=self._by_size(shape), reason="a norm, by size", kind="norm")
        if isinstance(owner, nn.Linear):
            return self._of_linear(path, owner, word)
        if isinstance(owner, nn.MultiheadAttention):
            return Inferred(dims=self._by_size(shape), reason="queries, keys and values in one")
        return self._of_lone(path, word, shape)

    def _of_embedding(self, path: str, shape: tuple[int, ...]) -> Inferred:
        if shape == (self._vocab, self._embed) and not _POSITIONS.search(last_word(path)):
            return Inferred(dims=("vocab", "embed"), reason="an embedding of tokens", kind="embedding")
        rows = "context" if _POSITIONS.search(last_word(path)) else f"d{shape[0]}"
        columns = "embed" if shape[1] == self._embed else f"d{shape[1]}"
        return Inferred(dims=(rows, columns), reason="an embedding", kind="embedding")

    def _of_linear(self, path: str, owner: nn.Linear, word: str) -> Inferred:
        """Axes of a weight [out, in], or of a bias [out]."""
        named = self._of_matrix(path, owner)
        return named if word == "weight" else replace(named, dims=named.dims[:1])

    def _of_matrix(self, path: str, owner: nn.Linear) -> Inferred:
        shape, word = (owner.out_features, owner.in_features), last_word(path)
        if word in _ROUTERS and self._has_experts_beside(path):
            return self._checked(("routes", "embed"), shape, "a router beside experts", "router")
        is_part_of_attention = is_attention(f"{path}.{type(self._parent(path)).__name__}")
        is_in_layer = self.layer_of(path) is not None
        is_outside = not is_in_layer and not is_part_of_attention
        # A square matrix must be called a head; any other of a head's shape is one.
        if shape == (self._vocab, self._embed) and is_outside and (word in _HEADS or shape[0] != shape[1]):
            return Inferred(dims=("vocab", "embed"), reason="a matrix from width to tokens", kind="head")
        if word in _FUSED:
            dims = (f"d{shape[0]}", *self._by_size(shape[1:]))
            return Inferred(dims=dims, reason="queries, keys and values in one")
        role = _role(word, is_part_of_attention=is_part_of_attention, is_in_layer=is_in_layer)
        if role is not None:
            return self._checked(role, shape, f"a matrix called {word}")
        pair = None if is_part_of_attention else self._role_in_a_pair(path, shape)
        if pair is not None:
            return Inferred(dims=pair, reason="one of two matrices, wider between them")
        return Inferred(dims=self._by_size(shape), reason="by size")

    def _of_lone(self, path: str, word: str, shape: tuple[int, ...]) -> Inferred:
        """Axes of a parameter that stands in a module of the user's own."""
        if is_expert(f"{path}.{word}") and len(shape) == 3:
            return Inferred(dims=("experts", *self._by_size(shape[1:])), reason="one tensor of all experts")
        if len(shape) == 1 and re.search("norm|gamma|scale", f"{path}.{word}"):
            return Inferred(dims=self._by_size(shape), reason="a norm by its name, by size", kind="norm")
        return Inferred(dims=self._by_size(shape), reason="by size")

    def _has_experts_beside(self, path: str) -> bool:
        return any(name in _EXPERTS for name, _ in self._parent(path).named_children()) or any(
            name in _EXPERTS for name, _ in self._parent(path).named_parameters(recurse=False)
        )

    def _parent(self, path: str) -> nn.Module:
        return self._module.get_submodule(path.rpartition(".")[0])

    def _role_in_a_pair(self, path: str, shape: tuple[int, int]) -> Dims | None:
        """The axes of one of two matrices of one parent that lead from the embedding's width out and back."""
        shapes = {
            (child.out_features, child.in_features)
            for child in self._parent(path).children()
            if isinstance(child, nn.Linear)
        }
        out, into = shape
        if out == into or self._embed not in shape or (into, out) not in shapes:
            return None
        return ("mlp", "embed") if into == self._embed else ("embed", "mlp")

    def _checked(self, dims: Dims, shape: Sequence[int], reason: str, kind: str = "linear") -> Inferred:
        """The dims, but for an axis called embed that has another size."""
        names = tuple(
            f"d{size}" if dim == "embed" and self._embed not in (None, size) else dim
            for dim, size in zip(dims, shape, strict=True)
        )
        return Inferred(dims=names, reason=reason, kind=kind)

    def _by_size(self, shape: Sequence[int]) -> Dims:
        """``embed`` for the last axis of its size, ``vocab`` for one of its size, else the size itself."""
        last = max((axis for axis, size in enumerate(shape) if size == self._embed), default=None)
        return tuple(
            "embed" if axis == last else "vocab" if size == self._vocab != self._embed else f"d{size}"
            for axis, size in enumerate(shape)
        )


def layer_stacks(module: nn.Module) -> Mapping[str, int]:
    """The paths of layers, outermost stacks only, with their numbers: ``{"blocks.0": 0, "blocks.1": 1}``.

    A stack is a ModuleList or Sequential whose children are of one type and have children of their own.
    A second stack is numbered on after the first.
    """
    numbers: dict[str, int] = {}
    stacks: list[str] = []
    for path, child in module.named_modules():
        if _is_stack(path, child) and not any(_is_inside(path, stack) for stack in stacks):
            stacks.append(path)
            for index, _ in child.named_children():
                numbers[f"{path}.{index}" if path else index] = len(numbers)
    return numbers


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises, by its type or the name of its type."""
    return isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm) or (
        "norm" in type(module).__name__.lower()
    )


def is_attention(path: str) -> bool:
    """Whether a path leads into attention."""
    return _ATTENTION.search(path.lower()) is not None


def is_expert(path: str) -> bool:
    """Whether a path leads into experts."""
    return any(word in _EXPERTS for word in path.split("."))


def _is_stack(path: str, module: nn.Module) -> bool:
    if not isinstance(module, nn.ModuleList | nn.Sequential) or last_word(path) in _EXPERTS:
        return False
    children = [*module.children()]
    is_alike = len({type(child) for child in children}) == 1
    return is_alike and all([*child.children()] for child in children)


def _is_inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def last_word(path: str) -> str:
    """What stands behind the last dot."""
    return path.rpartition(".")[2]


def expert_of(name: str) -> int | None:
    """The number behind ``experts`` in a name: 3 in ``layers.0.experts.3.up.weight``."""
    words = name.split(".")
    for word, number in pairwise(words):
        if word in _EXPERTS and number.isdecimal():
            return int(number)
    return None


# Names of the field.

_EXPERTS = frozenset({"experts", "expert"})
_ROUTERS = frozenset({"router", "gate", "wg"})
_ATTENTION = re.compile(r"attn|attention|(^|\.)mha(\.|$)")
_POSITIONS = re.compile(r"pos|wpe")
_HEADS = frozenset(
    {"head", "lm_head", "output", "unembed", "unembedding", "to_logits", "proj_out", "embed_out"}
)

_QUERY = frozenset({"q", "wq", "q_proj", "query", "to_q", "q_lin", "linear_q"})
_KEY_VALUE = frozenset(
    {
        *("k", "wk", "k_proj", "key", "to_k", "k_lin", "linear_k"),
        *("v", "wv", "v_proj", "value", "to_v", "v_lin", "linear_v"),
    }
)
_ATTENTION_OUT = frozenset(
    {
        *("o", "wo", "o_proj", "out", "out_proj", "c_proj", "proj", "to_out"),
        *("dense", "output", "out_lin", "linear_out"),
    }
)
_FUSED = frozenset(
    {"qkv", "wqkv", "c_attn", "in_proj", "qkv_proj", "query_key_value", "to_qkv", "kv", "to_kv"}
)
_MLP_IN = frozenset(
    {
        *("up", "w1", "w3", "up_proj", "gate", "gate_proj", "fc1", "fc", "fc_in", "c_fc"),
        *("linear1", "lin1", "dense_h_to_4h", "wi", "wi_0", "wi_1"),
    }
)
_MLP_OUT = frozenset(
    {"down", "w2", "down_proj", "fc2", "fc_out", "c_proj", "proj", "linear2", "lin2", "dense_4h_to_h", "wo"}
)


def _role(word: str, *, is_part_of_attention: bool, is_in_layer: bool) -> Dims | None:
    """The axes (out, in) of a matrix of this name; None if the name says nothing there."""
    if word in _QUERY:
        return ("heads", "embed")
    if word in _KEY_VALUE:
        return ("kv_heads", "embed")
    if is_part_of_attention:
        return ("embed", "heads") if word in _ATTENTION_OUT else None
    if not is_in_layer:
        return None
    if word in _MLP_IN:
        return ("mlp", "embed")
    return ("embed", "mlp") if word in _MLP_OUT else None
