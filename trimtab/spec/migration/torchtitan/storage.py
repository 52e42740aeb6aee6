"""FSDP: what is stored in pieces, in which types, and what waits in the host's memory.

Source: torchtitan 0.1.0, torchtitan/models/llama3/infra/parallelize.py: with ``never``, and with ``default`` where
there is a pipeline, parameters stay gathered from the forward pass to the backward pass.
"""

from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout, over
from trimtab.spec.migration.torchtitan.devices import SHARD, is_sharded

RESHARD = "parallelism.fsdp_reshard_after_forward"
OFFLOAD = "training.enable_cpu_offload"


def answer_storage(draft: Draft, layout: Layout) -> None:
    """Write what is stored in pieces and where."""
    if is_sharded(draft, layout):
        _answer_shards(draft, layout)
    else:
        draft.irrelevant(RESHARD, "nothing is stored in pieces")
    if draft.switch(OFFLOAD):
        draft.carried(OFFLOAD, "OFFLOAD params, grads, states TO host")
    else:
        draft.irrelevant(OFFLOAD, "off")
    _answer_types(draft, layout)


def _answer_shards(draft: Draft, layout: Layout) -> None:
    policy = draft.word(RESHARD) or "default"
    stays_gathered = policy == "never" or (policy == "default" and layout.pp > 1)
    tables = "grads, states" if stays_gathered else "params, grads, states"
    formula = f"STORE {tables} {over(layout.shard_axes)}"
    draft.carried(SHARD, layout.mesh, formula)
    if stays_gathered:
        why = "with a pipeline default keeps" if policy == "default" else "never keeps"
        draft.changed(RESHARD, formula, reason=f"{why} parameters gathered between the passes: ZeRO-2")
    elif policy == "default":
        reason = "every layer is let go after its forward pass, the last one too"
        draft.changed(RESHARD, formula, reason=reason)
    else:
        draft.carried(RESHARD, formula)


def _answer_types(draft: Draft, layout: Layout) -> None:
    compute, summed, kept = (
        "training.mixed_precision_param",
        "training.mixed_precision_reduce",
        "training.dtype",
    )
    products = "fp32" if draft.word(compute) == "float32" else "bf16"
    draft.carried(compute, {"train.compute": products})
    if draft.word(summed) == "bfloat16":
        draft.carried(summed, *(f"{line} IN bf16" for line in layout.sums))
    else:
        draft.irrelevant(summed, "float32, as here")
    if draft.word(kept) == "bfloat16":
        draft.carried(kept, "KEEP params, grads, states IN bf16")
    else:
        draft.irrelevant(kept, "float32, as here")
