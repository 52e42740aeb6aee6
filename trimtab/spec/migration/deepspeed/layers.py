"""What becomes of layers: stages of a pipeline, activations that are computed again, experts."""

from trimtab.spec.migration.deepspeed.devices import EXPERTS, STAGES
from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout

WHOLE_LAYERS = "layer >= 0 AND name NOT LIKE '%.mlp_residual'"
"""All of a layer but its output, which is the input of the next; embedding and head, whose layer is NULL, are left out."""

OUTPUTS = "name LIKE '%.mlp_residual'"
"""The outputs of layers, which they are computed again from."""

RECOMPUTE = f"RECOMPUTE activations WHERE {WHOLE_LAYERS}"

CHECKPOINTS_ON_HOST = "activation_checkpointing.cpu_checkpointing"

PARTITION = "pipeline.partition"
INTERVAL = "pipeline.activation_checkpoint_interval"
BALANCE = {"best": "time", "parameters": "params", "uniform": "layers"}
"""What stages are balanced by: their words, and ours."""

_CHECKPOINTING = "activation_checkpointing."
_PIPELINE = "pipeline."
_EXPERT_PARALLEL = "expert_parallel."


def answer_layers(draft: Draft, layout: Layout) -> None:
    """Write stages, recomputation and the split of experts."""
    _answer_pipeline(draft, layout)
    _answer_checkpointing(draft)
    _answer_experts(draft, layout)


def _answer_pipeline(draft: Draft, layout: Layout) -> None:
    method = (draft.word(PARTITION) or "best").casefold()
    if layout.pp > 1:
        balance = BALANCE.get(method, "")
        split = f"SPLIT layers OVER pp USING 1f1b{f' BALANCE BY {balance}' if balance else ''}"
        draft.carried(STAGES, layout.mesh, split)
        if balance:
            draft.carried(PARTITION, split)
        else:
            draft.impossible(PARTITION, "stages are balanced by layers, params or time, or placed with PLACE")
    elif draft.is_auto(STAGES):
        draft.irrelevant(STAGES, "auto: the script's own PipelineModule says how many")
    else:
        draft.irrelevant(STAGES, "one stage is no pipeline")
    if layout.pp == 1:
        draft.irrelevant(PARTITION, "the script's own PipelineModule says how layers are shared out")
    if draft.integer(INTERVAL):
        reason = "the interval counts layers that are computed again together; here each is"
        draft.changed(INTERVAL, RECOMPUTE, reason=reason)
    else:
        draft.irrelevant(INTERVAL, "0: nothing is computed again")
    for key in ("seed_layers", "pipe_partitioned", "grad_partitioned", "use_reentrant", "seed_fn"):
        draft.irrelevant(f"{_PIPELINE}{key}", "how stages hand on tensors is the runtime's affair")


def _answer_checkpointing(draft: Draft) -> None:
    """The section only configures a function that the model's code has to call."""
    working = (
        "partition_activations",
        "cpu_checkpointing",
        "contiguous_memory_optimization",
        "number_checkpoints",
    )
    is_on = any(draft.value(f"{_CHECKPOINTING}{key}") for key in working)
    reason = (
        "the section configures a function that the model's code calls; here every layer is computed again"
    )
    if not is_on:
        for key in (*working, "synchronize_checkpoint_boundary", "profile"):
            draft.irrelevant(f"{_CHECKPOINTING}{key}", "off; the model's code says what is computed again")
        return
    if draft.switch(CHECKPOINTS_ON_HOST):
        waits = "what layers are computed again from waits in the host's memory"
        on_host = f"OFFLOAD activations WHERE {OUTPUTS} TO host"
        draft.changed(CHECKPOINTS_ON_HOST, RECOMPUTE, on_host, reason=waits)
    if draft.value(f"{_CHECKPOINTING}number_checkpoints"):
        draft.changed(f"{_CHECKPOINTING}number_checkpoints", RECOMPUTE, reason=reason)
    if draft.switch(f"{_CHECKPOINTING}partition_activations"):
        split = "one part a tensor-parallel device is SPLIT sequence OF activations WHERE kind = 'residual' OVER tp"
        draft.changed(f"{_CHECKPOINTING}partition_activations", RECOMPUTE, reason=f"{reason}; {split}")
    if draft.switch(f"{_CHECKPOINTING}contiguous_memory_optimization"):
        draft.changed(f"{_CHECKPOINTING}contiguous_memory_optimization", RECOMPUTE, reason=reason)
    for key in (*working, "synchronize_checkpoint_boundary", "profile"):
        if f"{_CHECKPOINTING}{key}" in draft.unanswered(_CHECKPOINTING):
            draft.irrelevant(f"{_CHECKPOINTING}{key}", "how it is done is the runtime's affair")


def _answer_experts(draft: Draft, layout: Layout) -> None:
    if layout.ep > 1:
        draft.carried(f"{_EXPERT_PARALLEL}enabled", "SPLIT experts OVER ep")
        draft.carried(EXPERTS, layout.mesh, "SPLIT experts OVER ep")
        if (draft.integer(f"{_EXPERT_PARALLEL}expert_tensor_parallel_size") or 1) > 1:
            draft.carried(f"{_EXPERT_PARALLEL}expert_tensor_parallel_size", "SPLIT mlp OVER tp")
    for key in _EXPERT_KEYS:
        if f"{_EXPERT_PARALLEL}{key}" in draft.unanswered(_EXPERT_PARALLEL):
            reason = "the network says where experts are and how tokens are routed"
            draft.irrelevant(f"{_EXPERT_PARALLEL}{key}", reason)
    if draft.switch("use_data_before_expert_parallelism"):
        reason = "the order of axes in MESH; swap dp and ep to have experts far apart"
        draft.impossible("use_data_before_expert_parallelism", reason)
    else:
        draft.irrelevant("use_data_before_expert_parallelism", "experts inside data, as here")


_EXPERT_KEYS = (
    "enabled", "autoep_size", "expert_tensor_parallel_size", "validate_folding_routing", "preset_model",
    "moe_layer_pattern", "expert_pattern", "router_pattern", "use_grouped_mm", "disable_triton_grouped_mm", "route_norm",
    "route_scale", "score_apply", "combine_impl", "num_expert_groups", "num_limited_groups", "score_func", "top_k",
    "load_balance_coeff", "routed_scaling_factor", "expert_w1", "expert_w2", "expert_w3", "num_experts_attr",
    "top_k_attr", "has_shared_experts", "shared_experts_pattern", "shared_experts_gate_pattern",
)  # fmt: skip
