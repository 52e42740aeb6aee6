"""A file of torchtitan, of any release that had such files."""

import pytest

from tests.spec.migration.answers import fate, reason, setting
from trimtab.spec.migration import Fate, MigrationError, Source
from trimtab.spec.migration.torchtitan import read_torchtitan
from trimtab.spec.migration.torchtitan.reading import ALIASES, read_settings


def test_an_older_name_says_the_same(convert):
    """Three releases have three names for one number."""
    old = convert(
        "[training]\nbatch_size = 2\nwarmup_steps = 30\n[experimental]\ncontext_parallel_degree = 2"
    )
    new = convert(
        "[training]\nlocal_batch_size = 2\n[lr_scheduler]\nwarmup_steps = 30\n"
        "[parallelism]\ncontext_parallel_degree = 2"
    )
    assert old.job == new.job
    assert old.formulas == new.formulas
    assert setting(old, "experimental.context_parallel_degree").targets


def test_no_name_leads_to_a_name_that_leads_on():
    """A chain would be followed only one step."""
    assert not set(ALIASES.values()) & ALIASES.keys()


def test_both_names_at_once_are_refused(convert):
    """torchtitan of either release would ignore one of them."""
    with pytest.raises(MigrationError, match="names of one setting"):
        convert("[training]\nbatch_size = 2\nlocal_batch_size = 4")


def test_what_is_not_toml_is_refused_with_its_place(convert):
    """The first error of the file is what its author must find."""
    with pytest.raises(MigrationError, match=r"not the TOML .*line 2"):
        convert("[training]\nsteps 3")


def test_an_unknown_setting_is_listed_with_the_nearest(convert):
    """torchtitan dropped TOML because a mistyped key became a default in silence."""
    migration = convert("[training]\nlocal_batch_sise = 2")
    assert fate(migration, "training.local_batch_sise") is Fate.IMPOSSIBLE
    assert reason(migration, "training.local_batch_sise").endswith("did you mean training.local_batch_size?")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--training.steps", "7"), {"training.steps": 7}),
        (("--training.steps=7", "--training.steps=9"), {"training.steps": 9}),
        (("--training.compile",), {"training.steps": 5, "training.compile": True}),
        (("--training.no-compile",), {"training.steps": 5, "training.compile": False}),
        (("--model.converters", '["float8"]'), {"training.steps": 5, "model.converters": ["float8"]}),
        (("--model.flavor", "8B"), {"training.steps": 5, "model.flavor": "8B"}),
        (
            ("--quantize.linear.float8.emulate",),
            {"training.steps": 5, "quantize.linear.float8.emulate": True},
        ),
    ],
)
def test_words_of_a_command_line_replace_what_the_file_says(words, expected):
    """That is how torchtitan is launched."""
    assert dict(read_settings("[training]\nsteps = 5", words)) == expected


def test_words_that_are_no_settings_are_refused():
    """A second file is not read in silence."""
    source = Source(text="", name="x.toml", flags=("other.toml",), devices=1)
    with pytest.raises(MigrationError, match=r"other\.toml is no setting"):
        read_torchtitan(source)
