"""What one rank computes by itself: an operator on the pieces that it holds.

An operator takes what is there. Whether it is what the plan declares is not asked here: a plan that forgets a sum
computes on with a summand, as real ranks would.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from symbolic_integers import Integers, Routing, attention_factors, look_up, look_up_grad
from symbolic_pieces import PADDING, Array, Extent, Indices, MisfitError, Piece, positions, restrict
from symbolic_plan import Operator


@dataclass(frozen=True, kw_only=True, slots=True)
class Local:
    """One operator on one rank.

    Args:
        operator: To be computed.
        inputs: Pieces in the operator's order.
        parameters: The same.
        declared: What the rank shall have of each output.
        integers: Arithmetic.
        network: ``heads``, ``kv_heads``, ``head_size``, ``experts``, ``top_k``.
        weights: What each token of the microbatch counts in the loss, [B, S] of all ranks.
    """

    operator: Operator
    inputs: Sequence[Piece]
    parameters: Sequence[Piece]
    declared: Sequence[Extent]
    integers: Integers
    network: Mapping[str, Any]
    weights: Array


def compute(local: Local) -> list[Piece]:
    """The pieces of the outputs.

    Raises: MisfitError or ValueError if the pieces cannot be put together.
    """
    return _COMPUTE[local.operator.kind](local)


def grouped_heads(piece: Piece, head_size: int) -> tuple[Array, Indices]:
    """[B, S, H K] as [B, H, S, K], and which heads these are.

    Raises: MisfitError if a head is cut in the middle.
    """
    elements = piece.extent.indices[2]
    heads = tuple(element // head_size for element in elements[::head_size])
    if elements != tuple(head * head_size + at for head in heads for at in range(head_size)):
        raise MisfitError("a head is cut in the middle")
    samples, length, _ = piece.array.shape
    return piece.array.reshape(samples, length, len(heads), head_size).transpose(0, 2, 1, 3), heads


def merged_heads(array: Array) -> Array:
    """[B, H, S, K] as [B, S, H K]."""
    samples, heads, length, size = array.shape
    return array.transpose(0, 2, 1, 3).reshape(samples, length, heads * size)


def keys_of_queries(heads: Indices, kv_heads: Indices, network: Mapping[str, Any]) -> Array:
    """For each query head the place of its key head among those that the rank has.

    Raises: MisfitError if one is not there.
    """
    shared = network["heads"] // network["kv_heads"]
    places = positions(kv_heads, tuple(head // shared for head in heads))
    if (places < 0).any():
        raise MisfitError("a query head is on a rank that does not have its keys")
    return places


def over_shared(gradient: Array, places: Array, num_kv_heads: int, modulus: int) -> Array:
    """The gradient of each key head from those of all query heads that share it."""
    found = np.zeros((gradient.shape[0], num_kv_heads, *gradient.shape[2:]), dtype=np.int64)
    for place, of_head in zip(places, np.moveaxis(gradient, 1, 0), strict=True):
        found[:, place] += of_head
    return found % modulus


def _embed(local: Local) -> list[Piece]:
    (tokens,), (matrix,) = local.inputs, local.parameters
    vocab, width = matrix.extent.indices
    array = look_up(tokens.array, matrix.array, vocab)
    return [Piece(Extent((*tokens.extent.indices, width)), array)]


def _embed_grad(local: Local) -> list[Piece]:
    (gradient, tokens), (matrix,) = local.inputs, local.parameters
    vocab = matrix.extent.indices[0]
    array = look_up_grad(gradient.array, tokens.array, matrix.array, vocab, local.integers.modulus)
    return [Piece(matrix.extent, array)]


def _add_positions(local: Local) -> list[Piece]:
    (x,), (table,) = local.inputs, local.parameters
    _, sequence, width = x.extent.indices
    array = local.integers.sum(x.array, table.array[_corner(table, sequence, width)])
    return [Piece(x.extent, array)]


def _add_positions_grad(local: Local) -> list[Piece]:
    (gradient,), (table,) = local.inputs, local.parameters
    _, sequence, width = gradient.extent.indices
    found = np.zeros_like(table.array)
    found[_corner(table, sequence, width)] = gradient.array.sum(0) % local.integers.modulus
    return [Piece(table.extent, found)]


def _corner(table: Piece, *wanted: Indices) -> tuple[Array, ...]:
    """Where rows and columns of a table stand in the rank's part of it."""
    places = [positions(found, some) for found, some in zip(table.extent.indices, wanted, strict=True)]
    if any((found < 0).any() for found in places):
        raise MisfitError("a part of a table is needed that the rank does not have")
    return np.ix_(*places)


