"""The JSON schema of the document, read off its classes: every class an object, every field a key."""

import inspect
import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from trimtab.cost.explanation.comparing import Comparison
from trimtab.cost.explanation.document import Explanation
from trimtab.cost.explanation.tracing import TraceFacts

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}

_ARGUMENT = re.compile(r"^ {4}(\w+): (.*)$")


def explanation_schema() -> dict[str, Any]:
    """The schema of what ``explain --json`` prints: ``trace`` is there with ``--trace`` only."""
    schema = _schema("trimtab explain", Explanation)
    meaning = "What the program of the plan sends and computes; only with --trace."
    traced = {"description": meaning, **_schema_of(TraceFacts, schema["$defs"])}
    schema["$defs"][Explanation.__name__]["properties"]["trace"] = traced
    schema["$defs"] = dict(sorted(schema["$defs"].items()))
    return schema


def comparison_schema() -> dict[str, Any]:
    """The schema of what ``explain --diff --json`` prints."""
    return _schema("trimtab explain --diff", Comparison)


def _schema(title: str, kind: type) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    root = _schema_of(kind, definitions)
    return {"$schema": DIALECT, "title": title, **root, "$defs": dict(sorted(definitions.items()))}


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(argument, definitions) for argument in arguments]}
    if origin is tuple:
        assert arguments[1:] == (Ellipsis,), "lists have one type"
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], definitions)}
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # Stands for itself where a class holds its own kind.
        definitions[name] = _enum(kind) if issubclass(kind, Enum) else _object(kind, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _enum(kind: type[Enum]) -> dict[str, Any]:
    return {"description": _first_line(kind), "enum": [member.value for member in kind]}


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    assert is_dataclass(kind), "documents are made of dataclasses"
    hints, meanings = get_type_hints(kind), _meanings(kind)
    return {
        "description": _first_line(kind),
        "type": "object",
        "properties": {
            field.name: {"description": meanings[field.name], **_schema_of(hints[field.name], definitions)}
            for field in fields(kind)
        },
        "required": [field.name for field in fields(kind)],
        "additionalProperties": False,
    }


def _first_line(kind: type) -> str:
    return inspect.getdoc(kind).partition("\n")[0]  # type: ignore[union-attr]  # every class has a docstring


def _meanings(kind: type) -> dict[str, str]:
    """What the docstring says of each field."""
    found: dict[str, str] = {}
    name = ""
    text = inspect.getdoc(kind) or ""
    for line in text.partition("Args:\n")[2].splitlines():
        match = _ARGUMENT.match(line)
        if match is not None:
            name = match[1]
            found[name] = match[2].strip()
        elif name and line.strip():
            found[name] += " " + line.strip()
        elif not line.strip():
            name = ""
    return found
