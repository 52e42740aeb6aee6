"""The published schemas say what the documents are: generated from the classes, checked against the goldens."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trimtab.cost.explanation import document_of
from trimtab.cost.explanation.schema import comparison_schema, explanation_schema
from trimtab.cost.explanation.tracing import TraceFacts

ROOT = Path(__file__).parents[3]
GOLDENS = sorted((ROOT / "tests/golden/plan/explanation").glob("*.json"))
PUBLISHED = {"explain.schema.json": explanation_schema, "explain-diff.schema.json": comparison_schema}

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def problems(value: Any, schema: dict[str, Any], definitions: dict[str, Any], path: str = "") -> list[str]:
    """What a value breaks of the part of JSON schema that ours uses."""
    if "$ref" in schema:
        return problems(value, definitions[schema["$ref"].removeprefix("#/$defs/")], definitions, path)
    if "anyOf" in schema:
        found = [problems(value, choice, definitions, path) for choice in schema["anyOf"]]
        return [] if any(not choice for choice in found) else [f"{path}: none of {len(found)} choices"]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{path}: {value!r} is not one of {schema['enum']}"]
    kind = schema["type"]
    is_wrong_number = isinstance(value, bool) and kind in ("integer", "number")
    if not isinstance(value, TYPES[kind]) or is_wrong_number:
        return [f"{path}: {value!r} is no {kind}"]
    if kind == "array":
        return [
            problem
            for index, item in enumerate(value)
            for problem in problems(item, schema["items"], definitions, f"{path}[{index}]")
        ]
    if kind == "object":
        return _object_problems(value, schema, definitions, path)
    return []


def _object_problems(
    value: dict[str, Any], schema: dict[str, Any], definitions: dict[str, Any], path: str
) -> list[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [f"{path}: no {key}" for key in schema.get("required", []) if key not in value]
    for key, item in value.items():
        if key in known:
            found += problems(item, known[key], definitions, f"{path}.{key}")
        elif others is False:
            found.append(f"{path}: {key} is not in the schema")
        elif isinstance(others, dict):
            found += problems(item, others, definitions, f"{path}.{key}")
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_schema_is_generated(name: str) -> None:
    """Who validates against the page must not be surprised by the program; TRIMTAB_REGENERATE=1 writes it."""
    path = ROOT / "docs" / name
    text = json.dumps(PUBLISHED[name](), indent=2) + "\n"
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_every_document_is_what_the_schema_says(path: Path) -> None:
    """A key that the schema does not know is one that nobody may rely on."""
    schema = comparison_schema() if ".diff" in path.name else explanation_schema()
    assert problems(json.loads(path.read_text(encoding="utf-8")), schema, schema["$defs"]) == []


def test_the_check_finds_what_is_wrong() -> None:
    """A validator that accepts everything proves nothing."""
    schema = explanation_schema()
    document = json.loads((ROOT / "tests/golden/plan/explanation/ddp.json").read_text(encoding="utf-8"))
    for change in (
        {"version": "1"},
        {"fits": 1},
        {"extra": None},
        {"groups": [{**document["groups"][0], "memory": None}]},
        {"on_loss": {**document["on_loss"], "rule": "hope"}},
    ):
        assert problems(document | change, schema, schema["$defs"])
    assert problems({key: value for key, value in document.items() if key != "cost"}, schema, schema["$defs"])


def test_a_trace_is_what_the_schema_says() -> None:
    """It is there for who asks for it only, and no less to be relied on."""
    schema = explanation_schema()
    document = json.loads((ROOT / "tests/golden/plan/explanation/ddp.json").read_text(encoding="utf-8"))
    trace = document_of(TraceFacts(step=1, is_as_planned=False, differences=("one",), ranks=()))
    assert problems(document | {"trace": trace}, schema, schema["$defs"]) == []
    assert problems(document | {"trace": trace | {"step": None}}, schema, schema["$defs"])


def test_every_key_says_what_it_means() -> None:
    """A schema without descriptions is a list of names."""
    for build in PUBLISHED.values():
        for definition in build()["$defs"].values():
            assert definition["description"]
            assert all(found["description"] for found in definition.get("properties", {}).values())
