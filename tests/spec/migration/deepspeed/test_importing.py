"""Any configuration gives a migration or a reason, never a traceback."""

import copy
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.spec.migration import Migration, MigrationError, Source, render_job, render_table
from trimtab.spec.migration.deepspeed import read_deepspeed
from trimtab.spec.migration.deepspeed.reading import SECTIONS

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 64),
    st.sampled_from([0.5, 1e8, -1.5, "auto", "cpu", "nvme", "bf16", "", "Adam", "OneCycle", "WarmupLR", [], [0.9, 0.99], {}]),
)  # fmt: skip

FLAGS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "communication_data_type", "data_parallel_size", "sequence_parallel_size", "zero_optimization", "compile", "wandb",
    "zero_optimization.stage", "zero_optimization.mics_shard_size", "zero_optimization.zero_hpz_partition_size",
    "zero_optimization.reduce_bucket_size", "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.offload_optimizer", "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device", "zero_optimization.cpu_offload", "optimizer.type", "optimizer.params.lr",
    "optimizer.params.betas", "optimizer.params.adam_w_mode", "optimizer.params.max_grad_norm", "scheduler.type",
    "scheduler.params.warmup_num_steps", "scheduler.params.warmup_max_lr", "scheduler.params.total_num_steps",
    "scheduler.params.cycle_first_step_size", "scheduler.params.cycle_min_lr", "scheduler.params.cycle_max_lr",
    "fp16.enabled", "bf16.enabled", "tensor_parallel.autotp_size", "tensor_parallel.preset_model", "pipeline.stages",
    "pipeline.partition", "expert_parallel.enabled", "expert_parallel.autoep_size", "elasticity.enabled",
    "elasticity.max_train_batch_size", "elasticity.micro_batch_sizes", "activation_checkpointing.number_checkpoints",
)  # fmt: skip


def nested(values: dict[str, object]) -> dict[str, object]:
    tree: dict[str, object] = {}
    for flag, value in values.items():
        *sections, key = flag.split(".")
        place = tree
        for section in sections:
            inner = place.get(section)
            # Sampled values are shared between examples: filled in place they would come to hold themselves.
            place[section] = dict(inner) if isinstance(inner, dict) else {}
            place = place[section]
        place.setdefault(key, copy.deepcopy(value))
    return tree


def convert(values: dict[str, object], devices: int | None) -> Migration | None:
    try:
        return read_deepspeed(Source(text=json.dumps(values), name="ds.json", devices=devices))
    except MigrationError:
        return None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(FLAGS), SCALARS, max_size=12), st.sampled_from([None, 1, 6, 8]))
def test_a_configuration_gives_a_job_or_a_reason(values, devices):
    """A crash tells its user nothing."""
    migration = convert(nested({"train_micro_batch_size_per_gpu": 1, **values}), devices)
    if migration is not None:
        assert render_job(migration)
        assert render_table(migration)


@given(
    st.recursive(SCALARS, lambda inner: st.dictionaries(st.sampled_from(sorted(SECTIONS)), inner, max_size=3))
)
def test_sections_of_the_wrong_form_are_no_crash(values):
    """A section may be a number, and a number a section."""
    convert({"train_batch_size": 8, "x": values} if not isinstance(values, dict) else values, 8)


def test_every_setting_stands_in_the_table_once():
    """A setting that is dropped in silence is what this is against."""
    values = nested(dict.fromkeys(FLAGS, None) | {"train_batch_size": 8, "zero_optimization": {}})
    migration = convert(values, 8)
    assert migration is not None
    flags = [setting.flag for setting in migration.settings]
    assert len(flags) == len(set(flags))
