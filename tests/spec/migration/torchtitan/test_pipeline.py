"""Stages."""

import pytest

from tests.spec.migration.answers import fate, formulas
from trimtab.spec.migration import Fate, MigrationError


def pipeline(convert, degree=2, batch=8, **settings):
    lines = [f"pipeline_parallel_{key} = {value}" for key, value in settings.items()]
    text = [
        f"[training]\nlocal_batch_size = {batch}",
        "[parallelism]",
        f"pipeline_parallel_degree = {degree}",
    ]
    return convert("\n".join([*text, *lines]))


def staged(migration):
    return [line for line in formulas(migration) if "layers" in line]


@pytest.mark.parametrize(
    ("schedule", "using"),
    [
        ("1F1B", "1f1b"),
        ("1f1b", "1f1b"),
        ("GPipe", "gpipe"),
        ("Interleaved1F1B", "interleaved_1f1b(2)"),
        ("interleaved_1f1b", "interleaved_1f1b(2)"),
        ("LoopedBFS", "looped_bfs(2)"),
        ("InterleavedZeroBubble", "interleaved_zero_bubble(2)"),
        ("ZBVZeroBubble", "zbv"),
        ("DualPipeV", "dualpipev"),
    ],
)
def test_every_schedule_has_its_name(convert, schedule, using):
    """A schedule of several stages a device has two of them unless told."""
    migration = pipeline(convert, schedule=f'"{schedule}"')
    assert staged(migration)[0] == f"SPLIT layers OVER pp USING {using}"
    assert fate(migration, "parallelism.pipeline_parallel_schedule") is Fate.CARRIED


@pytest.mark.parametrize("schedule", ["PipelineScheduleSingle", "MyOwn"])
def test_a_schedule_of_another_name_has_no_equivalent(convert, schedule):
    """1f1b stands in, and the table says so."""
    migration = pipeline(convert, schedule=f'"{schedule}"', schedule_csv='"my.csv"')
    assert staged(migration) == ["SPLIT layers OVER pp USING 1f1b"]
    assert fate(migration, "parallelism.pipeline_parallel_schedule") is Fate.IMPOSSIBLE
    assert fate(migration, "parallelism.pipeline_parallel_schedule_csv") is Fate.IMPOSSIBLE


def test_split_points_place_layers_by_hand(convert):
    """The debug model has six layers."""
    migration = pipeline(convert, split_points='["layers.2"]')
    assert staged(migration) == [
        "SPLIT layers OVER pp USING 1f1b",
        "PLACE layers BETWEEN 0 AND 1 ON pp 0",
        "PLACE layers BETWEEN 2 AND 5 ON pp 1",
    ]


def test_points_with_commas_of_the_first_releases(convert):
    """A list was text then."""
    migration = pipeline(convert, split_points='"layers.2, layers.4, layers.5"', schedule='"Interleaved1F1B"')
    assert staged(migration) == [
        "SPLIT layers OVER pp USING interleaved_1f1b(2)",
        "PLACE layers BETWEEN 0 AND 1 ON pp 0",
        "PLACE layers BETWEEN 2 AND 3 ON pp 1",
        "PLACE layers BETWEEN 4 AND 4 ON pp 0",
        "PLACE layers BETWEEN 5 AND 5 ON pp 1",
    ]


def test_a_v_schedule_comes_back(convert):
    """The last stage is on the first device."""
    migration = pipeline(convert, split_points='"layers.2,layers.4,layers.5"', schedule='"ZBVZeroBubble"')
    assert [line.rpartition(" ")[2] for line in staged(migration)[1:]] == ["0", "1", "1", "0"]


def test_parts_by_module_names(convert):
    """Since release 0.2 stages are lists of modules."""
    parts = '[["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "layers.3", "layers.4", "layers.5", "output"]]'
    migration = convert(f"[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = {parts}")
    assert staged(migration)[1:] == [
        "PLACE layers BETWEEN 0 AND 0 ON pp 0",
        "PLACE layers BETWEEN 1 AND 5 ON pp 1",
    ]


def test_layers_of_a_stage_count_the_ends_as_one_each(convert):
    """Six layers and two ends in stages of four: three layers, then three."""
    migration = pipeline(convert, layers_per_stage=4)
    assert staged(migration)[1:] == [
        "PLACE layers BETWEEN 0 AND 2 ON pp 0",
        "PLACE layers BETWEEN 3 AND 5 ON pp 1",
    ]


def test_the_last_stage_of_an_unknown_network_is_open(convert):
    """Nobody here knows its number of layers."""
    text = '[model]\nname = "other"\nflavor = "x"\n[parallelism]\npipeline_parallel_degree = 2\n'
    migration = convert(text + 'pipeline_parallel_split_points = ["layers.2"]')
    assert staged(migration)[-1] == "PLACE layers WHERE layer >= 2 ON pp 1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[parallelism]\npipeline_parallel_degree = 2", 1),
        ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 4", 4),
        ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatches = 4", 2),
        ("[experimental]\npipeline_parallel_degree = 2", 4),
    ],
)
def test_microbatches_were_counted_and_are_sized(convert, text, expected):
    """Their meaning changed with their name in April 2025."""
    migration = convert(f"[training]\nbatch_size = 8\n{text}")
    assert migration.job["train"]["microbatch"] == expected
    assert migration.job["fault_tolerance"]["shares"] == 4


@pytest.mark.parametrize("settings", [{"microbatch_size": 3}, {"microbatches": 3}])
def test_samples_that_cannot_be_cut_are_refused(convert, settings):
    """torchtitan refuses them too."""
    with pytest.raises(MigrationError, match="cannot be cut"):
        pipeline(convert, **settings)


def test_a_point_that_is_no_layer_is_refused(convert):
    """There is nothing to place."""
    with pytest.raises(MigrationError, match="norm is no layer"):
        pipeline(convert, split_points='["norm"]')


def test_without_a_pipeline_its_settings_are_not_needed(convert):
    """Most files name a schedule for a degree of 1."""
    migration = convert('[parallelism]\npipeline_parallel_degree = 1\npipeline_parallel_schedule = "1F1B"')
    assert fate(migration, "parallelism.pipeline_parallel_schedule") is Fate.IRRELEVANT
