"""Any file gives a migration or a reason, never a traceback."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.spec.migration import MigrationError, Source, render_job, render_table
from trimtab.spec.migration.torchtitan import read_torchtitan

VALUES = st.one_of(
    st.integers(-2, 64),
    st.booleans(),
    st.sampled_from([0.5, 1e-3, "", "auto", "none", "full", "op", "1F1B", "Interleaved1F1B", "layers.1", "8B", [], ["layers.2"]]),
)  # fmt: skip

FLAGS = (
    "model.name", "model.flavor", "model.converters", "model.hf_assets_path", "optimizer.name", "optimizer.lr",
    "lr_scheduler.warmup_steps", "lr_scheduler.decay_ratio", "lr_scheduler.decay_type", "lr_scheduler.min_lr_factor",
    "training.local_batch_size", "training.global_batch_size", "training.seq_len", "training.steps", "training.max_norm",
    "training.dataset_path", "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree",
    "parallelism.fsdp_reshard_after_forward", "parallelism.tensor_parallel_degree",
    "parallelism.pipeline_parallel_degree", "parallelism.pipeline_parallel_schedule",
    "parallelism.pipeline_parallel_split_points", "parallelism.pipeline_parallel_layers_per_stage",
    "parallelism.pipeline_parallel_microbatch_size", "parallelism.module_fqns_per_model_part",
    "parallelism.context_parallel_degree", "parallelism.expert_parallel_degree",
    "parallelism.expert_tensor_parallel_degree", "activation_checkpoint.mode",
    "activation_checkpoint.selective_ac_option", "checkpoint.enable", "checkpoint.keep_latest_k",
    "fault_tolerance.enable", "fault_tolerance.group_size", "fault_tolerance.semi_sync_method",
    "comm.train_timeout_seconds", "validation.enable", "validation.steps", "debug.seed",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FLAGS), VALUES, max_size=10), st.sampled_from([None, 1, 6, 8, 16]))
def test_a_file_gives_a_job_or_a_reason(values, devices):
    """A crash tells its user nothing."""
    text = "\n".join(f"{flag} = {json.dumps(value)}" for flag, value in values.items())
    try:
        migration = read_torchtitan(Source(text=text, name="x.toml", devices=devices))
    except MigrationError:
        return
    assert {setting.flag for setting in migration.settings} == values.keys()
    assert render_job(migration)
    assert render_table(migration)