def _norm(local: Local) -> list[Piece]:
    (x,), (weight, *bias) = local.inputs, local.parameters
    array = local.integers.norm(_by_vector(x.array, weight), weight.array, bias[0].array if bias else None)
    return [Piece(x.extent, array.reshape(x.array.shape))]


def _norm_grad(local: Local) -> list[Piece]:
    (gradient, x), (weight, *bias) = local.inputs, local.parameters
    of_x, of_weight, of_bias = local.integers.norm_grad(
        _by_vector(gradient.array, weight), _by_vector(x.array, weight), weight.array
    )
    found = [Piece(x.extent, of_x.reshape(x.array.shape)), Piece(weight.extent, of_weight)]
    return [*found, *(Piece(parameter.extent, of_bias) for parameter in bias)]


def _by_vector(array: Array, weight: Piece) -> Array:
    """The vectors that are normalised, one for each weight vector: whole rows, or the heads in them."""
    return array.reshape(*array.shape[:-1], -1, weight.array.shape[0])


def _linear(local: Local) -> list[Piece]:
    (x,), (weight, *bias) = local.inputs, local.parameters
    array = local.integers.linear(x.array, weight.array, bias[0].array if bias else None)
    return [Piece(Extent((*x.extent.indices[:-1], weight.extent.indices[-2])), array)]


def _linear_grad(local: Local) -> list[Piece]:
    (gradient, x), (weight, *bias) = local.inputs, local.parameters
    of_x, of_weight, of_bias = local.integers.linear_grad(gradient.array, x.array, weight.array)
    extent = Extent((*gradient.extent.indices[:-1], weight.extent.indices[-1]))
    found = [Piece(extent, of_x), Piece(weight.extent, of_weight)]
    return [*found, *(Piece(parameter.extent, of_bias) for parameter in bias)]


def _add_bias(local: Local) -> list[Piece]:
    (x,), (bias,) = local.inputs, local.parameters
    (places,) = _corner(bias, x.extent.indices[-1])
    return [Piece(x.extent, local.integers.sum(x.array, bias.array[places]))]


def _add_bias_grad(local: Local) -> list[Piece]:
    (gradient,), (bias,) = local.inputs, local.parameters
    (places,) = _corner(bias, gradient.extent.indices[-1])
    found = np.zeros_like(bias.array)
    found[places] = gradient.array.reshape(-1, gradient.array.shape[-1]).sum(0) % local.integers.modulus
    return [Piece(bias.extent, found)]


def _attention(local: Local) -> list[Piece]:
    q, k, v = local.inputs
    return [Piece(q.extent, attend(local.integers, local.network, q, k, v))]


def attend(integers: Integers, network: Mapping[str, Any], q: Piece, k: Piece, v: Piece) -> Array:
    """What some keys and values add to the outputs of some queries."""
    size = network["head_size"]
    (queries, heads), (keys, kv_heads), (values, _) = (grouped_heads(piece, size) for piece in (q, k, v))
    places = keys_of_queries(heads, kv_heads, network)
    factors = attention_factors(q.extent.indices[1], k.extent.indices[1])
    return merged_heads(integers.attention(queries, keys[:, places], values[:, places], factors))


