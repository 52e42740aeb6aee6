"""Settings around the training itself: logs, profilers, storage, the course of the data, kernels.

A section whose settings share one fate is one setting.
"""

from collections.abc import Mapping

from trimtab.spec.migration.drafts import Draft

_REPORTS = "trimtab report and the run's journal have losses, times and bytes"
_LOST_SECTIONS: Mapping[str, str] = {
    "wandb": f"nothing is sent to Weights and Biases; {_REPORTS}",
    "tensorboard": f"no TensorBoard files are written; {_REPORTS}",
    "csv_monitor": f"no CSV files are written; {_REPORTS}",
    "comet": f"nothing is sent to Comet; {_REPORTS}",
    "curriculum_learning": "samples come in a random order of one length; sort or cut the data beforehand",
    "data_efficiency": "samples come in a random order and pass every layer; choose the data beforehand",
    "progressive_layer_drop": "every layer computes every token",
    "sparse_attention": "attention is dense and causal, or what a model.module of your own does",
    "compression_training": "no compression of the model itself; COMPRESS speaks of what is sent",
    "quantize_training": "no quantisation of weights in training",
    "weight_quantization": "no quantisation of weights",
    "eigenvalue": "of quantisation in training, which is not here",
    "hybrid_engine": "training only; generation is another program's work",
    "moe": "DeepSpeed does not read it: the model's code makes experts; SPLIT experts OVER ep spreads them here",
    "compile": "no compiled graph in this release",
    "zero_optimization.zenflow": "every gradient is applied in its own step",
}
"""Sections that do something which is not here, if they are switched on."""

_NEEDLESS_SECTIONS: Mapping[str, str] = {
    "flops_profiler": "explain and report count FLOPs of every run",
    "comms_logger": "explain lists every collective with its bytes, report its time",
    "comms_config": "explain lists every collective with its bytes, report its time",
    "monitor_config": _REPORTS,
    "timers": "every nanosecond is timed: see report",
    "aio": "how disk is read for offload to NVMe, which is not here",
    "autotuning": "explain compares layouts without running them",
    "checkpoint": "checkpoints are whole, checked and readable by any layout",
    "nebula": "checkpoints are written in the background: see fault_tolerance.checkpoint",
    "datastates_ckpt": "checkpoints are written in the background: see fault_tolerance.checkpoint",
    "zero_optimization.leaf_module": "which modules are gathered as one is the runtime's affair",
}

_NEEDLESS: Mapping[str, str] = {
    "steps_per_print": "the live view shows every step",
    "wall_clock_breakdown": "every step's time is in the ledger: see report",
    "memory_breakdown": "explain says what each rank holds",
    "dump_state": "the resolved job is saved with the run",
    "log_level": "a log level",
    "disable_allgather": "a switch for debugging",
    "dataloader_drop_last": "every batch is full",
    "managed_gradient_accumulation": "a step is one batch",
    "graph_harvesting": "how kernels are launched",
    "vocabulary_size": "only warns there if the vocabulary is not a multiple of 8",
    "cuda_visible_devices": "the launcher's",
}

_NEEDLESS_OF_ZERO: Mapping[str, str] = {
    "overlap_comm": "sums always run beside the backward pass where they can",
    "contiguous_gradients": "gradients of a bucket are always one block of memory",
    "reduce_scatter": "with STORE grads the sum is a reduce-scatter, without it an all-reduce",
    "allgather_partitions": "which collective gathers is the runtime's choice",
    "allgather_bucket_size": "how much is gathered at once is the runtime's choice",
    "use_multi_rank_bucket_allreduce": "which collective sums is the runtime's choice",
    "stage3_use_all_reduce_for_fetch_params": "which collective gathers is the runtime's choice",
    "stage3_allgather_sequential": "how much is gathered at once is the runtime's choice",
    "round_robin_gradients": "how gradients travel to the host is the runtime's affair",
    "grad_hooks": "sums always run beside the backward pass where they can",
    "sub_group_size": "the update runs over all of a rank's pieces at once",
    "stage3_prefetch_bucket_size": "how far ahead parameters are gathered is the runtime's choice",
    "stage3_max_live_parameters": "parameters are let go after each layer",
    "stage3_max_reuse_distance": "parameters are let go after each layer",
    "stage3_model_persistence_threshold": "bounds what stays whole; STORE params WHERE numel > N says it",
    "stage3_module_granularity_threshold": "which modules are gathered as one is the runtime's choice",
    "stage3_gather_16bit_weights_on_model_save": "trimtab checkpoints export writes whole weights",
    "load_from_fp32_weights": "master weights are saved and loaded in fp32",
    "elastic_checkpoint": "checkpoints are readable by any layout",
    "pipeline_loading_checkpoint": "how a checkpoint is loaded",
    "ignore_unused_parameters": "a parameter without a gradient counts as 0",
    "legacy_stage1": "an older implementation of the same",
    "memory_efficient_linear": "a kernel",
    "override_module_apply": "how modules are initialised",
    "log_trace_cache_warnings": "a log level",
    "enable_sanity_checks": "every plan is verified before it runs",
    "save_muon_momentum_buffer_in_memory": "of NVMe and Muon, which are not here",
    "cpu_offload_use_pin_memory": "how the copies are buffered is the runtime's affair",
}


def answer_surroundings(draft: Draft) -> None:
    """Give everything around the training its fate."""
    for section, reason in _LOST_SECTIONS.items():
        if _is_off(draft.value(section)):
            draft.irrelevant(section, "off")
        else:
            draft.impossible(section, reason)
    for section, reason in {**_NEEDLESS_SECTIONS, **_NEEDLESS}.items():
        draft.irrelevant(section, reason)
    for key, reason in _NEEDLESS_OF_ZERO.items():
        draft.irrelevant(f"zero_optimization.{key}", reason)
    for flag in draft.unanswered():
        if flag.rpartition(".")[2].startswith(("_", "//", "comment")):
            draft.irrelevant(flag, "a comment")


def _is_off(section: object) -> bool:
    if not isinstance(section, Mapping):
        return not section
    if "disable" in section:
        return bool(section["disable"])
    return "enabled" in section and section["enabled"] is False
