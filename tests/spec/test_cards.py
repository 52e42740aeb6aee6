"""The surface of a job file, pinned."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from trimtab.spec import AdamW, Constant, Environment, Job, LrSchedule, Optimizer, Parallelism, Sgd
from trimtab.spec.fields import all_paths, phrase_of

KEYS = Path(__file__).parents[1] / "golden" / "spec" / "keys.txt"


def test_keys_and_what_they_take() -> None:
    """Otherwise a key is renamed, and every job file that names it breaks, unseen."""
    lines = "".join(f"{'.'.join(path)}: {phrase_of(path)}\n" for path in all_paths())
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        KEYS.write_text(lines)
    assert lines == KEYS.read_text()


def test_choices_hold_one_member() -> None:
    """Otherwise a job has two optimizers, and one of them is ignored."""
    assert Optimizer(sgd=Sgd()).name == "sgd"
    assert isinstance(Optimizer(adamw=AdamW()).chosen, AdamW)
    assert LrSchedule(constant=Constant(warmup=3)).chosen.warmup == 3
    for members in ({}, {"sgd": Sgd(), "adamw": AdamW()}):
        with pytest.raises(ValidationError, match="exactly one of adamw, sgd"):
            Optimizer.model_validate(members)


def test_nothing_is_converted_in_silence() -> None:
    """Otherwise "3" steps, or a batch of 8.0, passes for a number."""
    good = {"run": "a", "model": {"preset": "x"}, "data": {"text": "y"}, "train": {"steps": 3}}
    assert Job.model_validate(good).train.steps == 3
    for wrong in ("3", 3.0, True):
        with pytest.raises(ValidationError):
            Job.model_validate({**good, "train": {"steps": wrong}})


def test_cards_do_not_change() -> None:
    """Otherwise the values that were checked are not those that run."""
    with pytest.raises(ValidationError, match="frozen"):
        Sgd().lr = 3.0  # type: ignore[misc]  # that is the point


def test_cards_write_their_yaml_names() -> None:
    """Otherwise a stored environment does not read back."""
    environment = Environment.model_validate({"pass": ["A"], "set": {"B": "c"}})
    assert environment.model_dump(by_alias=True) == {"pass": ("A",), "set": {"B": "c"}}
    assert Parallelism(text="MESH dp 2").model_dump() == "MESH dp 2"
