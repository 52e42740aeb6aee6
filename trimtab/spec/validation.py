"""A tree of values into a typed job, or everything that is wrong with it, each with its place."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trimtab.spec.cards import Job
from trimtab.spec.errors import Problem
from trimtab.spec.fields import (
    Path,
    card_at,
    choices_at,
    keys_of,
    nearest_name,
    paths_ending_in,
    phrase_of,
    takes_boolean,
    takes_text,
)
from trimtab.spec.sources import EXTENDS
from trimtab.spec.yaml_documents import (
    ListValue,
    MappingValue,
    ScalarValue,
    YamlScalar,
    YamlValue,
    resolve_scalar,
)
from trimtab.terms import Span

LOOSE_BOOLEANS = {
    "true": True, "True": True, "TRUE": True, "yes": True, "on": True, "1": True,
    "false": False, "False": False, "FALSE": False, "no": False, "off": False, "0": False,
}  # fmt: skip
"""Spellings of a boolean in ``--set`` and in environment variables; a file takes true and false only."""


FOREIGN_KEYS = {
    "learning_rate": "lr",
    "batch_size": "batch",
    "global_batch_size": "batch",
    "micro_batch_size": "microbatch",
    "max_steps": "steps",
    "num_steps": "steps",
    "num_epochs": "epochs",
    "sequence_length": "sequence",
    "seq_len": "sequence",
    "warmup_steps": "warmup",
    "scheduler": "lr_schedule",
    "max_grad_norm": "clip",
    "gradient_clipping": "clip",
    "precision": "compute",
    "dtype": "compute",
    "world_size": "devices",
    "gpus": "devices",
}
"""What other systems call our keys."""


def validate(tree: MappingValue) -> Job | list[Problem]:
    """The job that a tree of values states, or everything that is wrong with it, in the order of the text."""
    try:
        return Job.model_validate(_with_what_a_script_says(_plain(tree, ())))
    except ValidationError as error:
        problems = list(_problems(tree, error.errors(include_url=False)))
        return sorted(
            problems, key=lambda problem: (problem.span.source, problem.span.line, problem.span.column)
        )


def _with_what_a_script_says(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a job; network, text and length may be left out where a program of the user's brings them."""
    if values.get("script") is None:
        return values
    data = values.get("data", {})
    return {
        "model": {},
        "train": {},
        **values,
        "data": {"text": (), **data} if isinstance(data, dict) else data,
    }


def value_at(tree: YamlValue, path: Sequence[str | int]) -> YamlValue | None:
    """The value that a path leads to, or None if nothing is written there."""
    value: YamlValue | None = tree
    for key in path:
        value = _child(value, key) if value is not None else None
    return value


def key_span_at(tree: MappingValue, path: Sequence[str]) -> Span | None:
    """The place of the key that a path ends in, or None if it is not written."""
    parent = value_at(tree, path[:-1])
    if isinstance(parent, MappingValue) and path and path[-1] in parent.entries:
        return parent.entries[path[-1]].key_span
    return None


def nearest_span(tree: MappingValue, path: Sequence[str]) -> Span:
    """The place of the innermost section on a path that is written at all."""
    for length in range(len(path), 0, -1):
        if span := key_span_at(tree, path[:length]):
            return span
    return tree.span


def _child(value: YamlValue, key: str | int) -> YamlValue | None:
    if isinstance(value, MappingValue) and key in value.entries:
        return value.entries[str(key)].value
    if isinstance(value, ListValue) and isinstance(key, int) and key < len(value.items):
        return value.items[key]
    return None


def _plain(value: YamlValue, path: Path) -> Any:  # a value of YAML: text, number, list, dict
    if isinstance(value, MappingValue):
        return {key: _plain(entry.value, (*path, key)) for key, entry in value.entries.items()}
    if isinstance(value, ListValue):
        return tuple(_plain(item, path) for item in value.items)
    return _typed_by_field(value, path) if value.is_loose else value.value


def _typed_by_field(scalar: ScalarValue, path: Path) -> YamlScalar:
    if scalar.value is None:
        return None
    if takes_boolean(path):
        return LOOSE_BOOLEANS.get(scalar.text, scalar.text)
    return scalar.text if takes_text(path) else scalar.value


def _problems(tree: MappingValue, errors: Sequence[ErrorDetails]) -> Iterator[Problem]:
    """One problem for each place: a union complains once for each of its types."""
    seen: dict[tuple[str | int, ...], ErrorDetails] = {}
    for error in errors:
        seen.setdefault(_written_path(tree, error), error)
    places = list(seen)
    meant = {
        (*place[:-1], meant)
        for place, error in seen.items()
        if error["type"] == "extra_forbidden" and (meant := _meant_key(_names(place)))
    }
    for place, error in seen.items():
        is_explained = any(len(other) > len(place) and other[: len(place)] == place for other in places)
        if place in meant if _is_missing_key(error) else is_explained:
            continue
        if error["type"] == "extra_forbidden":
            yield _unknown_key(tree, _names(place))
        elif _is_missing_key(error):
            yield _missing_key(tree, _names(place))
        else:
            yield _wrong_value(tree, place)


