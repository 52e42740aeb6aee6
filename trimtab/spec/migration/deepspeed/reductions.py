"""How gradients are summed and clipped: buckets, the type on the wire, compression.

A bucket of DeepSpeed counts elements, one of ours bytes. Elements have the type on the wire: DeepSpeed's is that of
the products unless ``communication_data_type`` names one; ours is fp32 unless ``IN`` names one.
"""

from collections.abc import Iterator, Sequence

from trimtab.spec.migration.deepspeed.precision import computes_in_bf16
from trimtab.spec.migration.deepspeed.training_arguments import FILLS
from trimtab.spec.migration.deepspeed.zero import SECTION, read_stage
from trimtab.spec.migration.drafts import Draft, size
from trimtab.spec.migration.layouts import Layout

WIRE = "communication_data_type"
BUCKET = f"{SECTION}.reduce_bucket_size"
QUANTIZED = f"{SECTION}.zero_quantized_gradients"
LOCO = f"{SECTION}.zeropp_loco_param"
CLIPPING = "gradient_clipping"
CLIPPING_OF_OPTIMIZER = "optimizer.params.max_grad_norm"

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of an element by the type on the wire."""

_DEFAULT_CLIP = 1.0


def answer_reductions(draft: Draft, layout: Layout) -> None:
    """Write the sum of gradients where the file says more than that there is one."""
    wire = (draft.word(WIRE) or "").casefold()
    wire = wire if wire in BYTES else ""
    sums = tuple(f"{line}{''.join(_clauses(draft, wire))}" for line in layout.sums)
    if wire:
        draft.carried(WIRE, *sums)
    else:
        draft.irrelevant(WIRE, "none: the type of the gradients")
    _answer_bucket(draft, sums, wire)
    _answer_compression(draft, sums)
    _answer_scaling(draft)
    if computes_in_bf16(draft) and WIRE not in draft and not draft.switch(QUANTIZED):
        draft.warnings.append(
            "DeepSpeed sums gradients in the type of the products, two bytes an element; the job sums in fp32. "
            f"For the same bytes on the wire add: {'; '.join(f'{line} IN bf16' for line in layout.sums)}"
        )


def _clauses(draft: Draft, wire: str) -> Iterator[str]:
    """What a REDUCE statement says behind its axes, in the order in which it is printed."""
    elements = draft.integer(BUCKET)
    if elements is not None and read_stage(draft):
        yield f" BUCKET {size(max(elements * _bytes(wire), 1))}"
    if draft.switch(QUANTIZED):
        yield " COMPRESS int8"
    if wire:
        yield f" IN {wire}"


def _bytes(wire: str) -> int:
    """Bytes of an element on the wire; ours is fp32 unless said."""
    return BYTES[wire or "fp32"]


def _answer_bucket(draft: Draft, sums: Sequence[str], wire: str) -> None:
    elements = draft.integer(BUCKET)
    if draft.is_auto(BUCKET):
        draft.irrelevant(
            BUCKET, "auto is the squared width of Hugging Face's model; ours is chosen by the runtime"
        )
    elif read_stage(draft) == 0:
        draft.irrelevant(BUCKET, "of ZeRO, which is off")
    elif elements is not None:
        reason = f"{elements} elements of {_bytes(wire)} bytes" if elements else "every tensor alone"
        draft.changed(BUCKET, *sums, reason=reason)


def _answer_compression(draft: Draft, sums: Sequence[str]) -> None:
    if draft.switch(QUANTIZED):
        reason = "int8 with the error kept for the next step, in place of int4 in two stages"
        draft.changed(QUANTIZED, *sums, reason=reason)
        draft.irrelevant(LOCO, "COMPRESS always keeps the error for the next step")
    else:
        draft.irrelevant(QUANTIZED, "off")
        draft.irrelevant(LOCO, "of quantized gradients, which are off")


def _answer_scaling(draft: Draft) -> None:
    for flag in ("prescale_gradients", "gradient_predivide_factor"):
        draft.irrelevant(flag, "sums are taken in fp32 and divided once, by the tokens of the whole batch")
    if draft.word("gradient_allreduce_op") == "sum":
        draft.impossible("gradient_allreduce_op", "the loss is a mean over the tokens of the whole batch")
    else:
        draft.irrelevant("gradient_allreduce_op", "the mean, as here")
    if draft.switch("sparse_gradients"):
        draft.impossible("sparse_gradients", "gradients of the embedding are summed as dense tensors")
    else:
        draft.irrelevant("sparse_gradients", "off")
    draft.irrelevant(
        "seq_parallel_communication_data_type", "what a split sequence exchanges has the type of the products"
    )


def answer_clipping(draft: Draft) -> None:
    """Write the largest norm of the gradient."""
    limit = draft.number(CLIPPING)
    if draft.is_auto(CLIPPING):
        fill = FILLS[CLIPPING]
        draft.changed(CLIPPING, {"train.clip": fill.default}, reason=fill.reason)
    elif limit is not None:
        draft.carried(CLIPPING, {"train.clip": limit or "off"})
    elif draft.number(CLIPPING_OF_OPTIMIZER):
        reason = "releases differ in whether they clip by it"
        draft.changed(
            CLIPPING_OF_OPTIMIZER, {"train.clip": draft.number(CLIPPING_OF_OPTIMIZER)}, reason=reason
        )
    else:
        draft.carried(CLIPPING, {"train.clip": _DEFAULT_CLIP})
        draft.warnings.append(
            "The file does not set gradient_clipping: DeepSpeed clips at 1.0 from release 0.19.4 on and not at all "
            "before it. The job clips at 1.0; set train.clip to off for the older meaning."
        )
    draft.irrelevant(CLIPPING_OF_OPTIMIZER, "gradient_clipping decides") if limit is not None else None
