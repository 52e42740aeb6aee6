"""A DeepSpeed configuration as DeepSpeed reads it."""

import pytest

from trimtab.spec.migration import MigrationError
from trimtab.spec.migration.deepspeed.reading import flatten, read_config


def test_comments_and_trailing_commas_are_read():
    """DeepSpeed reads Hjson, and people comment their configurations."""
    text = """{
      // one device
      "train_batch_size": 4,  # four
      "scheduler": {"type": "Warmup//LR", /* not
      this */ "params": {},},
    }"""
    assert read_config(text, name="x") == {
        "train_batch_size": 4,
        "scheduler": {"type": "Warmup//LR", "params": {}},
    }


def test_a_comma_before_a_comment_before_a_bracket_is_one_too_many():
    """Only a reader of bytes would tell the two apart."""
    assert read_config('{"a": 1, // last\n}', name="x") == {"a": 1}


def test_an_error_has_its_place_under_the_comments_as_well():
    """Comments are blanked, not cut: the line and column stay."""
    with pytest.raises(MigrationError) as caught:
        read_config('{\n  /* a\n  b */ "x": GB_SIZE\n}', name="ds.json")
    assert str(caught.value).startswith("line 3, column 13: not the JSON that DeepSpeed reads")
    assert "^" in str(caught.value)
    assert "template" in str(caught.value)


def test_a_key_twice_is_refused_as_deepspeed_does():
    """The second would replace the first in silence."""
    with pytest.raises(MigrationError, match="'stage' stands twice"):
        read_config('{"zero_optimization": {"stage": 1, "stage": 2}}', name="x")


@pytest.mark.parametrize("text", ["[1]", "3", '"x"'])
def test_anything_but_an_object_is_refused(text):
    """A list of settings has no names."""
    with pytest.raises(MigrationError, match="one object"):
        read_config(text, name="x")


def test_settings_have_dotted_names_and_other_objects_are_one_setting():
    """Each row of the table is something that its reader can find in the file."""
    values = {"fp16": {"enabled": True}, "aio": {"block_size": 1}, "zero_optimization": {"stage": 3}, "x": []}
    assert dict(flatten(values)) == {
        "fp16.enabled": True,
        "aio": {"block_size": 1},
        "zero_optimization.stage": 3,
        "x": [],
    }


def test_objects_of_a_list_are_settings_of_their_own():
    """A rule of AutoTP can be carried while its neighbour is lost."""
    specs = [{"patterns": ["a"]}, {"patterns": ["b"]}]
    found = dict(flatten({"tensor_parallel": {"partition_config": {"layer_specs": specs}}}))
    assert list(found) == [f"tensor_parallel.partition_config.layer_specs[{place}]" for place in (0, 1)]
