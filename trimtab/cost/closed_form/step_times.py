"""What a whole step takes: the pipeline over its microbatches, what data parallelism adds, the optimizer."""

from dataclasses import dataclass

import numpy as np

from trimtab.cost.closed_form.cases import Cases, Floats
from trimtab.cost.closed_form.constants import Values
from trimtab.cost.closed_form.layers import MEMORY_SHARE, LayerTimes, has_whole_experts, ring_s


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Where the step of the slowest rank goes, in seconds; the parts add up to ``total_s``.

    Args:
        compute_s: Layers and head, forward and backward.
        recompute_s: Layers again.
        collectives_s: Waiting for collectives of the tensor, expert and context axes.
        hops_s: Waiting for the neighbours of the pipeline.
        bubble_s: Waiting for the pipeline to fill and to drain, and for its slowest stage.
        gradients_s: What the exchange of gradients takes longer than the backward pass hides.
        stored_s: What gathers of stored parameters and sums of their gradients take longer.
        optimizer_s: The update.
        fixed_s: The host, each microbatch and each step.
        straggling_s: Waiting for the slowest of many devices.
    """

    compute_s: Floats
    recompute_s: Floats
    collectives_s: Floats
    hops_s: Floats
    bubble_s: Floats
    gradients_s: Floats
    stored_s: Floats
    optimizer_s: Floats
    fixed_s: Floats
    straggling_s: Floats

    @property
    def total_s(self) -> Floats:
        """Of the step."""
        return (
            self.compute_s
            + self.recompute_s
            + self.collectives_s
            + self.hops_s
            + self.bubble_s
            + self.gradients_s
            + self.stored_s
            + self.optimizer_s
            + self.fixed_s
            + self.straggling_s
        )


def step_times(cases: Cases, layer: LayerTimes, values: Values) -> StepTimes:
    """Of each case, from what its layers take.

    A pipeline takes its slowest stage once for each microbatch and a mean stage for each of the (p - 1) / v that fill
    it (Narayanan et al. 2021, section 2.2). Where layers, embedding and head together divide evenly over the stages and
    layers alone do not, embedding and head stand for one layer each, as in BLOOM and Llama 3.1 405B.
    """
    runs, stages = cases.microbatches, cases.pipeline
    held, last_held = stage_layers(cases)
    mean = cases.layers / stages
    # A rank meets two hops in each direction of every piece that it holds.
    hops = 2 * layer.hop_s * cases.virtual
    slowest = np.maximum(held * layer.layer_s, last_held * layer.layer_s + layer.head_s)
    evenly = mean * layer.layer_s + layer.head_s / stages
    fill = (
        cases.flushes * cases.fill * (stages - 1) / cases.virtual * (evenly + hops + values["microbatch_s"])
    )
    gradients_s, stored_s = _data_s(cases, values)
    parts = {
        "compute_s": runs * (mean * (layer.forward_s + layer.backward_s) + layer.head_s / stages),
        "recompute_s": runs * mean * layer.again_s,
        "collectives_s": runs * mean * layer.wait_s,
        "hops_s": runs * hops,
        "bubble_s": runs * (slowest - evenly) + fill,
        "gradients_s": gradients_s,
        "stored_s": stored_s,
        "optimizer_s": _optimizer_s(cases, values),
        "fixed_s": runs * values["microbatch_s"] + values["step_s"],
    }
    total = sum(parts.values(), np.zeros(()))
    return StepTimes(straggling_s=total * values["straggling"] * np.log(cases.devices), **parts)


def stage_layers(cases: Cases) -> tuple[Floats, Floats]:
    """Layers of the fullest stage and of the last one."""
    stages, pieces = cases.pipeline, cases.pipeline * cases.virtual
    counts_ends = (cases.layers % pieces > 0) & ((cases.layers + 2) % pieces == 0)
    held = np.where(counts_ends, (cases.layers + 2) / stages, np.ceil(cases.layers / stages))
    last = np.where(stages > 1, np.where(counts_ends, held - 1, np.floor(cases.layers / stages)), held)
    return held, last


def expert_parameters(cases: Cases) -> Floats:
    """Elements of one layer's experts that one rank holds when nothing is stored in pieces."""
    if not np.any(cases.experts > 0):
        return np.zeros(())
    width = np.where(has_whole_experts(cases), cases.mlp, cases.mlp / cases.tensor)
    held = cases.experts / cases.expert * width * cases.embed * (1 + cases.mlp_inputs)
    return np.where(cases.experts > 0, held, 0.0)


def layer_parameters(cases: Cases) -> Floats:
    """Elements of one layer that one rank holds when nothing is stored in pieces."""
    attention = cases.embed * (2 * cases.heads + 2 * cases.kv_heads) * cases.head_size / cases.tensor
    matrices = 1 + cases.mlp_inputs
    shared = cases.embed * cases.shared_mlp * matrices / cases.tensor
    dense = cases.embed * cases.mlp * matrices / cases.tensor
    return attention + np.where(cases.experts > 0, expert_parameters(cases) + shared, dense)


def _rank_parameters(cases: Cases) -> Floats:
    """Elements of a mean stage, with an embedding or a head."""
    return layer_parameters(cases) * cases.layers / cases.pipeline + cases.vocab * cases.embed / cases.tensor


def _data_s(cases: Cases, values: Values) -> tuple[Floats, Floats]:
    """What the exchange of gradients, or of stored parameters, takes beyond what is hidden."""
    ranks = cases.data * cases.context
    neighbours = np.minimum(np.maximum(cases.island_devices / cases.tensor, 1.0), np.maximum(ranks, 1.0))
    is_inside = cases.tensor * ranks <= cases.island_devices
    # Every rank of the group in an island sends what leaves it over a link of its own.
    across = np.minimum(cases.site_bytes_per_s * neighbours, cases.island_bytes_per_s)
    islands = np.maximum(cases.devices / cases.island_devices, 1.0)
    link = (
        np.where(is_inside, cases.island_bytes_per_s, across)
        * values["data_bandwidth"]
        * islands ** -values["congestion"]
    )
    size = _rank_parameters(cases) * cases.exchanged_bytes
    start = values["collective_s"]
    once = ring_s(2 * size, ranks, link, 4 * start) * values["data_exposed"]
    # Layer by layer for every microbatch: two gathers and one sum, or the sum alone.
    layer_by_layer = (
        cases.microbatches * ring_s(size, ranks, link, start * cases.layers) * values["stored_exposed"]
    )
    pieces = once * values["pieces_exposed"]
    exchanged = np.select([cases.store == 1, cases.store == 2], [pieces, layer_by_layer + pieces / 2], once)
    return np.where(cases.store >= 3, 0.0, exchanged), np.where(cases.store >= 3, 3 * layer_by_layer, 0.0)


def _optimizer_s(cases: Cases, values: Values) -> Floats:
    pieces = np.where(cases.store >= 1, cases.data * cases.context, 1.0)
    moved = _rank_parameters(cases) * (16 / pieces + 4)
    return values["optimizer_passes"] * moved / (cases.memory_bytes_per_s * MEMORY_SHARE)