def _attention_grad(local: Local) -> list[Piece]:
    gradient, q, k, v = local.inputs
    arrays = attend_grad(local.integers, local.network, gradient, q, k, v)
    return [Piece(piece.extent, array) for piece, array in zip((q, k, v), arrays, strict=True)]


def attend_grad(
    integers: Integers, network: Mapping[str, Any], gradient: Piece, q: Piece, k: Piece, v: Piece
) -> tuple[Array, Array, Array]:
    """What some keys and values add to the gradient of some queries, and the queries to theirs."""
    size = network["head_size"]
    (queries, heads), (keys, kv_heads), (values, _) = (grouped_heads(piece, size) for piece in (q, k, v))
    places = keys_of_queries(heads, kv_heads, network)
    factors = attention_factors(q.extent.indices[1], k.extent.indices[1])
    of_q, of_k, of_v = integers.attention_grad(
        grouped_heads(gradient, size)[0], queries, keys[:, places], values[:, places], factors
    )
    of_k, of_v = (over_shared(found, places, len(kv_heads), integers.modulus) for found in (of_k, of_v))
    return merged_heads(of_q), merged_heads(of_k), merged_heads(of_v)


def _activate(local: Local) -> list[Piece]:
    up, *gate = _alike(local)
    return [Piece(up.extent, local.integers.activate(up.array, gate[0].array if gate else None))]


def _activate_grad(local: Local) -> list[Piece]:
    gradient, up, *gate = _alike(local)
    found = local.integers.activate_grad(gradient.array, up.array, gate[0].array if gate else None)
    return [Piece(up.extent, array) for array in found]


def _drop(local: Local) -> list[Piece]:
    (x,) = _alike(local)
    _, sequence, width = x.extent.indices
    return [Piece(x.extent, local.integers.drop(x.array, sequence, width, local.operator.call))]


def _sum(local: Local) -> list[Piece]:
    first, *others = _alike(local)
    array = first.array
    for other in others:
        array = local.integers.sum(array, other.array)
    return [Piece(first.extent, array)]


def _alike(local: Local) -> list[Piece]:
    """The inputs, each cut down to what the output shall have, for what goes element by element."""
    return [restrict(piece, local.declared[0]) for piece in local.inputs]


def _route(local: Local) -> list[Piece]:
    (logits,) = local.inputs
    return [Piece(logits.extent, local.integers.route(logits.array))]


def _route_grad(local: Local) -> list[Piece]:
    gradient, logits = local.inputs
    gradient = restrict(gradient, logits.extent)
    return [Piece(logits.extent, local.integers.route_grad(gradient.array, logits.array))]


@dataclass(frozen=True, slots=True)
class _Dealt:
    """Tokens of a rank with one of its experts each: where the token, the expert, the slot and the gate stand.

    Args:
        tokens: Flat place of the token among the rank's.
        experts: Place of the expert among those that the rank has.
        slots: Place of the slot among those that the rank has.
        routes: Number of the expert.
    """

    tokens: Array
    experts: Array
    slots: Array
    routes: Array


def _dealt(local: Local, tokens: Extent, experts: Indices, slots: Indices) -> _Dealt:
    """How a rank's tokens meet the experts that it has.

    Raises: MisfitError if there are more tokens than slots.
    """
    samples, sequence = tokens.indices[:2]
    routing = Routing(len(samples) * len(sequence), local.network["top_k"], local.network["experts"])
    if routing.num_slots > len(slots):
        raise MisfitError(
            f"a rank's tokens need {routing.num_slots} slots of each expert; it has {len(slots)}"
        )
    places = positions(experts, tuple(range(local.network["experts"])))[routing.experts]
    rows, columns = np.nonzero(places >= 0)
    return _Dealt(rows, places[rows, columns], routing.slots[rows, columns], routing.experts[rows, columns])


