import json
import threading
from dataclasses import replace

import pytest

from trimtab.runtime.checkpoint.marks import MARKS_FILE, Marks, change_marks, read_marks
from trimtab.runtime.checkpoint.store import newest_complete


def test_marks_come_back(tmp_path):
    """A pin that is lost is a checkpoint that is lost."""
    assert read_marks(tmp_path) == Marks()
    marks = change_marks(tmp_path, lambda old: replace(old, pinned=frozenset({10}), suspect={20: "loss 9.1"}))
    assert read_marks(tmp_path) == marks == Marks(pinned=frozenset({10}), suspect={20: "loss 9.1"})


def test_no_mark_is_lost_when_several_are_made_at_once(tmp_path):
    """A policy marks while a person pins."""
    threads = [
        threading.Thread(
            target=change_marks,
            args=(tmp_path, lambda old, step=step: replace(old, pinned=old.pinned | {step})),
        )
        for step in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_marks(tmp_path).pinned == frozenset(range(16))


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"pinned": ["x"], "suspect": {}})])
def test_marks_that_are_none_are_named(tmp_path, text):
    """Taken for no marks at all, they would let everything go that was pinned."""
    (tmp_path / MARKS_FILE).write_text(text)
    with pytest.raises(ValueError, match=MARKS_FILE):
        read_marks(tmp_path)


def test_a_suspect_checkpoint_is_passed_over_as_long_as_there_is_another(kit, tmp_path):
    """A resume would go on from a state that a loss spike has spoilt; without any other it is better than nothing."""
    for step in (10, 20, 30):
        kit.write(tmp_path, step, kit.state())
    newest = newest_complete(tmp_path, None, {20: "spike", 30: "spike"})
    assert newest.folder == tmp_path / "step-10"
    assert newest.warnings == tuple(f"passed over step-{step}: it is suspect: spike" for step in (30, 20))
    assert (
        newest_complete(tmp_path, None, dict.fromkeys((10, 20, 30), "spike")).folder == tmp_path / "step-30"
    )
