"""Groups of devices."""

import pytest

from tests.spec.migration.answers import fate, formulas, reason
from trimtab.spec.migration import Fate, MigrationError


def parallelism(convert, devices=8, **degrees):
    lines = [f"{key} = {value}" for key, value in degrees.items()]
    return convert("\n".join(["[parallelism]", *lines]), devices=devices)


def test_by_default_everything_is_stored_over_all_devices(convert):
    """A file without degrees trains with FSDP."""
    migration = parallelism(convert)
    assert formulas(migration)[:3] == [
        "MESH dp *",
        "SPLIT batch OVER dp",
        "STORE params, grads, states OVER dp",
    ]


def test_replicas_alone_are_plain_data_parallelism(convert):
    """DDP stores nothing in pieces."""
    lines = formulas(parallelism(convert, data_parallel_replicate_degree=8, data_parallel_shard_degree=1))
    assert lines[:2] == ["MESH dp *", "SPLIT batch OVER dp"]
    assert not [line for line in lines if line.startswith("STORE")]


def test_replicas_of_shards(convert):
    """HSDP: stored inside a group, summed over both axes."""
    migration = parallelism(convert, data_parallel_replicate_degree=2)
    assert formulas(migration)[:3] == [
        "MESH replica *, dp 4",
        "SPLIT batch OVER replica, dp",
        "STORE params, grads, states OVER dp",
    ]


def test_all_axes_in_their_order(convert):
    """pp, replicas, shards, cp, tp: another order moves tensor parallelism to the slow links."""
    degrees = {
        "pipeline_parallel_degree": 2,
        "data_parallel_replicate_degree": 2,
        "context_parallel_degree": 2,
        "tensor_parallel_degree": 2,
    }
    migration = parallelism(convert, devices=32, **degrees)
    assert formulas(migration)[0] == "MESH pp 2, replica *, dp 2, cp 2, tp 2"
    assert "STORE grads, states OVER dp, cp" in formulas(migration)


def test_tensor_parallelism_splits_the_sequence_between_its_layers(convert):
    """torchtitan always does both."""
    lines = formulas(parallelism(convert, tensor_parallel_degree=2))
    assert "SPLIT heads, mlp, vocab OVER tp" in lines
    assert "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp" in lines


@pytest.mark.parametrize(("method", "way"), [("allgather", "allgather"), ("alltoall", "ring")])
def test_the_way_of_a_split_sequence(convert, method, way):
    """Torch's alltoall hands keys on from neighbour to neighbour."""
    migration = parallelism(convert, context_parallel_degree=2, context_parallel_rotate_method=f'"{method}"')
    assert f"SPLIT sequence OVER cp USING {way}" in formulas(migration)


@pytest.mark.parametrize(
    ("degrees", "mesh", "axis", "expected"),
    [
        ({"expert": 4}, "MESH dp *, ep 4", "ep", Fate.CARRIED),
        ({"expert": 2, "context": 2}, "MESH dp *, cp 2", "cp", Fate.CARRIED),
        ({"expert": 4, "context": 2}, "MESH dp *, ep 4, cp 2", "ep", Fate.CHANGED),
        ({"expert": 16, "context": 2}, "MESH dp *, ep 8, cp 2", "ep", Fate.CHANGED),
        ({"expert": 4, "tensor": 2}, "MESH dp *, ep 2, tp 2", "ep", Fate.CHANGED),
        ({"expert": 4, "tensor": 2, "expert_tensor": 2}, "MESH dp *, ep 4, tp 2", "ep", Fate.CARRIED),
    ],
)
def test_experts_lie_over_one_axis(convert, degrees, mesh, axis, expected):
    """There they may borrow devices of several, here a matrix of theirs is always cut over tp."""
    parallel = {f"{name}_parallel_degree": degree for name, degree in degrees.items()}
    migration = parallelism(convert, devices=16, **parallel)
    lines = formulas(migration)
    assert lines[0] == mesh
    assert f"SPLIT experts OVER {axis}" in lines
    assert fate(migration, "parallelism.expert_parallel_degree") is expected


def test_experts_inside_the_tensor_axis_need_no_split_of_their_own(convert):
    """Their matrices are cut into as many parts."""
    migration = parallelism(convert, tensor_parallel_degree=4, expert_parallel_degree=4)
    assert not [line for line in formulas(migration) if "experts" in line]
    assert "matrices over tp" in reason(migration, "parallelism.expert_parallel_degree")


def test_tokens_that_travel_to_experts_are_cut_by_sequence_first(convert):
    """Pieces of the batch would interleave otherwise."""
    migration = parallelism(convert, devices=16, context_parallel_degree=2, expert_parallel_degree=4)
    assert formulas(migration)[1:3] == ["SPLIT sequence OVER cp USING allgather", "SPLIT batch OVER dp, ep"]


@pytest.mark.parametrize(
    ("degrees", "devices", "why"),
    [
        ({"tensor_parallel_degree": 3}, 8, "cannot be cut into groups of 3"),
        ({"data_parallel_shard_degree": 4}, 8, "need 4 devices, not 8"),
        ({"tensor_parallel_degree": 0}, 8, "takes at least 1"),
        ({"data_parallel_shard_degree": 0}, 8, "takes at least 1"),
        ({"data_parallel_shard_degree": -2}, None, "takes at least 1"),
        ({"expert_parallel_degree": 3}, 8, "3 parts of experts do not divide 8 shards"),
    ],
)
def test_what_torchtitan_refuses_is_refused(convert, degrees, devices, why):
    """A mesh of another size never trained."""
    with pytest.raises(MigrationError, match=why):
        parallelism(convert, devices=devices, **degrees)


def test_fewest_devices_stand_in_and_it_is_said(convert):
    """-1 takes what the launcher gives."""
    migration = parallelism(convert, devices=None, tensor_parallel_degree=4, expert_parallel_degree=8)
    assert migration.job["orchestration"]["devices"] == 8
    assert [warning for warning in migration.warnings if "how many devices" in warning]


def test_a_degree_of_one_is_not_needed(convert):
    """Most files spell them all out."""
    migration = parallelism(convert, tensor_parallel_degree=1, context_parallel_degree=1)
    assert fate(migration, "parallelism.tensor_parallel_degree") is Fate.IRRELEVANT


@pytest.mark.parametrize("key", ["enable_async_tensor_parallel", "disable_loss_parallel"])
def test_what_overlaps_tile_by_tile_is_lost_if_it_is_on(convert, key):
    """It was worth some percent of a step."""
    flag = f"parallelism.{key}"
    assert fate(parallelism(convert, **{key: "true"}), flag) is Fate.IMPOSSIBLE
    assert fate(parallelism(convert, **{key: "false"}), flag) is Fate.IRRELEVANT
