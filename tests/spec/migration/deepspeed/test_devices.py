"""Groups of devices."""

import pytest

from tests.spec.migration.answers import fate, formulas
from trimtab.spec.migration import Fate, MigrationError


def test_without_groups_the_batch_is_split_over_all_devices(convert):
    """Plain data parallelism is what DeepSpeed does unless told."""
    assert formulas(convert({})) == ["MESH dp *", "SPLIT batch OVER dp"]


def test_tensor_groups_are_neighbours_then_sequences_then_data_then_stages(convert):
    """Another order puts tensor parallelism on the slow links."""
    settings = {
        "tensor_parallel": {"autotp_size": 2},
        "sequence_parallel_size": 2,
        "pipeline": {"stages": 2},
    }
    migration = convert(settings, devices=16)
    assert formulas(migration)[0] == "MESH pp 2, dp *, cp 2, tp 2"
    assert "SPLIT sequence OVER cp USING ulysses" in formulas(migration)
    assert migration.job["train"]["batch"] == 2


def test_devices_that_no_group_divides_are_refused(convert):
    """DeepSpeed would fail when it makes its groups."""
    with pytest.raises(MigrationError, match="6 devices cannot be cut into groups of 4"):
        convert({"tensor_parallel": {"autotp_size": 4}}, devices=6)


@pytest.mark.parametrize("key", ["mics_shard_size", "zero_hpz_partition_size"])
def test_a_group_that_does_not_divide_the_ranks_is_refused(convert, key):
    """Some rank would belong to no group."""
    with pytest.raises(MigrationError, match=f"{key} is 3, which does not divide the 8"):
        convert({"zero_optimization": {"stage": 3, key: 3}})


def test_experts_share_the_ranks_of_data(convert):
    """Expert parallelism takes no devices of its own: each of its ranks has its part of the batch."""
    experts = {"expert_parallel": {"enabled": True, "autoep_size": 4, "top_k": 2}}
    migration = convert(experts)
    assert formulas(migration) == ["MESH dp *, ep 4", "SPLIT batch OVER dp, ep", "SPLIT experts OVER ep"]
    assert migration.job["train"]["batch"] == 8
    assert fate(migration, "expert_parallel.top_k") is Fate.IRRELEVANT


def test_experts_that_are_off_take_no_axis(convert):
    """The size alone does not switch it on."""
    migration = convert({"expert_parallel": {"enabled": False, "autoep_size": 4}})
    assert formulas(migration)[0] == "MESH dp *"


def test_experts_and_groups_of_zero_together_are_refused(convert):
    """One axis cannot be cut in two ways."""
    both = {
        "expert_parallel": {"enabled": True, "autoep_size": 2},
        "zero_optimization": {"stage": 3, "mics_shard_size": 4},
    }
    with pytest.raises(MigrationError, match="in two ways"):
        convert(both)


def test_fewest_devices_hold_every_group(convert):
    """Without a count the job must still load."""
    migration = convert({"tensor_parallel": {"autotp_size": 4}}, devices=None)
    assert migration.job["orchestration"]["devices"] == 4
