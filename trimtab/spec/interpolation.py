"""``${NAME}`` and ``${NAME:default}`` replaced by environment variables, where they are written."""

import re
from collections.abc import Mapping
from dataclasses import replace

from trimtab.spec.errors import Problem
from trimtab.spec.fields import nearest_name
from trimtab.spec.located_text import LocatedText
from trimtab.spec.yaml_documents import ListValue, MappingValue, ScalarValue, YamlValue, resolve_scalar
from trimtab.terms import Span

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}\n]*)(\}?)")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::(.*))?")


def escape(text: str) -> str:
    """The text written so that `Interpolator` gives it back unchanged."""
    return text.replace("${", "$${")


class Interpolator:
    """Replaces variables in trees, collecting what is wrong with them.

    Args:
        environment: The variables by name.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._environment = environment

    def fill(self, value: YamlValue) -> YamlValue:
        """The value with its variables replaced; ``$${`` stands for ``${`` itself.

        What is written without quotes, or is one variable and nothing else, gets its type afterwards: a
        variable that holds ``false`` is false where the field takes a boolean.
        """
        if isinstance(value, MappingValue):
            entries = {
                key: replace(entry, value=self.fill(entry.value)) for key, entry in value.entries.items()
            }
            return replace(value, entries=entries)
        if isinstance(value, ListValue):
            return replace(value, items=tuple(self.fill(item) for item in value.items))
        return self._fill_scalar(value) if "${" in value.text else value

    def _fill_scalar(self, scalar: ScalarValue) -> ScalarValue:
        located = scalar.located
        assert located is not None, "a text with a '$' keeps its places"
        text, offsets, names = "", list[int](), list[str]()
        end = 0
        for match in _VARIABLE.finditer(located.text):
            filled = self._value_of(match, located, names)
            text += located.text[end : match.start()] + filled
            offsets += located.offsets[end : match.start()] + (located.offsets[match.start()],) * len(filled)
            end = match.end()
        text += located.text[end:]
        offsets += located.offsets[end:]
        is_whole = _VARIABLE.fullmatch(scalar.text) is not None and not scalar.text.startswith("$$")
        is_loose = (scalar.is_plain or is_whole) and not scalar.text.startswith("$$")
        return replace(
            scalar,
            value=resolve_scalar(text) if is_loose else text,
            text=text,
            is_loose=is_loose,
            origin=f"environment {', '.join(names)}" if names else scalar.origin,
            located=replace(located, text=text, offsets=tuple(offsets)),
        )

    def _value_of(self, match: re.Match[str], located: LocatedText, names: list[str]) -> str:
        if match[0] == "$${":
            return "${"
        span = located.span(match.start(), match.end())
        inside = _NAME.fullmatch(match[1])
        if inside is None or not match[2]:
            self._refuse(
                span, f"{match[0]!r} is not a variable", "Write ${NAME}, ${NAME:default}, or $${ for '${'."
            )
            return ""
        name, default = inside.groups()
        if name in self._environment:
            names.append(name)
            return self._environment[name]
        if default is None:
            near = nearest_name(name, tuple(self._environment))
            hint = f"Set it, or write ${{{name}:default}}." + (f"  Did you mean {near!r}?" if near else "")
            self._refuse(span, f"the environment variable {name!r} is not set", hint)
        return default or ""

    def _refuse(self, span: Span, message: str, hint: str) -> None:
        self.problems.append(Problem(span=span, message=message, hint=hint))
