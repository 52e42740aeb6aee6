"""The network's operators over the integers modulo a prime, forwards and backwards.

Exact stand-ins with the dependencies and the linearity of the real ones: what a norm takes from the whole vector, an
attention from all tokens before, a loss from the whole vocabulary, is taken here too, by polynomials. So any two ways
to compute a step agree in every digit, or one of them is wrong. Each backward function is the derivative of its
forward function.

Shapes: B samples, S tokens, D width, O outputs, E experts, T slots, H heads, K head size, V vocabulary.
"""

import numpy as np

from symbolic_pieces import PADDING, Array, Indices, as_array, positions

MODULUS = 67108859
"""The largest prime below 2^26: products of two residues leave room for a sum of 2,000 of them in 64 bits."""
NO_TARGET = -1
"""The target of a token that predicts nothing."""
_ROUTE_CONSTANT = 5


class Integers:
    """Arithmetic modulo a number.

    Args:
        modulus: A prime below 2^26, or for the derivative test its square.
    """

    def __init__(self, modulus: int = MODULUS) -> None:
        self.modulus = modulus
        self._most_summands = (2**63 - 1) // modulus**2 - 1

    def sum(self, left: Array, right: Array) -> Array:
        """Element by element."""
        return (left + right) % self.modulus

    def product(self, left: Array, right: Array) -> Array:
        """Of matrices, or of stacks of them."""
        assert left.shape[-1] <= self._most_summands, "the sum would not fit into 64 bits"
        found: Array = np.matmul(left, right) % self.modulus
        return found

    def inverse(self, number: int) -> int:
        """One over a number."""
        return pow(number, -1, self.modulus)

    # Each token by itself.

    def norm(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """Y = w x s + b with s the sum of squares over the last dim."""
        scale = self._squares(x)
        y = weight * x % self.modulus * scale % self.modulus
        return y if bias is None else (y + bias) % self.modulus

    def norm_grad(self, gradient: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
        """Gradients of x, weight and bias."""
        scale = self._squares(x)
        by_weight = gradient * weight % self.modulus
        inner = (by_weight * x % self.modulus).sum(-1, keepdims=True) % self.modulus
        of_x = (by_weight * scale + 2 * x * inner) % self.modulus
        of_weight = self._over_rows(gradient * x % self.modulus * scale % self.modulus)
        return of_x, of_weight, self._over_rows(gradient)

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """x_.D weight_OD -> y_.O, and the same for a stack of experts: x_ETD weight_EOD -> y_ETO."""
        y = self.product(x, np.swapaxes(weight, -1, -2))
        return y if bias is None else (y + bias) % self.modulus

    def linear_grad(self, gradient: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
        """Gradients of x, weight and bias."""
        of_x = self.product(gradient, weight)
        if weight.ndim == 3:
            return of_x, self.product(np.swapaxes(gradient, 1, 2), x), self._over_rows(gradient)
        rows, inputs = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        return of_x, self.product(rows.T, inputs), self._over_rows(gradient)

    def activate(self, up: Array, gate: Array | None) -> Array:
        """Up times gate plus up squared; without a gate up squared."""
        return up * (up if gate is None else (gate + up) % self.modulus) % self.modulus

    def activate_grad(self, gradient: Array, up: Array, gate: Array | None) -> list[Array]:
        """Gradients of up and, if there is one, gate."""
        slope = 2 * up if gate is None else (gate + 2 * up) % self.modulus
        of_up = gradient * (slope % self.modulus) % self.modulus
        return [of_up] if gate is None else [of_up, gradient * up % self.modulus]

    def drop(self, x: Array, sequence: Indices, width: Indices, call: int) -> Array:
        """x, or its gradient, times 0, 1 or 2: the element's place and the draw decide, not who holds it."""
        place = 3 * as_array(sequence)[:, None] + as_array(width)[None, :]
        return x * ((place + place // 3 + call) % 3) % self.modulus

    def route(self, logits: Array) -> Array:
        """The gates."""
        return (logits * logits + _ROUTE_CONSTANT) % self.modulus

    def route_grad(self, gradient: Array, logits: Array) -> Array:
        """Gradient of the router's logits."""
        return 2 * gradient * logits % self.modulus

    # Tokens among themselves.

    def attention(self, q: Array, k: Array, v: Array, factors: Array) -> Array:
        """o_i = sum over j of factor_ij (q_i . k_j) v_j, head by head.

        Args:
            q: [B, H, S, K].
            k: [B, H, S', K], as many heads as queries.
            v: As k.
            factors: [S, S']; zero where a query must not see a key.
        """
        scores = self.product(q, np.swapaxes(k, -1, -2)) * factors % self.modulus
        return self.product(scores, v)

    def attention_grad(
        self, gradient: Array, q: Array, k: Array, v: Array, factors: Array
    ) -> tuple[Array, Array, Array]:
        """Gradients of queries, keys and values, head by head."""
        scores = self.product(q, np.swapaxes(k, -1, -2)) * factors % self.modulus
        of_scores = self.product(gradient, np.swapaxes(v, -1, -2)) * factors % self.modulus
        of_q = self.product(of_scores, k)
        of_k = self.product(np.swapaxes(of_scores, -1, -2), q)
        return of_q, of_k, self.product(np.swapaxes(scores, -1, -2), gradient)

    # The vocabulary.

    def highest(self, logits: Array, vocab: Indices) -> Array:
        """For each token the largest residue among its logits, padding left out."""
        real = as_array(vocab) != PADDING
        if not real.any():
            return np.zeros(logits.shape[:-1], dtype=np.int64)
        highest: Array = logits[..., real].max(-1)
        return highest

    def vocabulary_sums(self, logits: Array, vocab: Indices, targets: Array, highest: Array) -> Array:
        """For each token [sum of squares, the target's logit plus the maximum], of the own entries: [B, S, 2].

        The owner of the target adds the maximum, so that a wrong one spoils the loss; it has no gradient.
        """
        hit = self._hit(vocab, targets)
        squares = self._squares(logits)[..., 0]
        aimed = (logits * hit).sum(-1) + highest * hit.any(-1)
        return np.stack([squares, aimed], axis=-1) % self.modulus

    def loss(self, sums: Array, weights: Array) -> Array:
        """Sum over tokens of weight times (a^2 + a b), for the two sums a and b."""
        squares, aimed = sums[..., 0], sums[..., 1]
        by_token = squares * ((squares + aimed) % self.modulus) % self.modulus
        return np.asarray((by_token * weights % self.modulus).sum() % self.modulus)

    def loss_grad(self, logits: Array, vocab: Indices, targets: Array, sums: Array, weights: Array) -> Array:
        """Gradient of the own logits."""
        squares, aimed = sums[..., 0], sums[..., 1]
        slope = (2 * squares + aimed) % self.modulus * weights % self.modulus
        of_squares = slope[..., None] * 2 % self.modulus * logits
        of_aimed = (squares * weights % self.modulus)[..., None] * self._hit(vocab, targets)
        return (of_squares + of_aimed) % self.modulus

    def _hit(self, vocab: Indices, targets: Array) -> Array:
        """Where the target of each token is: [B, S, V] of 0 and 1."""
        entries = as_array(vocab)
        hit: Array = ((targets[..., None] == entries) & (entries != PADDING)).astype(np.int64)
        return hit

    def _squares(self, x: Array) -> Array:
        squares: Array = (x * x % self.modulus).sum(-1, keepdims=True) % self.modulus
        return squares

    def _over_rows(self, array: Array) -> Array:
        total: Array = array.reshape(-1, array.shape[-1]).sum(0) % self.modulus
        return total


def attention_factors(queries: Indices, keys: Indices) -> Array:
    """What a score counts, by the positions of query and key: their distance plus 1, and zero for what comes later.

    A real attention knows positions by rotation or by learned vectors; here a wrong position costs a wrong factor.
    """
    distance = as_array(queries)[:, None] - as_array(keys)[None, :]
    return np.where(distance >= 0, distance + 1, 0)


def look_up(tokens: Array, matrix: Array, vocab: Indices) -> Array:
    """The matrix's row of each token, zero for tokens that are not in it."""
    places = _rows(tokens, vocab)
    return matrix[places] * (places >= 0).astype(np.int64)[..., None]


def look_up_grad(gradient: Array, tokens: Array, matrix: Array, vocab: Indices, modulus: int) -> Array:
    """Gradient of the matrix."""
    places = _rows(tokens, vocab)
    found = np.zeros_like(matrix)
    np.add.at(found, places[places >= 0], gradient[places >= 0])
    return found % modulus


def _rows(tokens: Array, vocab: Indices) -> Array:
    return positions(vocab, tuple(int(token) for token in tokens.reshape(-1))).reshape(tokens.shape)


class Routing:
    """Which experts each token goes to, and which of their slots it takes: balanced, and the same on every plan's ranks.

    Ranks that work on other tokens route by themselves. The tokens of such a region, counted from 0 sample by sample,
    are dealt round: token t goes to the experts (t top_k + j) mod E for j < top_k, into slot (t top_k + j) div E of
    the region's own slots.
    """

    def __init__(self, tokens: int, top_k: int, experts: int) -> None:
        dealt = np.arange(tokens * top_k, dtype=np.int64).reshape(tokens, top_k)
        self.experts = dealt % experts
        self.slots = dealt // experts

    @property
    def num_slots(self) -> int:
        """Slots that the fullest expert needs."""
        return int(self.slots.max()) + 1 if self.slots.size else 0