def _dispatch(local: Local) -> list[Piece]:
    tokens, gates = local.inputs
    experts, slots, _ = local.declared[0].indices
    width = tokens.extent.indices[2]
    dealt = _dealt(local, gates.extent, experts, slots)
    array = np.zeros((len(experts), len(slots), len(width)), dtype=np.int64)
    array[dealt.experts, dealt.slots] = tokens.array.reshape(-1, len(width))[dealt.tokens]
    return [Piece(Extent((experts, slots, width)), array)]


def _dispatch_grad(local: Local) -> list[Piece]:
    gradient, gates = local.inputs
    experts, slots, width = gradient.extent.indices
    samples, sequence = gates.extent.indices[:2]
    dealt = _dealt(local, gates.extent, experts, slots)
    array = np.zeros((len(samples) * len(sequence), len(width)), dtype=np.int64)
    np.add.at(array, dealt.tokens, gradient.array[dealt.experts, dealt.slots])
    by_token = array.reshape(len(samples), len(sequence), len(width)) % local.integers.modulus
    return [Piece(Extent((samples, sequence, width)), by_token)]


def _combine(local: Local) -> list[Piece]:
    answers, gates = local.inputs
    experts, slots, width = answers.extent.indices
    samples, sequence = gates.extent.indices[:2]
    dealt = _dealt(local, gates.extent, experts, slots)
    weighted = _chosen(gates, dealt)[:, None] * answers.array[dealt.experts, dealt.slots]
    array = np.zeros((len(samples) * len(sequence), len(width)), dtype=np.int64)
    np.add.at(array, dealt.tokens, weighted % local.integers.modulus)
    by_token = array.reshape(len(samples), len(sequence), len(width)) % local.integers.modulus
    return [Piece(Extent((samples, sequence, width)), by_token)]


def _combine_grad(local: Local) -> list[Piece]:
    gradient, answers, gates = local.inputs
    experts, slots, width = answers.extent.indices
    dealt, modulus = _dealt(local, gates.extent, experts, slots), local.integers.modulus
    by_token = gradient.array.reshape(-1, len(width))[dealt.tokens]
    of_answers = np.zeros_like(answers.array)
    of_answers[dealt.experts, dealt.slots] = by_token * _chosen(gates, dealt)[:, None] % modulus
    of_gates = np.zeros((gates.array.shape[0] * gates.array.shape[1], gates.array.shape[2]), dtype=np.int64)
    products = by_token * answers.array[dealt.experts, dealt.slots] % modulus
    of_gates[dealt.tokens, dealt.routes] = products.sum(-1) % modulus
    return [Piece(answers.extent, of_answers), Piece(gates.extent, of_gates.reshape(gates.array.shape))]


def _chosen(gates: Piece, dealt: _Dealt) -> Array:
    return gates.array.reshape(-1, gates.array.shape[-1])[dealt.tokens, dealt.routes]


def _vocab_max(local: Local) -> list[Piece]:
    (logits,) = local.inputs
    array = local.integers.highest(logits.array, logits.extent.indices[2])
    return [Piece(Extent(logits.extent.indices[:2]), array)]


def _vocab_sums(local: Local) -> list[Piece]:
    logits, targets, highest = local.inputs
    array = local.integers.vocabulary_sums(
        logits.array, logits.extent.indices[2], targets.array, highest.array
    )
    return [Piece(Extent((*logits.extent.indices[:2], (0, 1))), array)]


def _head_sums(local: Local) -> list[Piece]:
    x, targets = local.inputs
    vocab = local.parameters[0].extent.indices[0]
    logits = _linear(replace(local, inputs=[x]))[0].array
    highest = local.integers.highest(logits, vocab)
    sums = local.integers.vocabulary_sums(logits, vocab, targets.array, highest)
    indices = x.extent.indices[:2]
    return [Piece(Extent(indices), highest), Piece(Extent((*indices, (0, 1))), sums)]


