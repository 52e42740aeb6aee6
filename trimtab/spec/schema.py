"""The JSON schema of a job file, for editors."""

from collections.abc import Iterator
from typing import Any

from trimtab.spec.card_types import Card, OneOf
from trimtab.spec.cards import Job
from trimtab.spec.docstrings import meaning_of
from trimtab.spec.sources import EXTENDS


def job_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), built from the cards: types, limits, defaults, and every docstring."""
    schema = Job.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Trimtab job file"
    description = "Path of a job file whose values hold where this one says nothing. Default: none."
    schema["properties"] = {EXTENDS: {"type": "string", "description": description}, **schema["properties"]}
    schema["anyOf"] = [{"required": ["model", "data", "train"]}, {"required": ["script"]}]
    schema["required"] = ["run"]
    cards: list[type[Card]] = [Job, *_cards_below(Card)]
    for card in cards:
        _describe(card, schema if card is Job else schema["$defs"].get(card.__name__, {}))
    for choice in OneOf.__subclasses__():
        schema["$defs"][choice.__name__] |= {"minProperties": 1, "maxProperties": 1}
    return schema


def _cards_below(card: type[Card]) -> Iterator[type[Card]]:
    for below in card.__subclasses__():
        yield below
        yield from _cards_below(below)


def _describe(card: type[Card], schema: dict[str, Any]) -> None:
    """Write the docstring of each field into its place in the card's schema."""
    for name, field in card.model_fields.items():
        if name in schema.get("properties", {}) or field.alias in schema.get("properties", {}):
            schema["properties"][field.alias or name]["description"] = meaning_of(card, name)
