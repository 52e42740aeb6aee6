"""What the keys of a job file, or of another file that cards describe, are and take, read off the cards.

``root`` is the card of the whole file; a key inside a list of cards has the path of the list.
"""

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from trimtab.spec.card_types import Card, OneOf, Takes
from trimtab.spec.cards import Job
from trimtab.spec.docstrings import meaning_of

Path = tuple[str, ...]


def keys_of(card: type[Card]) -> Mapping[str, FieldInfo]:
    """The keys of a card as they are written, with their fields."""
    return {field.alias or name: field for name, field in card.model_fields.items()}


def name_of(root: type[Card]) -> str:
    """What files that a card describes are called: job, for a job file."""
    return root.__name__.lower()


def card_at(path: Path, root: type[Card] = Job) -> type[Card] | None:
    """The card that a path leads to, or None if the path leads elsewhere."""
    card: type[Card] | None = root
    for key in path:
        field = keys_of(card).get(key) if card else None
        card = _card_in(field.annotation) if field else None
    return card


def field_at(path: Path, root: type[Card] = Job) -> FieldInfo | None:
    """The field that a path names, or None if there is none."""
    if not path:
        return None
    card = card_at(path[:-1], root)
    return keys_of(card).get(path[-1]) if card else None


def meaning_at(path: Path, root: type[Card] = Job) -> str:
    """What a key means, with its unit and default: the docstring under its field; empty if there is no such key."""
    card, field = (card_at(path[:-1], root), field_at(path, root)) if path else (None, None)
    if card is None or field is None:
        return ""
    return next(meaning_of(card, name) for name, found in card.model_fields.items() if found is field)


def phrase_of(path: Path, root: type[Card] = Job) -> str:
    """What a key takes, in words: ``a whole number of at least 1, or 'auto'``."""
    field = field_at(path, root)
    if field is None:
        return "text" if field_at(path[:-1], root) else "something else"
    phrases = [item.phrase for item in field.metadata if isinstance(item, Takes)]
    return phrases[0] if phrases else _phrase(field.annotation)


def choices_at(path: Path, root: type[Card] = Job) -> tuple[str, ...]:
    """The words that a key takes, if it takes certain words."""
    field = field_at(path, root)
    return tuple(_choices(field.annotation)) if field else ()


def takes_text(path: Path, root: type[Card] = Job) -> bool:
    """Whether whatever is written under the key may be text, and neither number nor boolean."""
    field = field_at(path, root)
    if field is not None:
        kinds = set(_alternatives(field.annotation))
        return str in kinds and not kinds & {int, float, bool}
    parent = field_at(path[:-1], root)
    return parent is not None and get_args(parent.annotation)[1:] == (str,)


def takes_boolean(path: Path, root: type[Card] = Job) -> bool:
    """Whether the key takes true or false and nothing else."""
    field = field_at(path, root)
    return field is not None and set(_alternatives(field.annotation)) == {bool}


def nearest_name(word: str, names: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The name that was probably meant, hyphens and capitals forgiven.

    `cutoff` is the least share of letters in common, by `difflib`; a half lets a slip in ``lr`` find it.
    """
    by_spelling = {name.casefold().replace("-", "_"): name for name in names}
    spelling = word.casefold().replace("-", "_").replace(" ", "_")
    if spelling in by_spelling:
        return by_spelling[spelling]
    close = difflib.get_close_matches(spelling, list(by_spelling), n=1, cutoff=cutoff)
    return by_spelling[close[0]] if close else None


def paths_ending_in(key: str, root: type[Card] = Job) -> list[Path]:
    """Every place of the file where a key of this name belongs."""
    return [path for path in all_paths(root) if path[-1] == key]


def all_paths(card: type[Card] = Job, prefix: Path = ()) -> Iterator[Path]:
    """Every key of the file, sections before what they hold."""
    for key, field in keys_of(card).items():
        yield (*prefix, key)
        inner = _card_in(field.annotation)
        if inner is not None and key != "parallelism":
            yield from all_paths(inner, (*prefix, key))


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The types that a value may have, without None, constraints and nesting."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for alternative in get_args(annotation):
            yield from _alternatives(alternative)
    elif annotation is not types.NoneType:
        yield annotation


def _and_elements(annotation: Any) -> Iterator[Any]:
    """The types that a value may have, and those of the elements where it may be a list of any length."""
    for alternative in _alternatives(annotation):
        yield alternative
        if get_origin(alternative) is tuple and get_args(alternative)[1:] == (...,):
            yield from _and_elements(get_args(alternative)[0])


def _card_in(annotation: Any) -> type[Card] | None:
    for alternative in _and_elements(annotation):
        if isinstance(alternative, type) and issubclass(alternative, Card):
            return alternative
    return None


def _phrase(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        phrases = [item.phrase for item in get_args(annotation) if isinstance(item, Takes)]
        return phrases[0] if phrases else _phrase(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [_phrase(part) for part in get_args(annotation) if part is not types.NoneType]
        return ", or ".join(inner)
    if words := tuple(_choices(annotation)):
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    if isinstance(annotation, type) and issubclass(annotation, OneOf):
        return f"a mapping with exactly one of {', '.join(keys_of(annotation))}"
    if isinstance(annotation, type) and issubclass(annotation, Card):
        return f"a mapping with keys such as {', '.join(list(keys_of(annotation))[:3])}"
    return _WORDS.get(get_origin(annotation) or annotation, "something else")


_WORDS = {bool: "true or false", str: "text", int: "a whole number", float: "a number", dict: "a mapping"}


def _choices(annotation: Any) -> Iterator[str]:
    for alternative in _and_elements(annotation):
        if get_origin(alternative) is Literal:
            yield from get_args(alternative)
        elif isinstance(alternative, type) and issubclass(alternative, StrEnum):
            yield from (member.value for member in alternative)
