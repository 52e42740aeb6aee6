"""A tree of values into a typed job, or everything that is wrong with it, each with its place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trimtab.spec.card_types import Card
from trimtab.spec.cards import Job
from trimtab.spec.errors import Problem
from trimtab.spec.fields import (
    Path,
    card_at,
    choices_at,
    keys_of,
    name_of,
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


C = TypeVar("C", bound=Card)


def validate(tree: MappingValue) -> Job | list[Problem]:
    """The job that a tree of values states, or everything that is wrong with it, in the order of the text."""
    return validate_as(Job, tree, _with_what_a_script_says(_plain(tree, (), Job)))


def validate_as(root: type[C], tree: MappingValue, values: object = None) -> C | list[Problem]:
    """The card that a tree of values states, or everything that is wrong with it, in the order of the text.

    Args:
        root: The card.
        tree: As read.
        values: What is checked instead of the tree's own values; None for these.
    """
    try:
        return root.model_validate(_plain(tree, (), root) if values is None else values)
    except ValidationError as error:
        problems = list(_Judge(tree=tree, root=root).problems(error.errors(include_url=False)))
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


def key_span_at(tree: MappingValue, path: Sequence[str | int]) -> Span | None:
    """The place of the key that a path ends in, or of the element of a list, or None if it is not written."""
    parent = value_at(tree, path[:-1])
    if isinstance(parent, MappingValue) and path and path[-1] in parent.entries:
        return parent.entries[str(path[-1])].key_span
    if isinstance(parent, ListValue) and path and (element := _child(parent, path[-1])):
        return element.span
    return None


def nearest_span(tree: MappingValue, path: Sequence[str | int]) -> Span:
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


def _plain(
    value: YamlValue, path: Path, root: type[Card]
) -> Any:  # a value of YAML: text, number, list, dict
    if isinstance(value, MappingValue):
        return {key: _plain(entry.value, (*path, key), root) for key, entry in value.entries.items()}
    if isinstance(value, ListValue):
        return tuple(_plain(item, path, root) for item in value.items)
    return _typed_by_field(value, path, root) if value.is_loose else value.value


def _typed_by_field(scalar: ScalarValue, path: Path, root: type[Card]) -> YamlScalar:
    if scalar.value is None:
        return None
    if takes_boolean(path, root):
        return LOOSE_BOOLEANS.get(scalar.text, scalar.text)
    return scalar.text if takes_text(path, root) else scalar.value


def _is_missing_key(error: ErrorDetails) -> bool:
    """Whether a key is missing, rather than an element of a list."""
    return error["type"] == "missing" and isinstance(error["loc"][-1], str)


def _names(place: Sequence[str | int]) -> Path:
    return tuple(part for part in place if isinstance(part, str))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judge:
    """Says what is wrong with a tree, in words about the keys of its card."""

    tree: MappingValue
    root: type[Card]

    def problems(self, errors: Sequence[ErrorDetails]) -> Iterator[Problem]:
        """One problem for each place: a union complains once for each of its types."""
        seen: dict[tuple[str | int, ...], ErrorDetails] = {}
        for error in errors:
            seen.setdefault(self._written_path(error), error)
        places = list(seen)
        meant = {
            (*place[:-1], meant)
            for place, error in seen.items()
            if error["type"] == "extra_forbidden" and (meant := self._meant_key(_names(place)))
        }
        for place, error in seen.items():
            is_explained = any(len(other) > len(place) and other[: len(place)] == place for other in places)
            if place in meant if _is_missing_key(error) else is_explained:
                continue
            if error["type"] == "extra_forbidden":
                yield self._unknown_key(place)
            elif _is_missing_key(error):
                yield self._missing_key(place)
            else:
                yield self._wrong_value(place)

    def _written_path(self, error: ErrorDetails) -> tuple[str | int, ...]:
        """Where an error stands in the text: pydantic's location without the names of types between the keys."""
        path: tuple[str | int, ...] = ()
        for part in error["loc"]:
            if value_at(self.tree, (*path, part)) is not None:
                path = (*path, part)
        return (*path, error["loc"][-1]) if _is_missing_key(error) else path

    def _valid_keys(self, parent: Path) -> list[str]:
        card = card_at(parent, self.root)
        assert card is not None, "only a card refuses keys"
        return [*keys_of(card), *([EXTENDS] if not parent and self.root is Job else [])]

    def _meant_key(self, path: Path) -> str | None:
        """The key of the same section that was probably meant."""
        valid = self._valid_keys(path[:-1])
        translated = FOREIGN_KEYS.get(nearest_name(path[-1], FOREIGN_KEYS, cutoff=0.85) or "")
        return translated if translated in valid else nearest_name(path[-1], valid)

    def _sections_of(self, path: Path) -> tuple[str, list[str]]:
        """The key as it is spelt in other sections, and those sections."""
        key = path[-1].replace("-", "_")
        if not paths_ending_in(key, self.root):
            key = FOREIGN_KEYS.get(nearest_name(key, FOREIGN_KEYS, cutoff=0.85) or "", key)
        others = [found[:-1] for found in paths_ending_in(key, self.root) if found[:-1] != path[:-1]]
        return key, [".".join(section) or "the top level" for section in others]

    def _unknown_key(self, place: Sequence[str | int]) -> Problem:
        path = _names(place)
        parent, key = path[:-1], path[-1]
        span = key_span_at(self.tree, place)
        assert span is not None, "a key that is not written cannot be unknown"
        section = ".".join(parent) or f"the {name_of(self.root)} file"
        meant = self._meant_key(path)
        there, sections = self._sections_of(path)
        advice = [f"Did you mean {meant!r}?"] if meant else []
        if sections:
            advice.append(f"{there!r} belongs in {' or '.join(sections)}.")
        if not advice:
            advice.append(f"Keys of {section}: {', '.join(self._valid_keys(parent))}.")
        message = f"unknown key {key!r} in {section}"
        return Problem(span=span, message=message, hint="  ".join(advice), path=".".join(path))

    def _missing_key(self, place: Sequence[str | int]) -> Problem:
        path = _names(place)
        dotted = ".".join(path)
        return Problem(
            span=nearest_span(self.tree, place[:-1]),
            message=f"{dotted} is missing; it takes {phrase_of(path, self.root)}",
            hint=f"Add `{path[-1]}: …`"
            + (f" under {'.'.join(path[:-1])}." if path[:-1] else " at the top level."),
            path=dotted,
        )

    def _wrong_value(self, place: Sequence[str | int]) -> Problem:
        path = _names(place)
        value = value_at(self.tree, place)
        assert value is not None, "only what is written can have a wrong value"
        dotted = ".".join(path)
        span = value.span
        if not path or (isinstance(value, MappingValue) and key_span_at(self.tree, place)):
            span = nearest_span(self.tree, place)
        message = f"{dotted} is {_found(value)}; it takes {phrase_of(path, self.root)}"
        return Problem(span=span, message=message, hint=self._advice(value, path), path=dotted)

    def _advice(self, value: YamlValue, path: Path) -> str:
        if not isinstance(value, ScalarValue):
            return ""
        if isinstance(value.value, str) and (near := nearest_name(value.text, choices_at(path, self.root))):
            return f"Did you mean {near!r}?"
        if takes_boolean(path, self.root):
            is_loose = value.is_loose
            return (
                f"Spellings: {', '.join(LOOSE_BOOLEANS)}."
                if is_loose
                else "Write true or false, without quotes."
            )
        if takes_text(path, self.root) and not isinstance(value.value, str) and value.text:
            return f'Put quotes around text that looks like something else: "{value.text}".'
        if not value.is_plain and not isinstance(resolve_scalar(value.text), str):
            return "Remove the quotes."
        if value.value is None:
            return "Write a value, or take the key out to get its default."
        return ""


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
