"""The JSON schema: what an editor accepts and shows."""

import re
from typing import Any

import pytest

from trimtab.spec import job_schema
from trimtab.spec.fields import all_paths, meaning_at

EXAMPLES: list[dict[str, Any]] = [
    {"run": "a", "model": {"preset": "gpt-3m"}, "data": {"text": "python-stdlib"}, "train": {"steps": 1}},
    {
        "extends": "base.yaml",
        "run": "b",
        "model": {"module": "a.b:C", "args": {"width": 3}},
        "data": {"text": ["x", "y"], "tokenizer": {"bpe": {"vocab": 512}}, "packing": "pad"},
        "train": {"epochs": 2.5, "microbatch": "auto", "clip": "off", "optimizer": {"sgd": {"lr": 0.1}}},
        "orchestration": {"grace": "30s", "environment": {"pass": ["HOME"], "set": {"A": "x"}}},
        "parallelism": {"file": "x.trim"},
        "fault_tolerance": {"shares": "off", "checkpoint": {"every": 10}, "detection": {"save": 3}},
    },
]

WRONG: list[dict[str, Any]] = [
    {**EXAMPLES[0], "rnu": "a"},
    {**EXAMPLES[0], "run": "Capital"},
    {**EXAMPLES[0], "train": {"steps": "1"}},
    {**EXAMPLES[0], "train": {"steps": 0}},
    {**EXAMPLES[0], "train": {"steps": 1, "compute": "fp16"}},
    {**EXAMPLES[0], "train": {"steps": 1, "optimizer": {"sgd": {}, "adamw": {}}}},
    {**EXAMPLES[0], "parallelism": {"fill": "x.trim"}},
    {"run": "a"},
]

TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "null": type(None)}


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Whether a schema accepts a value: the part of JSON Schema that ours uses."""
    if "$ref" in schema:
        schema = {**root["$defs"][schema["$ref"].rsplit("/", 1)[1]], **schema}
    if "anyOf" in schema and not any(accepts(option, value, root) for option in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    kind = schema.get("type")
    if kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        return False
    if kind in TYPES and (
        not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return False
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    return not isinstance(value, dict) or accepts_mapping(schema, value, root)


def accepts_mapping(schema: dict[str, Any], value: dict[str, Any], root: dict[str, Any]) -> bool:
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
        return False
    if any(key not in value for key in schema.get("required", [])):
        return False
    properties, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key, item in value.items():
        allowed = properties.get(key, extra)
        if allowed is False or (isinstance(allowed, dict) and not accepts(allowed, item, root)):
            return False
    return True


@pytest.mark.parametrize("example", EXAMPLES, ids=["small", "large"])
def test_editors_accept_what_is_right(example: dict[str, Any]) -> None:
    """Otherwise an editor underlines a good file."""
    schema = job_schema()
    assert accepts(schema, example, schema)


@pytest.mark.parametrize("example", WRONG)
def test_editors_mark_what_is_wrong(example: dict[str, Any]) -> None:
    """Otherwise an editor lets a misspelt key pass."""
    schema = job_schema()
    assert not accepts(schema, example, schema)


def test_every_key_is_described() -> None:
    """Otherwise a user meets a key without its meaning, unit and default."""
    for path in all_paths():
        meaning = meaning_at(path)
        assert meaning, ".".join(path)
        is_plain = not any(len(other) > len(path) and other[: len(path)] == path for other in all_paths())
        if is_plain and len(path) > 1:
            assert "efault" in meaning or "Required" in meaning, ".".join(path)
