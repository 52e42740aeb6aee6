"""Which layers stand in which stage: counted by hand as Megatron-LM counts, and read back as the planner cuts."""

from collections import Counter

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.plan.layout import network_of
from trimtab.plan.stages import pipeline_of
from trimtab.spec.migration import Fate, MigrationError


def pipeline(migration):
    """The pipeline that the planner makes of the imported job."""
    job = loaded(migration)
    return pipeline_of(job.program, mesh=job.layout.mesh, network=network_of(job.job), sequence=128)


@pytest.mark.parametrize(
    ("flags", "counts"),
    [
        ("--num-layers 12", [3, 3, 3, 3]),
        ("--num-layers 8 --num-layers-per-virtual-pipeline-stage 1", [1] * 8),
        ("--num-layers 16 --num-virtual-stages-per-pipeline-rank 2", [2] * 8),
        (
            "--num-layers 12 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 3",
            [1, 4, 4, 3],
        ),
        ("--num-layers 14 --decoder-first-pipeline-num-layers 2", [2, 4, 4, 4]),
        ("--num-layers 13 --decoder-last-pipeline-num-layers 4", [3, 3, 3, 4]),
        (
            "--num-layers 14 --decoder-first-pipeline-num-layers 2 --num-virtual-stages-per-pipeline-rank 2",
            [1, 2, 2, 2] * 2,
        ),
        ("--num-layers 15 --account-for-embedding-in-pipeline-split", [3, 4, 4, 4]),
        (
            "--num-layers 14 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            [3, 4, 4, 3],
        ),
        ("--num-layers 10 --pp-partition-method type:transformer|embedding", [2, 3, 3, 2]),
        ("--num-layers 9 --pipeline-model-parallel-layout Et|ttt|tt|tttL", [1, 3, 2, 3]),
        ("--num-layers 12 --pipeline-model-parallel-layout Et|(tt|)*5,tL", None),
        (
            "--num-layers 16 --pipeline-model-parallel-layout Et|(tt|)*3,(tt|)*3,t*3,L",
            [1, 2, 2, 2, 2, 2, 2, 3],
        ),
        ("--num-layers 12 --pipeline-model-parallel-layout E,t*3|t*3|t*3|t*3,L", [3, 3, 3, 3]),
    ],
)
def test_layers_of_each_stage(migrate, flags, counts):
    """Two layers more on the first rank, and memory runs out where it did not before."""
    given = f"--pipeline-model-parallel-size 4 --global-batch-size 32 {flags}"
    if counts is None:
        with pytest.raises(MigrationError, match="has 7 stages, which is no multiple of 4 ranks"):
            migrate(given)
        return
    made = pipeline(migrate(given))
    found = Counter(made.stage_of_layer)
    assert [found[stage] for stage in range(made.num_stages)] == counts
    assert [made.rank_of_stage[stage] for stage in range(made.num_stages)] == [
        s % 4 for s in range(len(counts))
    ]


def test_the_schedule_is_theirs(migrate):
    """Plain pipelines run 1F1B, several stages a rank the interleaved one, a zero-bubble switch its own."""
    pipe = "--pipeline-model-parallel-size 4 --global-batch-size 32"
    assert "USING 1f1b\n" in migrate(pipe).formulas
    assert (
        "USING interleaved_1f1b(2)\n" in migrate(f"{pipe} --num-virtual-stages-per-pipeline-rank 2").formulas
    )
    zero_bubble = migrate(f"{pipe} --enable-zbh1-pipeline")
    assert "USING interleaved_zero_bubble(1)\n" in zero_bubble.formulas
    assert fates(zero_bubble)["--enable-zbh1-pipeline"].fate is Fate.CHANGED


def test_even_stages_need_no_place(migrate):
    """A line that says the default hides the one that does not."""
    migration = migrate("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Ett|tt|tt|ttL")
    assert "PLACE" not in migration.formulas
    assert fates(migration)["--pipeline-model-parallel-layout"].fate is Fate.IRRELEVANT


def test_stages_without_a_layer_are_balanced_by_time(migrate):
    """A stage of the loss alone is none here; what it was for is said instead, and told."""
    migration = migrate("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Ettt|ttt|tt|L")
    setting = fates(migration)["--pipeline-model-parallel-layout"]
    assert (setting.fate, setting.becomes) == (
        Fate.CHANGED,
        "SPLIT layers OVER pp USING 1f1b BALANCE BY time",
    )
    assert sum(Counter(pipeline(migration).stage_of_layer).values()) == 8


def test_heads_for_later_tokens_are_left_out_and_told(migrate):
    """The layout counts them, the network has none."""
    migration = migrate("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3|t*5mL")
    setting = fates(migration)["--pipeline-model-parallel-layout"]
    assert setting.fate is Fate.CHANGED
    assert "(m) are left out" in setting.reason
    assert "PLACE layers BETWEEN 0 AND 2 ON pp 0" in setting.becomes


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--pipeline-model-parallel-layout Ett|tt|tt|L",
            "the stages hold 6 layers together; --num-layers is 8",
        ),
        (
            "--num-layers 6 --num-virtual-stages-per-pipeline-rank 2 --account-for-loss-in-pipeline-split "
            "--account-for-embedding-in-pipeline-split",
            "6 layers do not fill 8 stages",
        ),
        ("--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7", "do not come out"),
        ("--decoder-first-pipeline-num-layers 3 --num-virtual-stages-per-pipeline-rank 2", "do not come out"),
    ],
)
def test_stages_that_do_not_come_out(migrate, flags, message):
    """Layers that no stage holds would be left out of the network."""
    with pytest.raises(MigrationError, match=message):
        migrate(f"--pipeline-model-parallel-size 4 {flags}")


def test_one_stage_needs_nothing(migrate):
    """Flags of a pipeline without a pipeline change nothing there either."""
    migration = migrate("--account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2")
    assert "layers" not in migration.formulas
    assert fates(migration)["--account-for-loss-in-pipeline-split"].fate is Fate.IRRELEVANT
