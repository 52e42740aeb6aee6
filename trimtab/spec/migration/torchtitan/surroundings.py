"""What is around the training: data, checkpoints, failures, logs."""

from collections.abc import Mapping

from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout, over
from trimtab.spec.migration.stand_ins import TEXT

CHECKPOINT = "checkpoint."
TORCHFT = "fault_tolerance."

_REPORTS = "trimtab report and the run's journal have losses, times and bytes"

_LOST: Mapping[str, str] = {
    "metrics.enable_wandb": f"nothing is sent to Weights and Biases; {_REPORTS}",
    "metrics.enable_tensorboard": f"no TensorBoard files are written; {_REPORTS}",
    "profiling.enable_profiling": "no traces of kernels are written; report says where time went",
    "profiling.enable_memory_snapshot": "no snapshots of the allocator are written; explain says what each rank holds",
    "checkpoint.initial_load_in_hf": "weights are not read from elsewhere in this release",
    "checkpoint.load_only": "a run saves as fault_tolerance.checkpoint says",
    "checkpoint.enable_first_step_checkpoint": "the first checkpoint is due as all others are",
}
"""Switches that lose something if they are on."""

_NEEDLESS: Mapping[str, str] = {
    "job.description": "a comment",
    "job.print_config": "the resolved job is saved with the run",
    "job.save_config_file": "the resolved job is saved with the run",
    "job.config_file": "this file",
    "job.use_for_integration_test": "of torchtitan's own tests",
    "profiling.save_traces_folder": "no traces are written",
    "profiling.profile_freq": "no traces are written",
    "profiling.profiler_active": "no traces are written",
    "profiling.profiler_warmup": "no traces are written",
    "profiling.save_memory_snapshot_folder": "no snapshots are written",
    "metrics.log_freq": "the live view shows every step",
    "metrics.save_tb_folder": "no TensorBoard files are written",
    "metrics.save_for_all_ranks": "the journal holds every rank",
    "metrics.rank_0_only": "the journal holds every rank",
    "metrics.enable_color_printing": "the terminal decides",
    "metrics.disable_color_printing": "the terminal decides",
    "model.norm_type": "the network's own; only the kernel changes",
    "training.gc_freq": "when Python collects garbage is the runtime's affair",
    "training.gc_debug": "a switch for debugging",
    "training.data_parallel_type": "FSDP in one form",
    "checkpoint.folder": "checkpoints stand in the run's folder",
    "checkpoint.interval_type": "steps, as here",
    "checkpoint.async_mode": "checkpoints are always written in the background",
    "checkpoint.export_dtype": "trimtab checkpoints export writes the master weights",
    "checkpoint.last_save_model_only": "trimtab checkpoints export writes the weights alone",
    "checkpoint.last_save_in_hf": "trimtab checkpoints export writes the weights alone",
    "checkpoint.load_step": "resume takes the newest, rollback any other",
    "checkpoint.create_seed_checkpoint": "initial weights follow from train.seed on any layout",
    "checkpoint.enable_ft_dataloader_checkpoints": "the position in the data is part of every checkpoint",
    "checkpoint.initial_load_model_only": "no weights are read from elsewhere",
    "checkpoint.initial_load_in_hf_quantized": "no weights are read from elsewhere",
    "comm.trace_buf_size": "every collective is recorded",
    "comm.save_traces_folder": "records stand in the run's folder",
    "comm.save_traces_file_prefix": "records stand in the run's folder",
    "comm.mode": "a switch for debugging",
    "memory_estimation.enable": "explain says what each rank holds",
    "memory_estimation.disable_fake_mode": "explain says what each rank holds",
}

_LOADER_KEYS = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
_OWN_CODE = (
    "job.custom_config_module", "experimental.custom_import", "experimental.custom_args_module",
    "experimental.custom_model_path",
)  # fmt: skip


def answer_surroundings(draft: Draft) -> None:
    """Give data, checkpoints, time limits and logs their fate."""
    _answer_data(draft)
    _answer_checkpoints(draft)
    _answer_waiting(draft)
    if folder := draft.word("job.dump_folder"):
        draft.carried("job.dump_folder", {"orchestration.runs": folder})
    for flag, reason in _LOST.items():
        if draft.switch(flag):
            draft.impossible(flag, reason)
        else:
            draft.irrelevant(flag, "off")
    for flag, reason in _NEEDLESS.items():
        draft.irrelevant(flag, reason)
    for flag in _OWN_CODE:
        if draft.word(flag):
            draft.impossible(flag, "code of your own: a network becomes a class of model.module")
        else:
            draft.irrelevant(flag, "empty")


def _answer_data(draft: Draft) -> None:
    dataset, path = "training.dataset", "training.dataset_path"
    if draft.word(path):
        reason = "files are read by their ending: .jsonl, .parquet, else text"
        draft.changed(path, {"data.text": draft.word(path)}, reason=reason)
        draft.irrelevant(dataset, "dataset_path says where the text is")
    else:
        draft.put({"data.text": TEXT}, note="stands in")
        reason = "nothing is fetched from the Hugging Face Hub; name files in data.text"
        draft.impossible(dataset, reason)
        draft.irrelevant(path, "empty")
        draft.warnings.append(
            f"The text {draft.word(dataset) or 'c4_test'} comes from the Hugging Face Hub: the text of Python's library "
            "stands in, so that the job runs as it is. Set data.text."
        )
    assets, model = "model.hf_assets_path", "model.tokenizer_path"
    for flag in (assets, model):
        written = draft.word(flag) or ""
        if written.endswith(".model"):
            draft.impossible(flag, "a tokenizer is a tokenizer.json of Hugging Face; bytes stand in")
        elif written.endswith(".json"):
            draft.carried(flag, {"data.tokenizer": written})
        elif written:
            reason = "the file in the folder"
            draft.changed(flag, {"data.tokenizer": f"{written.rstrip('/')}/tokenizer.json"}, reason=reason)
    for section in ("training", "validation"):
        for key in _LOADER_KEYS:
            draft.irrelevant(f"{section}.dataloader.{key}", "how text is read ahead is the runtime's affair")


