"""The resolved job file: every value, where it came from, and a digest that a reload gives again."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from trimtab.spec.cards import Job
from trimtab.spec.constants import CONSTANT_PATHS
from trimtab.spec.fields import Path
from trimtab.spec.interpolation import escape
from trimtab.spec.validation import value_at
from trimtab.spec.yaml_documents import ListValue, MappingValue, ScalarValue, YamlValue, resolve_scalar

REDACTED = "<redacted>"
"""Stands for a secret in what is written to disk."""

SECRETS_PATH = ("orchestration", "environment", "set")
"""The only place of a job file that may hold secrets."""

_SECRET_NAME = re.compile(
    r"(token|secret|password|passwd|api_?key|access_?key|private_?key)$|credential", re.IGNORECASE
)


def is_secret(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def plain_values(job: Job) -> dict[str, Any]:
    """The job as YAML and JSON hold it, secrets redacted; keys that say nothing are left out."""
    values: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    # Inside the arguments of a user's class, and in what other systems write, None is a value like any other.
    values["model"] |= job.model.model_dump(mode="json", include={"args", "configuration"})
    variables = values["orchestration"]["environment"]["set"]
    values["orchestration"]["environment"]["set"] = {
        name: REDACTED if is_secret(name) else value for name, value in variables.items()
    }
    return values


def digest(job: Job) -> str:
    """SHA-256 over the resolved values without secrets, in hexadecimal: equal for jobs that run equally."""
    text = json.dumps(plain_values(job), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def find_origins(tree: MappingValue, job: Job) -> dict[str, str]:
    """For each value of a job by its dotted path: ``default``, ``run.yaml:9``, ``--set #1``, ``environment X``.

    A constant that ``auto`` was resolved to says so: ``auto (run.yaml:9)``.
    """
    origins = {}
    for path in _leaves(plain_values(job)):
        value = value_at(tree, path)
        origin = _origin(value) if value is not None else "default"
        is_auto = value is None or (isinstance(value, ScalarValue) and value.text == "auto")
        origins[".".join(path)] = f"auto ({origin})" if path in CONSTANT_PATHS and is_auto else origin
    return origins


def write_yaml(job: Job, origins: Mapping[str, str]) -> str:
    """The job as a complete job file, each value followed by its origin in a comment.

    A limit of detection that is ``auto`` stays so, for it follows from the deadline; the comment says what it is.
    """
    lines = [f"# The resolved job file of {job.run}: every value, and where it came from."]
    lines += yaml_lines(plain_values(job), {**origins, **dict(_derived(job, origins))})
    return "\n".join(lines) + "\n"


def _derived(job: Job, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    detection = job.fault_tolerance.detection
    for name, limit_s in detection.limits_s().items():
        if getattr(detection, name) == "auto":
            path = f"fault_tolerance.detection.{name}"
            yield path, f"{origins.get(path, 'default')}: {limit_s:g} s, by deadline"


def yaml_lines(
    values: Mapping[str, Any], comments: Mapping[str, str] = MappingProxyType({}), *, path: Path = ()
) -> Iterator[str]:
    """Plain values as lines of YAML that read back the same, one key a line.

    Args:
        values: Mappings, lists, text, numbers and booleans.
        comments: What to write behind a key, by its dotted path.
        path: Where the values stand; their lines are indented by its length.
    """
    indent = "  " * len(path)
    for key, value in values.items():
        here = (*path, key)
        comment = f"  # {said}" if (said := comments.get(".".join(here))) else ""
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:{comment}"
            yield from yaml_lines(value, comments, path=here)
        elif isinstance(value, str) and _fits_block(value):
            chomping = "" if value.endswith("\n") else "-"
            yield f"{indent}{_scalar(key)}: |{chomping}{comment}"
            yield from (f"{indent}  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
        else:
            yield f"{indent}{_scalar(key)}: {_flow(value)}{comment}"


def _origin(value: YamlValue) -> str:
    if isinstance(value, ScalarValue) and value.origin:
        return value.origin
    if isinstance(value, ListValue) and value.items:
        return _origin(value.items[0])
    source = value.span.source
    return source if source.startswith("--set") else f"{source}:{value.span.line}"


def _leaves(values: Mapping[str, Any], prefix: Path = ()) -> Iterator[Path]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key)


def _fits_block(text: str) -> bool:
    """Whether a block reads back as the same text: several lines, none blank at an end, no odd characters."""
    lines = text.removesuffix("\n").split("\n")
    return (
        len(lines) > 1
        and all(line.isprintable() for line in lines)
        and lines[0][:1].strip() != ""
        and lines[-1].strip() != ""
        and "${" not in text
    )


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        return _scalar(escape(value))
    if isinstance(value, float) and not math.isfinite(value):
        return f".{value}".replace(".-", "-.")
    return json.dumps(value)


_WORD = re.compile(r"[A-Za-z0-9_./*<-][A-Za-z0-9_./*<>+-]*")


def _scalar(text: str) -> str:
    """The text as a scalar that reads back as the same text, inside braces too."""
    is_plain = (
        _WORD.fullmatch(text) and not text.startswith(("-", "*")) and isinstance(resolve_scalar(text), str)
    )
    if is_plain:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\U{ord(character):08x}"
