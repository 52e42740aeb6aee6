"""What a trial sets in the job, as ``--set`` says it: knobs, a strategy, formulas below it; and what may be tried at all."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.app.deciding import planned_strategies
from trimtab.app.errors import JobReadError
from trimtab.cost.search.tuning import Category, Knob, Numbers, Range, Space, Value
from trimtab.spec import LoadedJob
from trimtab.spec.resolved import plain_values
from trimtab.spec.tunings import KnobCard, Tuning

OWN = "own"
"""The strategy that the job says."""

STRATEGY = "strategy"
"""The knob that chooses one."""

UNSET = "as it is"
"""The value of a knob whose key the job says nothing about, where a trial says nothing either."""

_FORMULAS = "parallelism"
_VARIABLES = "orchestration.environment.set."
"""What stands here once cannot be taken back by another ``--set``: there is no value for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What a study chooses between, besides keys.

    Args:
        strategies: By label, what each sets: keys of the job with their values; the job's own first.
        lines: By knob, the formulas to choose from.
        texts: By knob, the values of keys that are no numbers, or that the job says nothing about, by the label that
            trials show.
    """

    strategies: Mapping[str, Mapping[str, Any]]
    lines: Mapping[str, Sequence[str]]
    texts: Mapping[str, Mapping[str, Any]]

    def document(self) -> dict[str, Any]:
        """As a study keeps it."""
        return {
            "strategies": {label: dict(settings) for label, settings in self.strategies.items()},
            "lines": {name: list(texts) for name, texts in self.lines.items()},
            "texts": {name: dict(values) for name, values in self.texts.items()},
        }


def choices_of(loaded: LoadedJob, tuning: Tuning) -> Choices:
    """What there is to choose from.

    Raises: JobReadError as ``deciding.planned_strategies``, or for a file of formulas that cannot be read.
    """
    strategies: dict[str, Mapping[str, Any]] = {OWN: {_FORMULAS: loaded.job.parallelism.text}}
    asked = tuning.strategies
    if asked is not None and asked.planned:
        answer = planned_strategies(
            loaded, top=asked.planned, origin="the planner's best strategies are to be tried"
        )
        for number, strategy in enumerate(answer.strategies, 1):
            strategies[f"planned {number}"] = {_FORMULAS: strategy.formulas, **strategy.settings}
    for name in asked.files if asked else ():
        try:
            strategies[name] = {_FORMULAS: Path(name).read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise JobReadError(f"{name}: cannot read formulas: {error}") from error
    return Choices(
        strategies=strategies,
        lines={lines.name: tuple(dict.fromkeys(("", *lines.one_of))) for lines in tuning.lines},
        texts={
            knob.key: _by_label(_as_it_is(loaded, knob), knob.values)
            for knob in tuning.knobs
            if knob.values is not None and not (_are_numbers(knob.values) and _as_it_is(loaded, knob))
        },
    )


def choices_from(document: Mapping[str, Any]) -> Choices:
    """What a study keeps."""
    return Choices(strategies=document["strategies"], lines=document["lines"], texts=document["texts"])


def space_of(loaded: LoadedJob, tuning: Tuning, choices: Choices) -> Space:
    """What trials may be; the first is the job as it is, then each planned strategy with the rest as it is."""
    knobs: dict[str, Knob] = {}
    own: dict[str, Value] = {}
    for card in tuning.knobs:
        knob = _knob(loaded, card, choices)
        knobs[card.key] = knob
        own[card.key] = _own_value(loaded, card, knob, choices)
    if len(choices.strategies) > 1:
        knobs[STRATEGY] = Category(values=tuple(choices.strategies))
        own[STRATEGY] = OWN
    for name, texts in choices.lines.items():
        knobs[name] = Category(values=tuple(texts))
        own[name] = ""
    seeds = [own, *({**own, STRATEGY: label} for label in choices.strategies if label != OWN)]
    return Space(knobs=knobs, seeds=seeds)


def settings_of(params: Mapping[str, Value], choices: Choices) -> dict[str, Any]:
    """Keys of the job and their values, as a trial has them."""
    settings: dict[str, Any] = {}
    label = str(params.get(STRATEGY, OWN))
    lines = [str(params[name]) for name in choices.lines if params[name]]
    if label != OWN or lines:
        settings |= choices.strategies[label]
        settings[_FORMULAS] = "\n".join((str(settings[_FORMULAS]).rstrip("\n"), *lines)) + "\n"
    for name, value in params.items():
        if name != STRATEGY and name not in choices.lines and value != UNSET:
            settings[name] = choices.texts[name][str(value)] if name in choices.texts else value
    return settings


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """What stands behind each ``--set``."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def undoing(loaded: LoadedJob, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the job had at the keys that a trial sets; None at a key that said nothing.

    Variables of the environment that the job did not set are not among them: see ``to_leave_out``.
    """
    return {key: value for key, value in _before(loaded, settings).items() if not _cannot_go(key, value)}


def to_leave_out(loaded: LoadedJob, settings: Mapping[str, Any]) -> list[str]:
    """The keys that a trial sets which are undone by not setting them only."""
    return [key for key, value in _before(loaded, settings).items() if _cannot_go(key, value)]


def _before(loaded: LoadedJob, settings: Mapping[str, Any]) -> dict[str, Any]:
    values = plain_values(loaded.job)
    return {key: loaded.job.parallelism.text if key == _FORMULAS else _at(values, key) for key in settings}


def _cannot_go(key: str, before: object) -> bool:
    return before is None and key.startswith(_VARIABLES)


def changed_settings(loaded: LoadedJob, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a trial's settings that differ from the job's own."""
    before = _before(loaded, settings)
    return {key: value for key, value in settings.items() if before[key] != value}


def _knob(loaded: LoadedJob, card: KnobCard, choices: Choices) -> Knob:
    if card.between is not None:
        low, high = card.between
        is_whole = isinstance(low, int) and isinstance(high, int)
        return Range(low=low, high=high, is_log=card.scale == "log", is_whole=is_whole)
    assert card.values is not None, "a knob is one of both"
    if card.key in choices.texts:
        return Category(values=tuple(choices.texts[card.key]))
    numbers = {value for value in (*_as_it_is(loaded, card), *card.values) if _is_number(value)}
    return Numbers(values=tuple(sorted(numbers)))


def _own_value(loaded: LoadedJob, card: KnobCard, knob: Knob, choices: Choices) -> Value:
    """What the job says; of a range that does not hold it, the nearest end; where it says nothing, nothing."""
    written = _as_it_is(loaded, card)
    if isinstance(knob, Range):
        value = written[0] if written and _is_number(written[0]) else knob.low
        return knob.nearest(min(max(float(value), knob.low), knob.high))
    if not written:
        return UNSET if card.key in choices.texts else knob.values[0]
    return _label(written[0]) if isinstance(knob, Category) else written[0]


def _as_it_is(loaded: LoadedJob, card: KnobCard) -> tuple[Any, ...]:
    value = _at(plain_values(loaded.job), card.key)
    return () if value is None or isinstance(value, dict) else (value,)


def _at(values: Mapping[str, Any], key: str) -> Any:  # of the job
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def _by_label(written: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
    return {**({} if written else {UNSET: None}), **{_label(value): value for value in (*written, *values)}}


def _label(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _are_numbers(values: Sequence[object]) -> bool:
    return all(_is_number(value) for value in values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