def _answer_checkpoints(draft: Draft) -> None:
    enable, interval, kept = (f"{CHECKPOINT}{key}" for key in ("enable", "interval", "keep_latest_k"))
    if draft.switch(enable):
        every = draft.integer(interval) or 500
        draft.carried(enable, "fault_tolerance.checkpoint.every")
        draft.carried(interval, {"fault_tolerance.checkpoint.every": every})
        if draft.integer(kept) == 0:
            draft.impossible(kept, "a number is kept, 3 unless told: fault_tolerance.checkpoint.keep")
        else:
            draft.carried(kept, {"fault_tolerance.checkpoint.keep": draft.integer(kept) or 10})
    else:
        draft.carried(enable, {"fault_tolerance.checkpoint.every": "off"})
        for flag in (interval, kept):
            draft.irrelevant(flag, "no checkpoints are written")
    for key in ("initial_load_path", "exclude_from_loading"):
        if draft.value(f"{CHECKPOINT}{key}"):
            draft.impossible(f"{CHECKPOINT}{key}", "weights are not read from elsewhere in this release")
        else:
            draft.irrelevant(f"{CHECKPOINT}{key}", "empty")


def _answer_waiting(draft: Draft) -> None:
    """Time limits of collectives become limits on standing still; the first step has the longer one."""
    first, later = (draft.number(f"comm.{key}_timeout_seconds") for key in ("init", "train"))
    limits = "fault_tolerance.detection."
    if later is not None:
        draft.carried("comm.train_timeout_seconds", {f"{limits}progress": later})
        draft.put({f"{limits}first_step": max(first or 300, later)})
    if first is not None:
        draft.carried("comm.init_timeout_seconds", {f"{limits}first_step": max(first, later or 100)})


_NO_FRAGMENTS = "the whole model is averaged at once"


def answer_failures(draft: Draft, layout: Layout) -> None:
    """Write what TorchFT says of replicas that come and go, and of averages in place of sums."""
    if not draft.switch(f"{TORCHFT}enable"):
        for key in _TORCHFT_KEYS:
            draft.irrelevant(f"{TORCHFT}{key}", "TorchFT is off")
        return
    reason = "a step without a lost replica is the mean over the others; every rank belongs to one mesh"
    draft.changed(f"{TORCHFT}enable", {"fault_tolerance.on_loss": "rescale"}, layout.mesh, reason=reason)
    draft.changed(f"{TORCHFT}group_size", layout.mesh, reason="replica groups are an axis of one mesh")
    method = draft.word(f"{TORCHFT}semi_sync_method")
    if method in ("diloco", "local_sgd"):
        _answer_averages(draft, method)
    elif method:
        draft.impossible(f"{TORCHFT}semi_sync_method", "averages are taken by mean or nesterov(momentum)")
    if draft.integer(f"{TORCHFT}num_fragments") not in (None, 1):
        draft.impossible(f"{TORCHFT}num_fragments", _NO_FRAGMENTS)
    for key in ("fragment_sync_delay", "fragment_update_alpha", "module_fqns_per_model_fragment"):
        if draft.value(f"{TORCHFT}{key}"):
            draft.impossible(f"{TORCHFT}{key}", _NO_FRAGMENTS)
    draft.impossible(f"{TORCHFT}min_replica_size", "a run goes on with whoever is left")
    for key in _TORCHFT_KEYS:
        if f"{TORCHFT}{key}" in draft.unanswered(TORCHFT):
            draft.irrelevant(f"{TORCHFT}{key}", "how replicas find each other is the engine's affair")


def _answer_averages(draft: Draft, method: str) -> None:
    steps, quantize = f"{TORCHFT}sync_steps", f"{TORCHFT}should_quantize"
    using = "nesterov(0.9)" if method == "diloco" else "mean"
    average = f"AVERAGE params {over(('replica',))} EVERY {draft.integer(steps) or 5} STEPS USING {using}"
    sums = f"REDUCE grads {over(('dp',))}"
    # Replicas that differ between averages have no common bits to keep.
    shares = {"fault_tolerance.shares": "off"}
    if method == "diloco":
        reason = "momentum 0.9 as there; the rate of 0.7 is not said"
        draft.changed(f"{TORCHFT}semi_sync_method", average, sums, shares, reason=reason)
    else:
        draft.carried(f"{TORCHFT}semi_sync_method", average, sums, shares)
    draft.carried(steps, average)
    if draft.switch(quantize):
        formula = f"AVERAGE params {over(('replica',))} EVERY {draft.integer(steps) or 5} STEPS COMPRESS int8"
        draft.changed(quantize, formula, reason="int8 in place of fp8")
    else:
        draft.irrelevant(quantize, "off")


_TORCHFT_KEYS = (
    "enable", "replica_id", "group_size", "min_replica_size", "semi_sync_method", "sync_steps", "should_quantize",
    "fragment_sync_delay", "fragment_update_alpha", "module_fqns_per_model_fragment", "num_fragments", "process_group",
    "process_group_timeout_ms",
)  # fmt: skip
