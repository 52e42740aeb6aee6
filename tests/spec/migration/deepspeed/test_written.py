"""A DeepSpeed file on its way out."""

import json

from trimtab.spec.migration import Fate
from trimtab.spec.migration.deepspeed.written import Written


def test_sections_come_in_the_order_of_most_files():
    """People look for the batch first."""
    written = Written()
    written.carry("a", "", {"zero_optimization.stage": 1})
    written.carry("b", "", {"tensor_parallel.autotp_size": 2})
    written.carry("c", "", {"train_batch_size": 8})
    assert list(json.loads(written.text())) == ["train_batch_size", "zero_optimization", "tensor_parallel"]


def test_a_table_shows_settings_as_they_are_written():
    """A reader finds them in the file."""
    written = Written()
    written.carry("a", "", {"bf16.enabled": True, "optimizer.params.betas": [0.9, 0.95], "specs": [{"x": 1}]})
    (setting,) = written.sheet.settings
    assert setting.targets == ("bf16.enabled true", "optimizer.params.betas [0.9, 0.95]", "specs")


def test_a_fate_follows_from_what_is_said_and_lost():
    """Nothing is carried that says less."""
    written = Written()
    written.tell("a", "", {"x": 1}, [])
    written.tell("b", "", {"x": 1}, ["more", "less"])
    written.tell("c", "", {}, ["none"])
    assert [setting.fate for setting in written.sheet.settings] == [
        Fate.CARRIED,
        Fate.CHANGED,
        Fate.IMPOSSIBLE,
    ]
    assert written.sheet.settings[1].reason == "more; less"
