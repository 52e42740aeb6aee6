"""ZeRO."""

import pytest

from tests.spec.migration.answers import fate, formulas, reason
from trimtab.spec.migration import Fate, MigrationError

STAGE = "zero_optimization.stage"


def stored(migration):
    return [line for line in formulas(migration) if line.startswith(("STORE", "OFFLOAD"))]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, []),
        (1, ["STORE states OVER dp"]),
        (2, ["STORE grads, states OVER dp"]),
        (3, ["STORE params, grads, states OVER dp"]),
    ],
)
def test_each_stage_stores_what_its_name_says(convert, stage, expected):
    """A stage too low does not fit into memory; one too high is slow."""
    migration = convert({"zero_optimization": {"stage": stage}})
    assert stored(migration) == expected
    assert fate(migration, STAGE) is (Fate.CARRIED if stage else Fate.IRRELEVANT)


def test_the_oldest_form_is_stage_one(convert):
    """Configurations of 2020 say true."""
    migration = convert({"zero_optimization": True})
    assert stored(migration) == ["STORE states OVER dp"]
    assert fate(migration, "zero_optimization") is Fate.CARRIED


def test_a_stage_that_does_not_exist_is_refused(convert):
    """DeepSpeed refuses it too."""
    with pytest.raises(MigrationError, match="stages 0, 1, 2 and 3"):
        convert({"zero_optimization": {"stage": 4}})


def test_small_parameters_stay_whole(convert):
    """Mixed storage by size is a condition here."""
    zero = {"stage": 3, "stage3_param_persistence_threshold": 1e5}
    migration = convert({"zero_optimization": zero})
    assert stored(migration) == ["STORE params WHERE numel > 100000 OVER dp", "STORE grads, states OVER dp"]


@pytest.mark.parametrize("threshold", [0, "auto"])
def test_a_threshold_that_says_nothing_leaves_one_statement(convert, threshold):
    """auto depends on a width that the file does not hold."""
    zero = {"stage": 3, "param_persistence_threshold": threshold}
    migration = convert({"zero_optimization": zero})
    assert stored(migration) == ["STORE params, grads, states OVER dp"]
    assert fate(migration, "zero_optimization.param_persistence_threshold") is Fate.IRRELEVANT


def test_mics_stores_inside_a_group_and_sums_over_all(convert):
    """Everything is stored once a group."""
    migration = convert({"zero_optimization": {"stage": 3, "mics_shard_size": 4}})
    assert formulas(migration) == [
        "MESH replica *, dp 4",
        "SPLIT batch OVER replica, dp",
        "STORE params, grads, states OVER dp",
    ]


def test_hpz_stores_parameters_inside_a_group_and_the_rest_over_all(convert):
    """Only the parameters are held once a group; states would cost too much."""
    migration = convert({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}})
    assert stored(migration) == ["STORE params OVER dp", "STORE grads, states OVER replica, dp"]
    assert fate(migration, "zero_optimization.zero_hpz_partition_size") is Fate.CHANGED


def test_a_group_of_all_devices_is_no_group(convert):
    """A mesh axis of one device says nothing."""
    migration = convert({"zero_optimization": {"stage": 3, "mics_shard_size": 8}})
    assert formulas(migration)[0] == "MESH dp *"


def test_state_is_stored_over_parts_of_sequences_too(convert):
    """They hold the same parameters: DeepSpeed divides them over both."""
    migration = convert({"zero_optimization": {"stage": 2}, "sequence_parallel_size": 2})
    assert stored(migration) == ["STORE grads, states OVER dp, cp"]


def test_experts_are_stored_by_the_same_line(convert):
    """Over the axis that spreads them they differ anyway: a second line would cut them twice."""
    settings = {
        "zero_optimization": {"stage": 1},
        "expert_parallel": {"enabled": True, "autoep_size": 4},
        "communication_data_type": "bf16",
    }
    migration = convert(settings)
    assert stored(migration) == ["STORE states OVER dp, ep"]
    assert formulas(migration)[-2:] == [
        "REDUCE grads WHERE kind <> 'expert' OVER dp, ep IN bf16",
        "REDUCE grads WHERE kind = 'expert' OVER dp IN bf16",
    ]


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, ["OFFLOAD states TO host"]),
        ({"stage": 2, "cpu_offload": True}, ["OFFLOAD states TO host"]),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, ["OFFLOAD params TO host"]),
        ({"stage": 3, "cpu_offload_params": True}, ["OFFLOAD params TO host"]),
        ({"stage": 2, "offload_param": {"device": "cpu"}}, []),
        ({"stage": 0, "offload_optimizer": {"device": "cpu"}}, []),
        ({"stage": 2, "offload_optimizer": {"device": "none"}}, []),
        ({"stage": 2, "offload_optimizer": {}}, []),
        ({"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"}}, []),
    ],
)
def test_offload_goes_to_the_host_where_deepspeed_does_it(convert, zero, expected):
    """Parameters from stage 3 on, states from stage 1 on."""
    migration = convert({"zero_optimization": zero})
    assert [line for line in stored(migration) if line.startswith("OFFLOAD")] == expected


def test_nvme_has_no_equivalent_and_says_what_comes_nearest(convert):
    """A job that silently keeps everything on the device does not fit."""
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/x", "ratio": 0.3}}
    migration = convert({"zero_optimization": zero})
    device = "zero_optimization.offload_optimizer.device"
    assert fate(migration, device) is Fate.IMPOSSIBLE
    assert "OFFLOAD states TO host" in reason(migration, device)
    assert fate(migration, "zero_optimization.offload_optimizer.ratio") is Fate.IMPOSSIBLE


def test_quantized_weights_have_no_equivalent(convert):
    """What is gathered travels as it is kept."""
    flag = "zero_optimization.zero_quantized_weights"
    on = convert({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}})
    off = convert({"zero_optimization": {"stage": 3, "zero_quantized_weights": False}})
    assert (fate(on, flag), fate(off, flag)) == (Fate.IMPOSSIBLE, Fate.IRRELEVANT)


def test_bf16_in_a_pipeline_divides_states_at_stage_zero(convert):
    """DeepSpeed takes another optimizer there, whatever the stage says."""
    settings = {"zero_optimization": {"stage": 0}, "bf16": {"enabled": True}, "pipeline": {"stages": 2}}
    migration = convert(settings)
    assert stored(migration) == ["STORE states OVER dp"]
    assert fate(migration, STAGE) is Fate.CHANGED
