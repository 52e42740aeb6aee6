"""How much memory a device needs at the peak of a step, by class."""

from dataclasses import dataclass

import numpy as np

from trimtab.cost.closed_form.cases import Cases, Floats
from trimtab.cost.closed_form.constants import Values
from trimtab.cost.closed_form.step_times import expert_parameters, layer_parameters, stage_layers


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """Bytes of one device at the peak.

    Args:
        state_bytes: Parameters, gradients, optimizer states, on the rank that holds most of them.
        first_state_bytes: The same on the first rank, which has the embedding and perhaps a layer less.
        gathered_bytes: Parameters that are whole while they are used.
        posted_bytes: What has been sent to neighbouring stages and is kept until the step ends.
        first_bytes, last_bytes: Activations on the first and on the last rank of the pipeline, logits among them.
        overhead_bytes: Context, libraries, buckets.
        fragmentation: What the allocator holds over what is used.
    """

    state_bytes: Floats
    first_state_bytes: Floats
    gathered_bytes: Floats
    posted_bytes: Floats
    first_bytes: Floats
    last_bytes: Floats
    overhead_bytes: Floats
    fragmentation: Floats

    @property
    def first_rank_bytes(self) -> Floats:
        """Of the first rank, whose figure logs print."""
        return self._total(self.first_state_bytes, self.first_bytes)

    @property
    def largest_bytes(self) -> Floats:
        """Of the rank that needs most."""
        return self._total(self.state_bytes, np.maximum(self.first_bytes, self.last_bytes))

    def _total(self, states: Floats, activations: Floats) -> Floats:
        used = states + self.gathered_bytes + self.posted_bytes + activations
        return used * self.fragmentation + self.overhead_bytes


def peak_memory(cases: Cases, values: Values) -> PeakMemory:
    """Of each case.

    Activations of a layer: tokens x width x (10 + 24 / t) bytes and 5 bytes a score where attention is not fused
    (Korthikanti et al. 2022, equation 2). The first stage keeps min(m, p) (1 + (p - 1) / (p v)) microbatches, the last
    keeps one and holds the logits. Software that keeps what it has sent says so by a constant ``posted``: messages that live, for
    each microbatch and stage.
    """
    held, _ = stage_layers(cases)
    counted = np.where(held * cases.pipeline > cases.layers + 1, held - 1, held)
    per_layer = layer_parameters(cases)
    # The first rank has the embedding; one that has all, or the last stage too, has the head as well.
    has_both = (cases.pipeline == 1) | (cases.ends_together > 0)
    matrices = np.where(has_both, np.where(cases.pipeline == 1, 2 - cases.is_tied, 2.0), 1.0)
    parameters = per_layer * counted + matrices * cases.vocab * cases.embed / cases.tensor
    layer = layer_bytes(cases, values)
    flight = kept_microbatches(cases)
    part = np.where(cases.recompute_scores > 0, SELECTIVE_SHARE, 1.0)
    per_microbatch = counted * (
        cases.recompute * layer.border_bytes + (1 - cases.recompute) * layer.kept_bytes * part
    )
    working = np.where(cases.recompute > 0, layer.working_bytes, 0.0)
    logits = logit_bytes(cases, values)
    alone = per_microbatch + working + logits
    experts = expert_parameters(cases)
    first = values["state"] * _state_bytes(cases, parameters, experts * counted)
    return PeakMemory(
        state_bytes=np.maximum(
            first, values["state"] * _state_bytes(cases, per_layer * held, experts * held)
        ),
        first_state_bytes=first,
        gathered_bytes=np.where(cases.store >= 3, 8 * per_layer, 0.0),
        posted_bytes=np.where(
            cases.pipeline > 1,
            values.get("posted", 0.0)
            * _stream_bytes(cases)
            * cases.microbatches
            * np.maximum(cases.virtual, 1.0),
            0.0,
        ),
        first_bytes=np.where(
            cases.pipeline > 1,
            per_microbatch * flight + working + logits * cases.ends_together,
            alone,
        ),
        last_bytes=alone,
        overhead_bytes=1e9 * (values["base_gb"] + values["bucket_gb"] * (cases.devices > 1)),
        fragmentation=values["fragmentation"],
    )


SELECTIVE_SHARE = 0.55
"""Part of the activations that is kept when every other product and all cheap operators are computed again, as torchtitan
does: half of the products and the inputs around them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBytes:
    """Activations of one layer and one microbatch on one rank.

    Args:
        kept_bytes: Where nothing is computed again.
        border_bytes: What stays of a layer that is.
        working_bytes: That live for a moment on a rank that computes layers again.
    """

    kept_bytes: Floats
    border_bytes: Floats
    working_bytes: Floats


def layer_bytes(cases: Cases, values: Values) -> LayerBytes:
    """Of each case."""
    kept = _kept_by_layer(cases)
    return LayerBytes(
        kept_bytes=values["activations"] * kept,
        border_bytes=values["borders"] * _stream_bytes(cases),
        working_bytes=values["working_set"] * kept,
    )


def _stream_bytes(cases: Cases) -> Floats:
    """What a layer hands to the next, in 16 bits."""
    return 2 * cases.local_tokens * cases.embed / np.where(cases.sequence_parallel > 0, cases.tensor, 1.0)


def kept_microbatches(cases: Cases) -> Floats:
    """Whose activations the first rank of a pipeline keeps at once."""
    in_flush = cases.microbatches / cases.flushes
    twice = np.where(cases.virtual > 1, (cases.pipeline - 1) / (cases.pipeline * cases.virtual), 0.0)
    kept = np.where(cases.keeps_all > 0, in_flush, np.minimum(in_flush, cases.pipeline))
    return np.where(cases.pipeline > 1, kept * (1 + twice), 1.0)


def logit_bytes(cases: Cases, values: Values) -> Floats:
    """Logits of one microbatch and their gradients."""
    return values["logit_bytes"] * cases.local_tokens * cases.vocab / cases.tensor


def _kept_by_layer(cases: Cases) -> Floats:
    tokens, tensor = cases.local_tokens, cases.tensor
    alike = 10 / np.where(cases.sequence_parallel > 0, tensor, 1.0)
    gated = 12 + 6 * cases.mlp / cases.embed  # gate, up and their product in 16 bits
    split = np.where(cases.mlp_inputs > 1, gated, 24.0) / tensor
    scores = np.where(cases.is_fused_attention > 0, 0.0, 5 * cases.heads * cases.sequence * tokens / tensor)
    return tokens * cases.embed * (alike + split) + scores


def _state_bytes(cases: Cases, parameters: Floats, experts: Floats) -> Floats:
    """Experts are spread over a part of data parallelism already, and stored over the rest of it."""
    replicas = cases.data * cases.context
    whole = cases.keeps_gathered * (cases.store >= 3) * (cases.pipeline > 1) * GATHERED_BYTES

    def kept(pieces: Floats) -> Floats:
        return sum(
            (
                np.where(cases.store >= stored_from, size / pieces, size)
                for size, stored_from in (
                    (cases.state_bytes, 1),
                    (cases.gradient_bytes, 2),
                    (cases.weight_bytes, 3),
                )
            ),
            whole,
        )

    return (parameters - experts) * kept(replicas) + experts * kept(replicas / cases.expert)


GATHERED_BYTES = 6.0
"""Of a parameter that stays gathered: itself in 16 bits and its gradient in fp32, as torchtitan keeps them."""
