"""The learning rate over the steps as a scheduler of DeepSpeed.

Its warm-up begins at rate 0, ours one part of the rise above it: step / n there, (step + 1) / (n + 1) here.
"""

from typing import Any

from trimtab.spec.cards import AdamW, Sgd
from trimtab.spec.migration.deepspeed.facts import Facts
from trimtab.spec.migration.deepspeed.schedules import PARAMS, PEAK, TOTAL, TYPE, WARMUP
from trimtab.spec.migration.deepspeed.written import Written
from trimtab.spec.migration.keys import Key

_SCHEDULERS = {"constant": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}
_ENDING = ("linear", "cosine")
_FEWEST = 2
"""Steps of the shortest warm-up there."""


def write_steps(written: Written, key: Key, facts: Facts) -> None:
    """The number of steps, which only a scheduler knows."""
    if any(getattr(key.job.train.lr_schedule, name) is not None for name in _ENDING):
        written.carry(key.path, key.text, {TOTAL: key.value})
    else:
        written.refuse(key.path, key.text, "your script says how long to train")


def write_schedule(written: Written, key: Key, facts: Facts) -> None:
    """One setting of the schedule; the warm-up brings the scheduler with it."""
    name = key.path.split(".")[2]
    if name not in _SCHEDULERS:
        written.refuse(key.path, key.text, "the rate can stay, fall in a line or with a cosine there")
    elif name in _ENDING and key.job.train.steps is None:
        written.refuse(key.path, key.text, "a rate that falls needs train.steps there, not epochs")
    elif key.name == "warmup":
        _write_warmup(written, key, name)
    elif name == "cosine":
        written.carry(key.path, key.text, {f"{PARAMS}cos_min_ratio": key.value})
    else:
        lost = ["the rate falls to 0 there"] if key.value else []
        written.tell(key.path, key.text, {TYPE: _SCHEDULERS[name]}, lost)


def _write_warmup(written: Written, key: Key, name: str) -> None:
    if name == "constant" and not key.value:
        if not key.is_default:
            written.drop(key.path, key.text, "without a scheduler the rate stays as it is")
        return
    settings: dict[str, Any] = {
        TYPE: _SCHEDULERS[name],
        WARMUP: max(key.value, 1),
        f"{PARAMS}warmup_type": "linear",
    }
    optimizer = key.job.train.optimizer.chosen
    assert isinstance(optimizer, AdamW | Sgd)
    if name == "cosine":
        settings |= {f"{PARAMS}warmup_min_ratio": 0}
    else:
        settings |= {f"{PARAMS}warmup_min_lr": 0, PEAK: optimizer.lr}
    lost = [f"a warm-up has at least {_FEWEST} steps there"] if key.value < _FEWEST else []
    written.tell(key.path, key.text, settings, lost)
