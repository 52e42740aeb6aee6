"""Values of the policies as JSON, and back: what journals and links between processes hold.

A frozen dataclass becomes an object whose key ``is`` names its class. Only classes that the caller knows by name come
back: what arrives over a network must not choose what is made of it.
"""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any

from trimtab.terms import RunError

Kinds = Mapping[str, type[Any]]
"""Dataclasses by the names under which they are written."""


class CodecError(RunError):
    """JSON that is no value of the kinds that were expected."""


def kinds_of(*classes: type[Any]) -> Kinds:
    """Dataclasses by their names, and those that their fields hold.

    >>> from trimtab.policy.events import Declare
    >>> sorted(kinds_of(Declare))
    ['Declare', 'Fault']
    """
    found: dict[str, type[Any]] = {}
    waiting: list[Any] = list(classes)
    while waiting:
        each = waiting.pop()
        waiting += typing.get_args(each)
        if isinstance(each, type) and is_dataclass(each) and each.__name__ not in found:
            found[each.__name__] = each
            waiting += typing.get_type_hints(each).values()
    return found


def to_json(value: Any) -> Any:
    """A value as JSON can hold it; dataclasses and enums at any depth."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "is": type(value).__name__,
            **{each.name: to_json(getattr(value, each.name)) for each in fields(value)},
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def from_json(value: Any, kinds: Kinds) -> Any:
    """The dataclass that ``to_json`` wrote.

    Raises: CodecError if it is none of these kinds, or its fields are not what the kind has.
    """
    try:
        kind = kinds[value["is"]]
        hints = typing.get_type_hints(kind)
        return kind(**{key: _typed(hints[key], item, kinds) for key, item in value.items() if key != "is"})
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CodecError(f"no value of this version: {str(value)[:160]} ({error!r})") from error


def _typed(hint: Any, value: Any, kinds: Kinds) -> Any:
    """What JSON does not know of a field's type: tuples, enums, and dataclasses inside."""
    if isinstance(value, dict) and isinstance(value.get("is"), str) and value["is"] in kinds:
        return from_json(value, kinds)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        chosen = [each for each in typing.get_args(hint) if each is not type(None)]
        return None if value is None else _typed(chosen[0], value, kinds)
    if typing.get_origin(hint) is tuple and isinstance(value, Sequence):
        inner = typing.get_args(hint)
        each = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_typed(one, item, kinds) for one, item in zip(each, value, strict=True))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    if hint in (int, str, bool) and type(value) is not hint:
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value