def _rescale(local: Local) -> list[Piece]:
    """The owner of a target, whose second sum is not zero, has added the own maximum to it: it adds that of all instead."""
    sums, own, highest = local.inputs
    array = sums.array.copy()
    array[..., 1] += np.where(array[..., 1] != 0, highest.array - own.array, 0)
    return [Piece(sums.extent, array % local.integers.modulus)]


def _loss_of_sums(local: Local) -> list[Piece]:
    targets, _, sums = local.inputs
    return [Piece(Extent(()), local.integers.loss(sums.array, _token_weights(local, targets)))]


def _head_sums_grad(local: Local) -> list[Piece]:
    x, targets, _, sums = local.inputs
    logits = _linear(replace(local, inputs=[x]))[0]
    gradient = local.integers.loss_grad(
        logits.array, logits.extent.indices[2], targets.array, sums.array, _token_weights(local, targets)
    )
    return _linear_grad(replace(local, inputs=[Piece(logits.extent, gradient), x]))


def _loss(local: Local) -> list[Piece]:
    logits, targets, *sums = local.inputs
    array = local.integers.loss(_sums(local, logits, targets, sums), _token_weights(local, targets))
    return [Piece(Extent(()), array)]


def _loss_grad(local: Local) -> list[Piece]:
    logits, targets, *sums = local.inputs
    array = local.integers.loss_grad(
        logits.array,
        logits.extent.indices[2],
        targets.array,
        _sums(local, logits, targets, sums),
        _token_weights(local, targets),
    )
    return [Piece(logits.extent, array)]


def _sums(local: Local, logits: Piece, targets: Piece, given: Sequence[Piece]) -> Array:
    """Over the vocabulary: as they arrived behind the maximum, which they count already, or from the own logits."""
    if given:
        return given[-1].array
    vocab = logits.extent.indices[2]
    highest = local.integers.highest(logits.array, vocab)
    return local.integers.vocabulary_sums(logits.array, vocab, targets.array, highest)


def _token_weights(local: Local, targets: Piece) -> Array:
    samples, sequence = targets.extent.indices
    if PADDING in samples or PADDING in sequence:
        raise MisfitError("a rank was given samples or tokens that do not exist")
    return local.weights[np.ix_(samples, sequence)]


def _update(local: Local) -> list[Piece]:
    gradient, old = local.inputs
    gradient = restrict(gradient, old.extent)
    return [Piece(old.extent, (old.array - 3 * gradient.array) % local.integers.modulus)]


_COMPUTE: Mapping[str, Callable[[Local], list[Piece]]] = {
    "embed": _embed,
    "add_positions": _add_positions,
    "norm": _norm,
    "linear": _linear,
    "add_bias": _add_bias,
    "attention": _attention,
    "activate": _activate,
    "add": _sum,
    "drop": _drop,
    "route": _route,
    "dispatch": _dispatch,
    "expert_linear": _linear,
    "combine": _combine,
    "vocab_max": _vocab_max,
    "vocab_sums": _vocab_sums,
    "loss": _loss,
    "head_sums": _head_sums,
    "rescale": _rescale,
    "loss_of_sums": _loss_of_sums,
    "embed_grad": _embed_grad,
    "add_positions_grad": _add_positions_grad,
    "norm_grad": _norm_grad,
    "linear_grad": _linear_grad,
    "add_bias_grad": _add_bias_grad,
    "attention_grad": _attention_grad,
    "activate_grad": _activate_grad,
    "drop_grad": _drop,
    "route_grad": _route_grad,
    "dispatch_grad": _dispatch_grad,
    "expert_linear_grad": _linear_grad,
    "combine_grad": _combine_grad,
    "loss_grad": _loss_grad,
    "head_sums_grad": _head_sums_grad,
    "sum": _sum,
    "update": _update,
}
