"""A migration as a job file and as a table."""

from dataclasses import replace

import pytest

from trimtab.spec import load_job
from trimtab.spec.migration import Fate, Migration, Setting, render_job, render_table, settings_document

MIGRATION = Migration(
    origin="the settings of old.sh",
    job={
        "run": "old",
        "model": {"preset": "gpt-3m"},
        "data": {"text": "python-stdlib"},
        "train": {"steps": 10, "batch": 8},
        "fault_tolerance": {"shares": "off"},
    },
    formulas="MESH dp *\nSPLIT batch OVER dp\n",
    settings=(
        Setting(flag="--steps", value="10", fate=Fate.CARRIED, becomes="train.steps"),
        Setting(flag="--data-parallel", value="", fate=Fate.CARRIED, becomes="SPLIT batch OVER dp"),
        Setting(flag="--dp", value="8", fate=Fate.CHANGED, becomes="train.batch; MESH dp *", reason="both"),
        Setting(flag="--pinned", value="", fate=Fate.IMPOSSIBLE, reason="memory is pinned " * 8),
        Setting(flag="--verbose", value="2", fate=Fate.IRRELEVANT, reason="a log level"),
    ),
    warnings=("the devices were guessed",),
)


def load(text):
    return load_job(text, source="old.yaml", read=lambda path: "")


def test_the_job_file_reads_back_as_the_job():
    """A job file that our own loader refuses is no way to move in."""
    job = load(render_job(MIGRATION)).job
    assert (job.run, job.train.steps, job.train.batch) == ("old", 10, 8)
    assert job.fault_tolerance.shares == "off"
    assert [line.split("--")[0].strip() for line in job.parallelism.text.splitlines()] == [
        "MESH dp *",
        "SPLIT batch OVER dp",
    ]


def test_every_key_and_formula_names_the_setting_it_came_from():
    """Who reviews the move must not search for the flag behind a line."""
    lines = render_job(MIGRATION).splitlines()
    assert "  steps: 10  # --steps 10" in lines
    assert "  batch: 8  # --dp 8" in lines
    assert "  MESH dp *            -- --dp 8" in lines
    assert "  SPLIT batch OVER dp  -- --data-parallel" in lines


def test_what_has_no_equivalent_stands_at_the_top_of_the_job_file():
    """A table scrolls away; the file stays."""
    text = render_job(MIGRATION)
    head = text[: text.index("run: old")]
    assert "--pinned" in head
    assert "Note: the devices were guessed" in head
    assert all(line.startswith("#") for line in head.splitlines())


def test_a_job_without_formulas_has_no_card_for_them():
    """The empty text is a card as well, and a reader would look for what it says."""
    assert "parallelism" not in render_job(replace(MIGRATION, formulas=""))


@pytest.mark.parametrize("width", [60, 80, 110])
def test_the_table_keeps_its_width_and_drops_nothing(width):
    """A setting that is missing from the table was dropped in silence."""
    table = render_table(MIGRATION, width=width)
    assert max(map(len, table.splitlines())) <= width
    for setting in MIGRATION.settings:
        assert f"  {setting.written}" in table
    assert "warning: the devices were guessed" in table
    assert table.splitlines()[-1] == "2 carried, 1 changed, 1 no equivalent, 1 not needed"


def test_the_document_holds_every_setting():
    """Programs read the table too."""
    document = settings_document(MIGRATION)
    assert [row["flag"] for row in document["settings"]] == [s.flag for s in MIGRATION.settings]
    assert document["counts"] == {"carried": 2, "changed": 1, "impossible": 1, "irrelevant": 1}
    assert document["warnings"] == ["the devices were guessed"]


@pytest.mark.parametrize("fate", [Fate.CHANGED, Fate.IMPOSSIBLE, Fate.IRRELEVANT])
def test_a_fate_needs_its_reason(fate):
    """A user who is told that a flag is lost asks why."""
    with pytest.raises(AssertionError):
        Setting(flag="--x", value="", fate=fate, becomes="train.steps" if fate is Fate.CHANGED else "")
