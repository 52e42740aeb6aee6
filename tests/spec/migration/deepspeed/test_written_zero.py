"""What is stored in pieces, and what is kept on the host, as ZeRO says it."""

import pytest

from tests.spec.migration.answers import fate, reason, written
from trimtab.spec.migration import Fate

STAGE = "zero_optimization.stage"
MICS = "zero_optimization.mics_shard_size"
HPZ = "zero_optimization.zero_hpz_partition_size"
PLAIN = ("MESH dp *", "SPLIT batch OVER dp")
GROUPS = ("MESH replica *, dp 4", "SPLIT batch OVER replica, dp")
PIPELINE = ("MESH pp 2, dp *", "SPLIT batch OVER dp", "SPLIT layers OVER pp")


@pytest.mark.parametrize(
    ("tables", "stage"), [("states", 1), ("grads, states", 2), ("params, grads, states", 3)]
)
def test_what_is_stored_is_a_stage(export, tables, stage):
    """A stage too low does not fit into memory."""
    formula = f"STORE {tables} OVER dp"
    exported = export(*PLAIN, formula)
    assert written(exported, STAGE) == stage
    assert fate(exported, formula) is Fate.CARRIED


@pytest.mark.parametrize(
    ("tables", "stage", "more"), [("grads", 2, "states"), ("params", 3, "states and grads")]
)
def test_a_stage_that_divides_more_is_said(export, tables, stage, more):
    """The user reads of it before the memory does."""
    formula = f"STORE {tables} OVER dp"
    exported = export(*PLAIN, formula)
    assert written(exported, STAGE) == stage
    assert reason(exported, formula) == f"stage {stage} divides {more} too"


def test_two_statements_make_one_stage(export):
    """The importer writes stage 3 with a threshold as two statements."""
    params, others = "STORE params WHERE numel > 1000 OVER dp", "STORE grads, states OVER dp"
    exported = export(*PLAIN, params, others)
    assert written(exported, STAGE) == 3
    assert written(exported, "zero_optimization.stage3_param_persistence_threshold") == 1000
    assert fate(exported, params) is Fate.CARRIED
    assert fate(exported, others) is Fate.CARRIED


def test_groups_that_hold_all_state_are_those_of_mics(export):
    """A copy in each machine is what they are for."""
    formula = "STORE params, grads, states OVER dp"
    exported = export(*GROUPS, formula)
    assert (written(exported, STAGE), written(exported, MICS)) == (3, 4)
    assert fate(exported, formula) is Fate.CARRIED


def test_groups_that_hold_parameters_alone_are_those_of_hpz(export):
    """Gradients and states lie over all devices."""
    params, others = "STORE params OVER dp", "STORE grads, states OVER replica, dp"
    exported = export(*GROUPS, params, others)
    assert (written(exported, HPZ), written(exported, MICS)) == (4, None)
    assert fate(exported, params) is Fate.CHANGED
    assert fate(exported, others) is Fate.CARRIED


@pytest.mark.parametrize("axis", ["replica", "dp"])
def test_other_groups_become_all_devices(export, axis):
    """Stages 1 and 2 know no groups, and groups are of neighbours."""
    tables = "states" if axis == "dp" else "params, grads, states"
    formula = f"STORE {tables} OVER {axis}"
    exported = export(*GROUPS, formula)
    assert written(exported, MICS) is None
    assert reason(exported, formula) == "divided over all 8 data-parallel devices there"


def test_parts_of_a_sequence_are_data_parallel_devices(export):
    """They hold the same parameters."""
    formula = "STORE grads, states OVER dp, cp"
    exported = export(
        "MESH dp *, cp 2", "SPLIT batch OVER dp", "SPLIT sequence OVER cp USING ulysses", formula
    )
    assert written(exported, STAGE) == 2
    assert fate(exported, formula) is Fate.CARRIED


def test_pipelines_take_no_higher_stage_than_one(export):
    """DeepSpeed refuses stages 2 and 3 in them."""
    formula = "STORE grads, states OVER dp"
    exported = export(*PIPELINE, formula)
    assert written(exported, STAGE) == 1
    assert reason(exported, formula) == "pipelines there take stages 0 and 1"


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("STORE states WHERE layer < 2 OVER dp", "above a size"),
        ("STORE states WHERE numel > 1000 OVER dp", "above a size"),
        ("STORE states OVER dp ON node = 0", "for all devices alike"),
    ],
)
def test_part_of_a_table_has_no_stage(export, formula, why):
    """A stage would divide the rest as well."""
    exported = export(*PLAIN, formula)
    assert written(exported, STAGE) is None
    assert fate(exported, formula) is Fate.IMPOSSIBLE
    assert why in reason(exported, formula)


def test_storage_over_tensor_devices_is_none_of_zero(export):
    """What is split there is not the same on both."""
    formula = "STORE states OVER tp"
    exported = export("MESH dp *, tp 2", "SPLIT batch OVER dp", "SPLIT heads, mlp OVER tp", formula)
    assert written(exported, STAGE) is None
    assert fate(exported, formula) is Fate.IMPOSSIBLE


OPTIMIZER_ON_HOST = "zero_optimization.offload_optimizer.device"
PARAMS_ON_HOST = "zero_optimization.offload_param.device"


def test_states_and_parameters_go_to_the_host(export):
    """Without it they do not fit."""
    formula = "OFFLOAD params, states TO host"
    exported = export(*PLAIN, "STORE params, grads, states OVER dp", formula)
    assert (written(exported, OPTIMIZER_ON_HOST), written(exported, PARAMS_ON_HOST)) == ("cpu", "cpu")
    assert fate(exported, formula) is Fate.CARRIED


def test_parameters_stay_below_stage_three(export):
    """DeepSpeed ignores the setting there."""
    formula = "OFFLOAD params, states TO host"
    exported = export(*PLAIN, "STORE states OVER dp", formula)
    assert (written(exported, OPTIMIZER_ON_HOST), written(exported, PARAMS_ON_HOST)) == ("cpu", None)
    assert reason(exported, formula) == "parameters are kept on the host at stage 3 alone there"


def test_gradients_take_the_states_with_them(export):
    """One setting moves both."""
    formula = "OFFLOAD grads TO host"
    exported = export(*PLAIN, "STORE grads, states OVER dp", formula)
    assert written(exported, OPTIMIZER_ON_HOST) == "cpu"
    assert fate(exported, formula) is Fate.CHANGED


@pytest.mark.parametrize("formula", ["OFFLOAD states TO host", "OFFLOAD states WHERE layer < 2 TO host"])
def test_without_zero_or_by_layer_nothing_goes_to_the_host(export, formula):
    """The setting would do nothing, or too much."""
    stored = ("STORE states OVER dp",) if "WHERE" in formula else ()
    exported = export(*PLAIN, *stored, formula)
    assert written(exported, OPTIMIZER_ON_HOST) is None
    assert fate(exported, formula) is Fate.IMPOSSIBLE
