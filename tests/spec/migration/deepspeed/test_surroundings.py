"""What is around the training."""

import pytest

from tests.spec.migration.answers import fate, reason
from trimtab.spec.migration import Fate


@pytest.mark.parametrize(
    "section",
    [
        "wandb",
        "tensorboard",
        "csv_monitor",
        "comet",
        "curriculum_learning",
        "progressive_layer_drop",
        "hybrid_engine",
    ],
)
def test_what_is_not_here_is_lost_if_it_is_on(convert, section):
    """A dashboard that stays empty is noticed late."""
    assert fate(convert({section: {"enabled": True}}), section) is Fate.IMPOSSIBLE
    assert fate(convert({section: {"enabled": False}}), section) is Fate.IRRELEVANT


def test_a_section_without_a_switch_is_on(convert):
    """sparse_attention has none."""
    assert fate(convert({"sparse_attention": {"mode": "fixed"}}), "sparse_attention") is Fate.IMPOSSIBLE


@pytest.mark.parametrize("compile_section", [{"disable": True}, {"disable": False}])
def test_a_section_may_be_switched_off_the_other_way(convert, compile_section):
    """compile says disable."""
    expected = Fate.IRRELEVANT if compile_section["disable"] else Fate.IMPOSSIBLE
    assert fate(convert({"compile": compile_section}), "compile") is expected


@pytest.mark.parametrize(
    "flag", ["flops_profiler", "aio", "autotuning", "checkpoint", "comms_logger", "timers", "nebula"]
)
def test_what_nobody_misses_is_not_needed(convert, flag):
    """Each has its reason all the same."""
    migration = convert({flag: {"enabled": True}})
    assert fate(migration, flag) is Fate.IRRELEVANT
    assert reason(migration, flag)


def test_an_unknown_setting_is_listed_with_the_nearest(convert):
    """DeepSpeed ignores it at the top, and refuses it inside a section."""
    migration = convert(
        {"steps_per_prnt": 3, "zero_optimization": {"stage": 1, "overlap_com": True, "aio": {"a": 1}}}
    )
    assert reason(migration, "steps_per_prnt").endswith("did you mean steps_per_print?")
    assert reason(migration, "zero_optimization.overlap_com").endswith(
        "did you mean zero_optimization.overlap_comm?"
    )
    assert reason(migration, "zero_optimization.aio").endswith("did you mean aio?")


def test_a_comment_is_a_comment(convert):
    """JSON has no other place for one."""
    assert fate(convert({"_comment": "for 8 cards"}), "_comment") is Fate.IRRELEVANT
