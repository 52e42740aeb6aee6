"""Meshes and splits as DeepSpeed says them."""

import pytest

from tests.spec.migration.answers import fate, reason, written
from trimtab.spec.migration import Fate

TENSOR = ("MESH dp *, tp 4", "SPLIT batch OVER dp")
CONTEXT = ("MESH dp *, cp 4", "SPLIT batch OVER dp")
STAGES = ("MESH pp 2, dp *", "SPLIT batch OVER dp")
MOE = ("model.experts=8", "model.top_k=2")


def test_degrees_are_carried(export):
    """They are what a layout is made of."""
    mesh = "MESH dp *, cp 2, tp 2"
    exported = export(
        mesh,
        "SPLIT batch OVER dp",
        "SPLIT sequence OVER cp USING ulysses",
        "SPLIT heads, mlp OVER tp",
    )
    assert written(exported, "tensor_parallel.autotp_size") == 2
    assert written(exported, "sequence_parallel_size") == 2
    assert fate(exported, mesh) is Fate.CARRIED


def test_data_parallelism_alone_needs_no_degree(export):
    """DeepSpeed counts the devices itself."""
    exported = export("MESH dp *", "SPLIT batch OVER dp")
    assert fate(exported, "MESH dp *") is Fate.IRRELEVANT
    assert fate(exported, "SPLIT batch OVER dp") is Fate.IRRELEVANT


def test_another_order_of_axes_is_told(export):
    """Neighbours of a machine would be others."""
    mesh = "MESH tp 4, dp *"
    exported = export(mesh, "SPLIT batch OVER dp", "SPLIT heads, mlp OVER tp")
    assert fate(exported, mesh) is Fate.CHANGED
    assert "tensor fastest" in reason(exported, mesh)


def test_levels_cannot_be_demanded(export):
    """The user has to look after them."""
    mesh = "MESH dp *, tp 4 WITHIN node"
    exported = export(mesh, "SPLIT batch OVER dp", "SPLIT heads, mlp OVER tp")
    assert reason(exported, mesh) == "nothing there demands that an axis stays inside a level"


def test_an_axis_without_a_use_is_told(export):
    """DeepSpeed gives its devices their own data."""
    exported = export("MESH dp *, x 2", "SPLIT batch OVER dp", "SPLIT embed OVER x")
    assert any("lies over x" in warning for warning in exported.warnings)


@pytest.mark.parametrize(
    ("dims", "why"),
    [
        ("heads, mlp", ""),
        ("heads, mlp, vocab", "embedding and head stay whole there"),
        ("mlp", "heads and mlp are divided together there"),
    ],
)
def test_autotp_divides_heads_and_mlp(export, dims, why):
    """Nothing less and nothing more."""
    formula = f"SPLIT {dims} OVER tp"
    exported = export(*TENSOR, formula)
    assert written(exported, "tensor_parallel.autotp_size") == 4
    assert reason(exported, formula) == why


@pytest.mark.parametrize(("way", "expected"), [("ulysses", Fate.CARRIED), ("ring", Fate.CHANGED)])
def test_sequences_are_split_as_ulysses_does(export, way, expected):
    """Rings are not in DeepSpeed."""
    formula = f"SPLIT sequence OVER cp USING {way}"
    exported = export(*CONTEXT, formula)
    assert written(exported, "sequence_parallel_size") == 4
    assert fate(exported, formula) is expected


@pytest.mark.parametrize(
    ("clauses", "method", "why"),
    [
        ("USING 1f1b", "uniform", ""),
        ("USING 1f1b BALANCE BY params", "parameters", ""),
        ("USING gpipe BALANCE BY time", "best", "the schedule there is 1f1b, not gpipe"),
        ("USING 1f1b MICROBATCHES 2", "uniform", "4 microbatches a step follow from the batch"),
    ],
)
def test_stages_are_those_of_a_script(export, clauses, method, why):
    """The setting alone makes no pipeline."""
    formula = f"SPLIT layers OVER pp {clauses}"
    exported = export(*STAGES, formula, keys=("train.batch=32", "train.microbatch=2"))
    assert written(exported, "pipeline.stages") == 2
    assert written(exported, "pipeline.partition") == method
    said = next(row for row in exported.settings if row.flag.startswith("SPLIT layers"))
    assert said.reason.startswith("PipelineModule of your script")
    assert said.reason.endswith(why)


@pytest.mark.parametrize(("mesh", "is_outside"), [("dp 2, ep 4", None), ("ep 4, dp 2", True)])
def test_experts_lie_inside_data_unless_they_are_outside(export, mesh, is_outside):
    """Neighbours exchange tokens faster."""
    exported = export(f"MESH {mesh}", "SPLIT batch OVER dp, ep", "SPLIT experts OVER ep", keys=MOE)
    assert written(exported, "expert_parallel.enabled") is True
    assert written(exported, "expert_parallel.autoep_size") == 4
    assert written(exported, "use_data_before_expert_parallelism") is is_outside


@pytest.mark.parametrize(
    "formula",
    [
        "SPLIT sequence OF activations WHERE kind = 'residual' OVER tp",
        "SPLIT embed OF activations OVER tp",
    ],
)
def test_splits_that_deepspeed_lacks_are_named(export, formula):
    """They cost memory there."""
    exported = export(*TENSOR, "SPLIT heads, mlp OVER tp", formula)
    assert fate(exported, formula) is Fate.IMPOSSIBLE
