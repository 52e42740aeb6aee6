"""What one layer, the head and a hop of the pipeline take one rank, for one microbatch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.cost.closed_form.cases import Cases, Floats
from trimtab.cost.closed_form.constants import Values

ELEMENT_BYTES = 2.0
"""Of an activation."""

MEMORY_SHARE = 0.85
"""Part of the memory's declared bandwidth that a copy reaches, as commonly measured; remembered, not looked up."""

TILE_ROWS, TILE_COLUMNS = 128.0, 256.0
"""Of the tile that one multiprocessor computes: the largest of CUTLASS for 16 bits (NVIDIA, Matrix Multiplication
Background), whose efficiency is the best."""

KERNELS_PER_PASS = 24.0
"""Of a dense layer, forward: 4 products, attention, and norms, residuals, activations, dropout and copies around them."""

_FLOOR_POWER = 3.0
"""With which launching and computing add up where both matter: neither is lost, the larger one decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTimes:
    """Seconds of one rank for one microbatch; collectives as far as nothing hides them.

    Args:
        forward_s, backward_s, again_s: Of a layer: computing, its gradients, and computing it again.
        forward_wait_s, backward_wait_s, again_wait_s: Waiting for collectives in each.
        head_s: Logits and loss, forward and backward.
        hop_s: From one rank of the pipeline to the next.
    """

    forward_s: Floats
    backward_s: Floats
    again_s: Floats
    forward_wait_s: Floats
    backward_wait_s: Floats
    again_wait_s: Floats
    head_s: Floats
    hop_s: Floats

    @property
    def layer_s(self) -> Floats:
        """Everything of a layer."""
        return self.forward_s + self.backward_s + self.again_s + self.wait_s

    @property
    def wait_s(self) -> Floats:
        """Waiting for collectives of a layer."""
        return self.forward_wait_s + self.backward_wait_s + self.again_wait_s


def layer_times(cases: Cases, values: Values) -> LayerTimes:
    """Of each case.

    Products by ``product_s``; fused attention over the causal triangle; unfused attention as two products and passes
    over its scores; everything else as passes over the residual stream. A layer takes no less than its launches.
    Source of the terms: Calculon (Isaev et al. 2023) and Korthikanti et al. 2022.
    """
    tokens, tensor = cases.local_tokens, cases.tensor
    products = _attention_products_s(cases, values) + _mlp_s(cases, values)
    attention_s, attention_grad_s = _scores_s(cases, values)
    stream = tokens * cases.embed * ELEMENT_BYTES
    # Without sequence parallelism norms, residuals and dropout are done by every rank of the tensor axis.
    split = np.where(cases.sequence_parallel > 0, 1 / tensor, 0.35 + 0.65 / tensor)
    around = values["elementwise_passes"] * stream * split / (cases.memory_bytes_per_s * MEMORY_SHARE)
    launches = (
        KERNELS_PER_PASS * values["kernel_s"] * np.where(cases.experts > 0, values["expert_kernels"], 1.0)
    )
    forward = _no_less_than(products + attention_s + around, launches)
    # Three products, one of them forward, never run faster than the best product alone.
    twice = np.maximum(values["backward_products"], 3 * values["product_share"] - 1)
    backward = _no_less_than(twice * products + attention_grad_s + 2 * around, 2 * launches)
    again = cases.recompute * forward * values["recompute_work"] + cases.recompute_scores * (
        attention_s + 0.3 * around
    )
    reduced = 2 * _tensor_wait_s(cases, values)
    routed = 2 * _expert_wait_s(cases, values)
    gathered = _context_wait_s(cases, values)
    return LayerTimes(
        forward_s=forward,
        backward_s=backward,
        again_s=again,
        forward_wait_s=reduced + routed + gathered,
        backward_wait_s=reduced + routed + 2 * gathered,
        again_wait_s=cases.recompute * reduced,
        head_s=_head_s(cases, values),
        hop_s=_hop_s(cases, values),
    )


def product_s(cases: Cases, values: Values, rows: Floats, depth: Floats, columns: Floats) -> Floats:
    """Seconds of a matrix product (rows, depth) x (depth, columns), the slower of computing and moving it.

    Computing runs at the best measured rate, less for waves that are not full, for a short inner size and for sizes
    that are no multiple of 64.
    """
    flops = 2 * rows * depth * columns
    share = (
        values["product_share"]
        * full_waves(rows, columns, cases.multiprocessors) ** values["wave_power"]
        * depth
        / (depth + values["half_depth"])
    )
    is_odd = (depth % 64 > 0) | (columns % 64 > 0)
    slower = (1 + values["odd_width"] * is_odd) * np.where(
        cases.is_fine_scaled > 0, values["fine_scaling"], 1.0
    )
    moved = (rows * depth + depth * columns + rows * columns) * ELEMENT_BYTES
    return np.maximum(
        flops * slower / (cases.product_flops_per_s * share),
        moved / (cases.memory_bytes_per_s * MEMORY_SHARE),
    )


def full_waves(rows: Floats, columns: Floats, multiprocessors: Floats) -> Floats:
    """Share of the multiplications that are wanted, of all that the waves of tiles have room for.

    >>> float(full_waves(np.asarray(128.0), np.asarray(256.0 * 108), np.asarray(108.0)))
    1.0
    >>> float(full_waves(np.asarray(128.0), np.asarray(256.0 * 109), np.asarray(108.0))).__round__(3)
    0.505
    """
    tiles = np.ceil(rows / TILE_ROWS) * np.ceil(columns / TILE_COLUMNS)
    waves = np.ceil(tiles / multiprocessors)
    return rows * columns / (waves * multiprocessors * TILE_ROWS * TILE_COLUMNS)


def ring_s(size_bytes: Floats, ranks: Floats, bytes_per_s: Floats, start_s: Floats) -> Floats:
    """Seconds of an all-gather or a reduce-scatter of so many bytes around a ring; 0 for one rank.

    start + n (p - 1) / (p B). Source: Thakur et al. 2005.
    """
    return np.where(ranks > 1, start_s + size_bytes * (ranks - 1) / (np.maximum(ranks, 1) * bytes_per_s), 0.0)


def has_whole_experts(cases: Cases) -> npt.NDArray[np.bool_]:
    """Where the ranks of the tensor axis hold whole experts instead of parts of each."""
    return (cases.expert > 1) & (cases.whole_experts > 0)


def _no_less_than(seconds: Floats, launches_s: Floats) -> Floats:
    return (seconds**_FLOOR_POWER + launches_s**_FLOOR_POWER) ** (1 / _FLOOR_POWER)


def _attention_products_s(cases: Cases, values: Values) -> Floats:
    """Queries, keys and values as one product, and the output."""
    tokens, embed, tensor = cases.local_tokens, cases.embed, cases.tensor
    columns = (cases.heads + 2 * cases.kv_heads) * cases.head_size / tensor
    return product_s(cases, values, tokens, embed, columns) + product_s(
        cases, values, tokens, cases.heads * cases.head_size / tensor, embed
    )


def _mlp_s(cases: Cases, values: Values) -> Floats:
    tokens, embed = cases.local_tokens, cases.embed

    def both(rows: Floats, width: Floats) -> Floats:
        return product_s(cases, values, rows, embed, width * cases.mlp_inputs) + product_s(
            cases, values, rows, width, embed
        )

    if not np.any(cases.experts > 0):
        return both(tokens, cases.mlp / cases.tensor)
    width = np.where(has_whole_experts(cases), cases.mlp, cases.mlp / cases.tensor)
    per_expert = np.maximum(
        routed_tokens(cases) * cases.top_k * cases.expert / np.maximum(cases.experts, 1), 1.0
    )
    routed = cases.experts / cases.expert * both(per_expert, width) * values["expert_work"]
    shared = np.where(
        cases.shared_mlp > 0, both(tokens, np.maximum(cases.shared_mlp, 1.0) / cases.tensor), 0.0
    )
    return np.where(cases.experts > 0, routed + shared, both(tokens, cases.mlp / cases.tensor))


def routed_tokens(cases: Cases) -> Floats:
    """Tokens of a microbatch that one rank sends to experts."""
    return np.where(has_whole_experts(cases), cases.local_tokens / cases.tensor, cases.local_tokens)


def _scores_s(cases: Cases, values: Values) -> tuple[Floats, Floats]:
    """Scores and weighted values, forward and backward."""
    scores = cases.local_tokens * cases.sequence * cases.heads / cases.tensor
    flops = 4 * scores * cases.head_size
    fused = (flops / 2) / (
        cases.attention_flops_per_s * values["attention_share"] * cases.head_size / (cases.head_size + 16)
    )
    depth = cases.head_size / (cases.head_size + values["half_depth"])
    slower = 1 + values["odd_head"] * (cases.head_size % 8 > 0)
    products = flops * slower / (cases.attention_flops_per_s * values["product_share"] * 0.5 * depth)
    passes = values["score_passes"] * scores * ELEMENT_BYTES / (cases.memory_bytes_per_s * MEMORY_SHARE)
    is_fused = cases.is_fused_attention > 0
    # A fused backward pass makes the scores again: five products instead of two (Dao et al. 2022).
    return (
        np.where(is_fused, fused, products + passes),
        np.where(is_fused, 2.5 * fused, 2 * products + 1.5 * passes),
    )


def _head_s(cases: Cases, values: Values) -> Floats:
    tokens, vocab = cases.local_tokens, cases.vocab / cases.tensor
    passes = 6 * values["head_passes"] * tokens * vocab * 4
    return 3 * product_s(cases, values, tokens, cases.embed, vocab) + passes / (
        cases.memory_bytes_per_s * MEMORY_SHARE
    )


def _tensor_wait_s(cases: Cases, values: Values) -> Floats:
    """One all-reduce of the residual stream, or its halves before and after with sequence parallelism."""
    link = np.where(cases.tensor <= cases.island_devices, cases.island_bytes_per_s, cases.site_bytes_per_s)
    stream = cases.local_tokens * cases.embed * ELEMENT_BYTES
    exposed = np.where(cases.sequence_parallel > 0, values["tensor_exposed"], 1.0) * np.where(
        cases.is_asynchronous > 0, values["asynchronous_exposed"], 1.0
    )
    starts = 1 + (cases.sequence_parallel > 0)  # a gather and a sum in place of one all-reduce
    return exposed * ring_s(
        2 * stream, cases.tensor, link * values["tensor_bandwidth"], starts * values["collective_s"]
    )


def _expert_wait_s(cases: Cases, values: Values) -> Floats:
    """One all-to-all. Between islands a token travels once to each island that wants it, as in DeepSeek-V3."""
    if not np.any(cases.experts > 0):
        return np.zeros(())
    is_inside = cases.expert <= cases.island_devices
    islands = np.maximum(cases.expert / cases.island_devices, 1.0)
    copies = np.where(is_inside, cases.top_k, islands * (1 - (1 - 1 / islands) ** np.maximum(cases.top_k, 1)))
    size = copies * routed_tokens(cases) * cases.embed * ELEMENT_BYTES
    link = np.where(is_inside, cases.island_bytes_per_s, cases.site_bytes_per_s)
    seconds = ring_s(size, cases.expert, link * values["expert_bandwidth"], values["collective_s"])
    return np.where(cases.experts > 0, values["expert_exposed"] * seconds, 0.0)


def _context_wait_s(cases: Cases, values: Values) -> Floats:
    """Gathering keys and values of the whole sequence."""
    size = (
        2
        * cases.kv_heads
        * cases.head_size
        / cases.tensor
        * cases.sequence
        * cases.microbatch
        * ELEMENT_BYTES
    )
    link = np.where(
        cases.context * cases.tensor <= cases.island_devices, cases.island_bytes_per_s, cases.site_bytes_per_s
    )
    return values["context_exposed"] * ring_s(
        size, cases.context, link * values["data_bandwidth"], values["collective_s"]
    )


def _hop_s(cases: Cases, values: Values) -> Floats:
    """Each rank of the tensor axis sends its part of the residual stream."""
    link = np.where(cases.devices <= cases.island_devices, cases.island_bytes_per_s, cases.site_bytes_per_s)
    size = cases.local_tokens * cases.embed * ELEMENT_BYTES / cases.tensor
    return np.where(cases.pipeline > 1, values["hop_s"] + values["hop_exposed"] * size / link, 0.0)
