"""The JSON schema of a job file, for editors."""

from typing import Any

from trimtab.spec.card_types import OneOf
from trimtab.spec.cards import Job
from trimtab.spec.sources import EXTENDS


def job_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), built from the cards: types, limits, defaults, and every docstring."""
    schema = Job.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Trimtab job file"
    description = "Path of a job file whose values hold where this one says nothing. Default: none."
    schema["properties"] = {EXTENDS: {"type": "string", "description": description}, **schema["properties"]}
    for choice in OneOf.__subclasses__():
        schema["$defs"][choice.__name__] |= {"minProperties": 1, "maxProperties": 1}
    return schema