def _is_missing_key(error: ErrorDetails) -> bool:
    """Whether a key is missing, rather than an element of a list."""
    return error["type"] == "missing" and isinstance(error["loc"][-1], str)


def _written_path(tree: MappingValue, error: ErrorDetails) -> tuple[str | int, ...]:
    """Where an error stands in the text: pydantic's location without the names of types between the keys."""
    path: tuple[str | int, ...] = ()
    for part in error["loc"]:
        if value_at(tree, (*path, part)) is not None:
            path = (*path, part)
    return (*path, error["loc"][-1]) if _is_missing_key(error) else path


def _names(place: Sequence[str | int]) -> Path:
    return tuple(part for part in place if isinstance(part, str))


def _valid_keys(parent: Path) -> list[str]:
    card = card_at(parent)
    assert card is not None, "only a card refuses keys"
    return [*keys_of(card), *([EXTENDS] if not parent else [])]


def _meant_key(path: Path) -> str | None:
    """The key of the same section that was probably meant."""
    valid = _valid_keys(path[:-1])
    translated = FOREIGN_KEYS.get(nearest_name(path[-1], FOREIGN_KEYS, cutoff=0.85) or "")
    return translated if translated in valid else nearest_name(path[-1], valid)


def _sections_of(path: Path) -> tuple[str, list[str]]:
    """The key as it is spelt in other sections, and those sections."""
    key = path[-1].replace("-", "_")
    if not paths_ending_in(key):
        key = FOREIGN_KEYS.get(nearest_name(key, FOREIGN_KEYS, cutoff=0.85) or "", key)
    others = [found[:-1] for found in paths_ending_in(key) if found[:-1] != path[:-1]]
    return key, [".".join(section) or "the top level" for section in others]


def _unknown_key(tree: MappingValue, path: Path) -> Problem:
    parent, key = path[:-1], path[-1]
    span = key_span_at(tree, path)
    assert span is not None, "a key that is not written cannot be unknown"
    section = ".".join(parent) or "the job file"
    meant = _meant_key(path)
    there, sections = _sections_of(path)
    advice = [f"Did you mean {meant!r}?"] if meant else []
    if sections:
        advice.append(f"{there!r} belongs in {' or '.join(sections)}.")
    if not advice:
        advice.append(f"Keys of {section}: {', '.join(_valid_keys(parent))}.")
    message = f"unknown key {key!r} in {section}"
    return Problem(span=span, message=message, hint="  ".join(advice), path=".".join(path))


def _missing_key(tree: MappingValue, path: Path) -> Problem:
    dotted = ".".join(path)
    return Problem(
        span=nearest_span(tree, path[:-1]),
        message=f"{dotted} is missing; it takes {phrase_of(path)}",
        hint=f"Add `{path[-1]}: …`"
        + (f" under {'.'.join(path[:-1])}." if path[:-1] else " at the top level."),
        path=dotted,
    )


def _wrong_value(tree: MappingValue, place: Sequence[str | int]) -> Problem:
    path = _names(place)
    value = value_at(tree, place)
    assert value is not None, "only what is written can have a wrong value"
    dotted = ".".join(path)
    span = value.span
    if not path or (isinstance(value, MappingValue) and key_span_at(tree, path)):
        span = nearest_span(tree, path)
    message = f"{dotted} is {_found(value)}; it takes {phrase_of(path)}"
    return Problem(span=span, message=message, hint=_advice(value, path), path=dotted)


def _found(value: YamlValue) -> str:
    if isinstance(value, MappingValue):
        return f"a mapping with {' and '.join(value.entries)}" if value.entries else "an empty mapping"
    if isinstance(value, ListValue):
        return f"a list of {len(value.items)}"
    if value.value is None:
        return "empty"
    if isinstance(value.value, bool):
        return str(value.value).lower()
    return f"the text {value.text!r}" if isinstance(value.value, str) else f"the number {value.text}"


def _advice(value: YamlValue, path: Path) -> str:
    if not isinstance(value, ScalarValue):
        return ""
    if isinstance(value.value, str) and (near := nearest_name(value.text, choices_at(path))):
        return f"Did you mean {near!r}?"
    if takes_boolean(path):
        is_loose = value.is_loose
        return (
            f"Spellings: {', '.join(LOOSE_BOOLEANS)}." if is_loose else "Write true or false, without quotes."
        )
    if takes_text(path) and not isinstance(value.value, str) and value.text:
        return f'Put quotes around text that looks like something else: "{value.text}".'
    if not value.is_plain and not isinstance(resolve_scalar(value.text), str):
        return "Remove the quotes."
    if value.value is None:
        return "Write a value, or take the key out to get its default."
    return ""
