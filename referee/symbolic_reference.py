"""The same training step on one device: whole tensors, no mesh, nothing sent, written without a plan's programs.

Only names, dims and shapes of parameters come from the plan's document, and how balanced routing deals tokens to
experts. Operations are noted as they are done and gone back through in reverse.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symbolic_data import Batch
from symbolic_integers import Integers, attention_factors, look_up, look_up_grad
from symbolic_pieces import Array

Quantity = tuple[int | None, str]
"""An activation: its layer (None: embedding or head), and the operator that makes it with its parameter's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DealtTokens:
    """Where each token of a microbatch goes: [B, S, top_k], and how many slots each expert has."""

    experts: Array
    slots: Array
    num_slots: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """What one microbatch gives."""

    loss: int
    gradients: Mapping[str, Array]
    activations: Mapping[Quantity, Array]


@dataclass(eq=False, slots=True)
class _Tensor:
    """A value and, on the way back, its gradient."""

    array: Array
    gradient: Array = field(init=False)

    def __post_init__(self) -> None:
        self.gradient = np.zeros_like(self.array)


class OneDevice:
    """Runs microbatches.

    Args:
        network: ``heads``, ``kv_heads``, ``head_size``, ``layers``, ``experts``, ``tied``, ``dropout``.
        parameters: By full name.
        dealt: By layer, where tokens go; empty without experts.
        integers: Arithmetic.
    """

    def __init__(
        self,
        network: Mapping[str, Any],
        parameters: Mapping[str, Array],
        dealt: Mapping[int, DealtTokens],
        integers: Integers,
    ) -> None:
        self._network = network
        self._dealt = dealt
        self._integers = integers
        self._parameters = {name: _Tensor(array) for name, array in parameters.items()}
        self._back: list[Callable[[], None]] = []
        self._activations: dict[Quantity, Array] = {}

    def run(self, batch: Batch, highest: Array | None = None) -> Passed:
        """Forwards and backwards.

        Args:
            batch: The microbatch.
            highest: Maxima over the vocabulary, [B, S], to be taken for constants; None for the true ones.
        """
        self._back, self._activations = [], {}
        for tensor in self._parameters.values():
            tensor.gradient = np.zeros_like(tensor.array)
        stream = self._embedding(batch.tokens)
        for layer in range(self._network["layers"]):
            stream = self._layer(stream, layer)
        loss = self._head(stream, batch, highest)
        for step in reversed(self._back):
            step()
        gradients = {name: tensor.gradient for name, tensor in self._parameters.items()}
        return Passed(loss=loss, gradients=gradients, activations=dict(self._activations))

    # Pieces of the network.

    def _embedding(self, tokens: Array) -> _Tensor:
        matrix = self._parameters["embedding.weight"]
        vocab = tuple(range(matrix.array.shape[0]))
        found = _Tensor(look_up(tokens, matrix.array, vocab))
        modulus = self._integers.modulus
        self._note(
            lambda: _add(matrix, look_up_grad(found.gradient, tokens, matrix.array, vocab, modulus), modulus)
        )
        self._keep(None, "embed", found)
        positions = self._parameters.get("positions.weight")
        if positions is not None:
            found = self._with_positions(found, positions)
        return self._drop(found, None)

    def _with_positions(self, x: _Tensor, positions: _Tensor) -> _Tensor:
        length, modulus = x.array.shape[1], self._integers.modulus
        found = _Tensor(self._integers.sum(x.array, positions.array[:length]))

        def back() -> None:
            _add(x, found.gradient, modulus)
            positions.gradient[:length] += found.gradient.sum(0)
            positions.gradient %= modulus

        self._note(back)
        return self._keep(None, "add_positions", found)

    def _layer(self, stream: _Tensor, layer: int) -> _Tensor:
        normed = self._norm(stream, layer, "attention_norm")
        q, k, v = (self._linear(normed, layer, f"attention.{name}") for name in ("wq", "wk", "wv"))
        q, k = (self._head_norm(x, layer, f"attention.{name}_norm") for name, x in (("q", q), ("k", k)))
        attended = self._attention(q, k, v, layer)
        branch = self._drop(self._linear(attended, layer, "attention.wo"), layer)
        stream = self._add_stream(stream, branch, layer, "add 0")
        normed = self._norm(stream, layer, "mlp_norm")
        mlp = self._experts(normed, layer) if self._network["experts"] else self._mlp(normed, layer)
        return self._add_stream(stream, self._drop(mlp, layer, call=1), layer, "add 1")

    def _mlp(self, normed: _Tensor, layer: int) -> _Tensor:
        up = self._linear(normed, layer, "mlp.up")
        gate = self._linear(normed, layer, "mlp.gate") if self._has(layer, "mlp.gate.weight") else None
        return self._linear(self._activate(up, gate, layer), layer, "mlp.down")

    def _experts(self, normed: _Tensor, layer: int) -> _Tensor:
        logits = self._linear(normed, layer, "router")
        gates = _Tensor(self._integers.route(logits.array))
        self._note(
            lambda: _add(
                logits, self._integers.route_grad(gates.gradient, logits.array), self._integers.modulus
            )
        )
        self._keep(layer, "route", gates)
        given = self._dispatch(normed, layer)
        up = self._linear(given, layer, "experts.up")
        gate = self._linear(given, layer, "experts.gate") if self._has(layer, "experts.gate.weight") else None
        answers = self._linear(self._activate(up, gate, layer), layer, "experts.down")
        return self._combine(answers, gates, layer)

    def _head(self, stream: _Tensor, batch: Batch, highest: Array | None) -> int:
        integers = self._integers
        normed = self._norm(stream, None, "final_norm")
        logits = self._linear(normed, None, "embedding" if self._network["tied"] else "head")
        vocab = tuple(range(logits.array.shape[-1]))
        if highest is None:
            highest = integers.highest(logits.array, vocab)
        sums = integers.vocabulary_sums(logits.array, vocab, batch.targets, highest)
        loss = integers.loss(sums, batch.weights)
        self._activations[None, "vocab_max"] = highest
        self._activations[None, "vocab_sums"] = sums
        self._activations[None, "loss"] = loss
        gradient = integers.loss_grad(logits.array, vocab, batch.targets, sums, batch.weights)
        self._note(lambda: _add(logits, gradient, integers.modulus))
        return int(loss)

    # Operations that note their way back.

    def _norm(self, x: _Tensor, layer: int | None, name: str) -> _Tensor:
        weight, bias = self._parameter(layer, f"{name}.weight"), self._optional(layer, f"{name}.bias")
        found = _Tensor(self._integers.norm(x.array, weight.array, bias.array if bias else None))

        def back() -> None:
            of_x, of_weight, of_bias = self._integers.norm_grad(found.gradient, x.array, weight.array)
            self._add_all((x, of_x), (weight, of_weight), (bias, of_bias))

        self._note(back)
        return self._keep(layer, f"norm {name}.weight", found)

    def _head_norm(self, x: _Tensor, layer: int, name: str) -> _Tensor:
        """A norm over each head, where the network has one."""
        if not self._has(layer, f"{name}.weight"):
            return x
        by_head = _Tensor(x.array.reshape(*x.array.shape[:2], -1, self._network["head_size"]))
        self._note(lambda: _add(x, by_head.gradient.reshape(x.array.shape), self._integers.modulus))
        normed = self._norm(by_head, layer, name)
        found = _Tensor(normed.array.reshape(x.array.shape))
        self._note(lambda: _add(normed, found.gradient.reshape(normed.array.shape), self._integers.modulus))
        return self._keep(layer, f"norm {name}.weight", found)

    def _linear(self, x: _Tensor, layer: int | None, name: str) -> _Tensor:
        weight, bias = self._parameter(layer, f"{name}.weight"), self._optional(layer, f"{name}.bias")
        product = self._integers.linear(x.array, weight.array)
        found = _Tensor(product if bias is None else self._integers.sum(product, bias.array))

        def back() -> None:
            of_x, of_weight, of_bias = self._integers.linear_grad(found.gradient, x.array, weight.array)
            self._add_all((x, of_x), (weight, of_weight), (bias, of_bias))

        self._note(back)
        self._activations[layer, f"product {name}.weight"] = product
        return self._keep(layer, f"linear {name}.weight", found)

    def _attention(self, q: _Tensor, k: _Tensor, v: _Tensor, layer: int) -> _Tensor:
        heads, kv_heads = self._network["heads"], self._network["kv_heads"]
        order = range(q.array.shape[1])
        factors = attention_factors(tuple(order), tuple(order))

        def by_head(x: _Tensor, num_heads: int) -> Array:
            split = x.array.reshape(*x.array.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)
            return np.repeat(split, heads // num_heads, axis=1)

        def merged(array: Array, num_heads: int) -> Array:
            samples, _, length, size = array.shape
            by_key = array.reshape(samples, num_heads, heads // num_heads, length, size).sum(2)
            joined: Array = by_key.transpose(0, 2, 1, 3).reshape(samples, length, -1)
            return joined % self._integers.modulus

        arrays = by_head(q, heads), by_head(k, kv_heads), by_head(v, kv_heads)
        found = _Tensor(merged(self._integers.attention(*arrays, factors), heads))

        def back() -> None:
            of_q, of_k, of_v = self._integers.attention_grad(by_head_gradient(), *arrays, factors)
            self._add_all((q, merged(of_q, heads)), (k, merged(of_k, kv_heads)), (v, merged(of_v, kv_heads)))

        def by_head_gradient() -> Array:
            return found.gradient.reshape(*found.array.shape[:2], heads, -1).transpose(0, 2, 1, 3)

        self._note(back)
        return self._keep(layer, "attention", found)

    def _activate(self, up: _Tensor, gate: _Tensor | None, layer: int) -> _Tensor:
        found = _Tensor(self._integers.activate(up.array, gate.array if gate else None))

        def back() -> None:
            gradients = self._integers.activate_grad(found.gradient, up.array, gate.array if gate else None)
            self._add_all(*zip((up, gate), gradients, strict=False))

        self._note(back)
        return self._keep(layer, "activate", found)

    def _drop(self, x: _Tensor, layer: int | None, call: int = 0) -> _Tensor:
        if not self._network["dropout"]:
            return x
        places = [tuple(range(length)) for length in x.array.shape[1:]]
        found = _Tensor(self._integers.drop(x.array, *places, call))
        self._note(
            lambda: _add(x, self._integers.drop(found.gradient, *places, call), self._integers.modulus)
        )
        return self._keep(layer, f"drop {call}", found)

    def _dispatch(self, tokens: _Tensor, layer: int) -> _Tensor:
        """[B, S, D] -> [E, T, D]; slots that no token takes are zero."""
        dealt = self._dealt[layer]
        width = tokens.array.shape[-1]
        given = np.zeros((self._network["experts"], dealt.num_slots, width), dtype=np.int64)
        given[dealt.experts, dealt.slots] = tokens.array[:, :, None, :]
        found = _Tensor(given)

        def back() -> None:
            _add(tokens, found.gradient[dealt.experts, dealt.slots].sum(2), self._integers.modulus)

        self._note(back)
        return self._keep(layer, "dispatch", found)

    def _combine(self, answers: _Tensor, gates: _Tensor, layer: int) -> _Tensor:
        """[E, T, D] -> [B, S, D], each answer weighted by its token's gate."""
        dealt, modulus = self._dealt[layer], self._integers.modulus
        chosen = np.take_along_axis(gates.array, dealt.experts, axis=-1)
        picked = answers.array[dealt.experts, dealt.slots]
        found = _Tensor((chosen[..., None] * picked % modulus).sum(2) % modulus)

        def back() -> None:
            gradient = found.gradient[:, :, None, :]
            answers.gradient[dealt.experts, dealt.slots] = gradient * chosen[..., None] % modulus
            of_gates = np.zeros_like(gates.array)
            np.put_along_axis(
                of_gates, dealt.experts, (gradient * picked % modulus).sum(-1) % modulus, axis=-1
            )
            _add(gates, of_gates, modulus)

        self._note(back)
        return self._keep(layer, "combine", found)

    def _add_stream(self, stream: _Tensor, branch: _Tensor, layer: int, which: str) -> _Tensor:
        found = _Tensor(self._integers.sum(stream.array, branch.array))
        self._note(lambda: self._add_all((stream, found.gradient), (branch, found.gradient)))
        return self._keep(layer, which, found)

    # Bookkeeping.

    def _note(self, back: Callable[[], None]) -> None:
        self._back.append(back)

    def _keep(self, layer: int | None, what: str, tensor: _Tensor) -> _Tensor:
        self._activations[layer, what] = tensor.array
        return tensor

    def _add_all(self, *pairs: tuple[_Tensor | None, Array]) -> None:
        for tensor, gradient in pairs:
            if tensor is not None:
                _add(tensor, gradient, self._integers.modulus)

    def _parameter(self, layer: int | None, name: str) -> _Tensor:
        return self._parameters[_full(layer, name)]

    def _optional(self, layer: int | None, name: str) -> _Tensor | None:
        return self._parameters.get(_full(layer, name))

    def _has(self, layer: int, name: str) -> bool:
        return _full(layer, name) in self._parameters


def _full(layer: int | None, name: str) -> str:
    return name if layer is None else f"layers.{layer}.{name}"


def _add(tensor: _Tensor, gradient: Array, modulus: int) -> None:
    tensor.gradient = (tensor.gradient + gradient) % modulus
