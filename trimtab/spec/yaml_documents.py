"""YAML text read strictly, with the place of every key and value.

Scalars follow the core schema of YAML 1.2: ``1e-5`` is a number, ``NO``, ``on``, ``12:30:00`` and
``2024-01-01`` are text, ``012`` is twelve. Everything that other readers let pass in silence is an error:
duplicate keys, tabs, several documents, tags, aliases that multiply.

Source of the rules: YAML 1.2.2, section 10.3.2 (tag resolution of the core schema).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Never, TypeAlias

import yaml
from yaml.nodes import Node, ScalarNode, SequenceNode

from trimtab.spec.errors import Place, Problem, YamlError
from trimtab.spec.located_text import LocatedText, align
from trimtab.terms import Span

MAX_BYTES = 2**20
"""Size of the largest text that is read: far above any job file, far below what hurts."""

MAX_VALUES = 20_000
"""Most values in one document, every use of an alias counted: 9^7 of them fit in 300 bytes."""

MAX_DEPTH = 50
"""Deepest nesting that is read."""

YamlScalar: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarValue:
    """One value without parts.

    Args:
        value: As YAML 1.2 types it.
        text: As written, without quotes.
        span: Where it stands.
        is_plain: Written without quotes and not as a block.
        is_loose: Comes from an override or an environment variable, where quotes get lost on the way: the
            field that takes it decides between text, number and boolean.
        origin: Who set it, if not the file that the span names.
        located: The text with its places, if it is longer than a word.
    """

    value: YamlScalar
    text: str
    span: Span
    is_plain: bool = True
    is_loose: bool = False
    origin: str = ""
    located: LocatedText | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ListValue:
    """Values in order."""

    items: tuple["YamlValue", ...]
    span: Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A value under its key."""

    key_span: Span
    value: "YamlValue"


@dataclass(frozen=True, kw_only=True, slots=True)
class MappingValue:
    """Values under keys, in the order written."""

    entries: Mapping[str, Entry]
    span: Span

    def with_entry(self, key: str, entry: Entry) -> "MappingValue":
        """The same mapping with one entry added or replaced."""
        return replace(self, entries={**self.entries, key: entry})


YamlValue: TypeAlias = ScalarValue | ListValue | MappingValue


def read_yaml(text: str, *, source: str) -> YamlValue:
    """The one document of a text.

    Raises: YamlError with the first thing that is not YAML, or with every duplicate key.
    """
    if len(text.encode(errors="replace")) > MAX_BYTES:
        start = Span(source=source, line=1, column=1)
        raise YamlError([Problem(span=start, message=f"the text is larger than {MAX_BYTES} bytes")], {})
    node = _compose(text, source)
    if node is None:
        span = Span(source=source, line=1, column=1)
        problem = Problem(span=span, message="the file is empty", hint="A job file is a mapping of keys.")
        raise YamlError([problem], {source: text})
    reader = _TreeReader(text=text, source=source)
    value = reader.read(node)
    if reader.problems:
        raise YamlError(reader.problems, {source: text})
    return value


def read_mapping(text: str, *, source: str, first: str = "run: NAME") -> MappingValue:
    """The one document of a text that must be a mapping; ``first`` is a line to begin it with.

    Raises: YamlError as `read_yaml`, or if the document is a list or a single value.
    """
    value = read_yaml(text, source=source)
    if isinstance(value, MappingValue):
        return value
    found = "a list" if isinstance(value, ListValue) else f"the single value {value.text!r}"
    message = f"the file holds {found}; it must be a mapping of keys"
    hint = f"Write `key: value` lines, beginning with `{first}`."
    raise YamlError([Problem(span=value.span, message=message, hint=hint)], {source: text})


def resolve_scalar(text: str) -> YamlScalar:
    """The value of a plain scalar by the core schema of YAML 1.2.

    >>> [resolve_scalar(text) for text in ("1e-5", "NO", "012", "1_000", "true", "~")]
    [1e-05, 'NO', 12, '1_000', True, None]
    """
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED_INTEGER.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "").lower())
    return text


_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# Longer digit strings are text: int() refuses them beyond 4300 digits, and no setting needs them.
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_BASED_INTEGER = re.compile(r"0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_TEXT_TAG = "tag:yaml.org,2002:str"


class _Composer(yaml.SafeLoader):
    """PyYAML's parser up to the node tree, without its YAML 1.1 typing, and with a limit on depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.yaml_implicit_resolvers = {}
        self.depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs leave it out
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels of nesting", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(text: str, source: str) -> Node | None:
    try:
        composer = _Composer(text)
        try:
            return composer.get_single_node()
        finally:
            composer.dispose()
    except yaml.MarkedYAMLError as error:
        _refuse_syntax(error, text, source)
    except yaml.reader.ReaderError as error:
        line, column = (
            text.count("\n", 0, error.position) + 1,
            error.position - text.rfind("\n", 0, error.position),
        )
        span = Span(source=source, line=line, column=column)
        message = f"the character U+{ord(text[error.position]):04X} may not stand in YAML"
        raise YamlError([Problem(span=span, message=message)], {source: text}) from None


def _refuse_syntax(error: yaml.MarkedYAMLError, text: str, source: str) -> Never:
    mark, said = error.problem_mark, error.problem or "this is not YAML"
    assert mark is not None, "PyYAML marks every error of its scanner, parser and composer"
    opened = (
        error.context_mark if "flow" in (error.context or "") or "quoted" in (error.context or "") else None
    )
    if opened and ("end of stream" in said or "<stream end>" in said):
        mark, opened = opened, None
    hint = 'Inside {…} or […] write "${NAME}" with its quotes.' if "${" in _line(text, mark.line) else ""
    for fragment, sentence, advice in _PLAINER:
        if fragment in said:
            said, hint = sentence, advice
    others = (Place(span=_point(source, opened), note="it was opened here"),) if opened else ()
    problem = Problem(span=_point(source, mark), message=said, hint=hint, others=others)
    raise YamlError([problem], {source: text}) from None


def _point(source: str, mark: yaml.Mark) -> Span:
    return Span(source=source, line=mark.line + 1, column=mark.column + 1)


_PLAINER = (
    (r"'\t'", "a tab cannot indent or separate YAML", "Use spaces."),
    ("another document", "a second document begins here; a file holds one", "Remove the line `---`."),
    ("end of stream", "this is never closed", "Add the closing quote or bracket."),
    ("<stream end>", "this is never closed", "Add the closing quote or bracket."),
    ("mapping values", "a second ':' where a value should end", "Put quotes around text that holds ': '."),
    ("expected <block end>", "this line belongs to no mapping above it", "Indent it like its neighbours."),
)
"""What PyYAML says, what we say, and what to do."""


def _line(text: str, index: int) -> str:
    return next(iter(text.splitlines()[index : index + 1]), "")


class _TreeReader:
    """Turns PyYAML's nodes into values with places, counting them."""

    def __init__(self, *, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.problems: list[Problem] = []
        self._num_values = 0
        self._open: list[Node] = []

    def read(self, node: Node) -> YamlValue:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            self._refuse(node, f"with its aliases the document has more than {MAX_VALUES} values")
        if any(node is outer for outer in self._open):
            self._refuse(node, "this anchor contains an alias of itself")
        if isinstance(node, ScalarNode):
            return self._read_scalar(node)
        if node.tag not in _COLLECTION_TAGS:
            self._refuse(node, f"the tag {node.tag!r} is not read", "Write the value without a tag.")
        self._open.append(node)
        value = self._read_list(node) if isinstance(node, SequenceNode) else self._read_mapping(node)
        self._open.pop()
        return value

    def _read_scalar(self, node: ScalarNode) -> ScalarValue:
        if node.tag != _TEXT_TAG:
            self._refuse(node, f"the tag {node.tag!r} is not read", "Write the value without a tag.")
        start, end = node.start_mark.index, node.end_mark.index
        is_plain = node.style is None and not self.text.startswith("!", start)
        located = None
        if not is_plain or " " in node.value or "$" in node.value:
            header = (
                self.text.index("\n", start) + 1 - start if node.style in ("|", ">") and node.value else 0
            )
            raw = self.text[start + header : end]
            located = LocatedText(
                text=node.value,
                source=self.source,
                document=self.text,
                offsets=align(node.value, raw, start=start + header),
            )
        value = resolve_scalar(node.value) if is_plain else node.value
        return ScalarValue(
            value=value, text=node.value, span=self._span(node), is_plain=is_plain, located=located
        )

    def _read_list(self, node: SequenceNode) -> ListValue:
        return ListValue(items=tuple(self.read(item) for item in node.value), span=self._span(node))

    def _read_mapping(self, node: Node) -> MappingValue:
        entries: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._refuse(key_node, "a key must be a single word")
            key, key_span = key_node.value, self._span(key_node)
            value = self.read(value_node)
            if key in entries:
                self.problems.append(_duplicate(key, entries[key].key_span, key_span))
            else:
                entries[key] = Entry(key_span=key_span, value=value)
        return MappingValue(entries=entries, span=self._span(node))

    def _span(self, node: Node) -> Span:
        start, end = node.start_mark, node.end_mark
        length = max(1, end.index - start.index)
        newline = self.text.find("\n", start.index, end.index)
        if newline >= 0:
            length = max(1, newline - start.index)
        return Span(source=self.source, line=start.line + 1, column=start.column + 1, length=length)

    def _refuse(self, node: Node, message: str, hint: str = "") -> Never:
        problem = Problem(span=self._span(node), message=message, hint=hint)
        raise YamlError([problem], {self.source: self.text})


_COLLECTION_TAGS = frozenset({"tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"})


def _duplicate(key: str, first: Span, second: Span) -> Problem:
    return Problem(
        span=second,
        message=f"duplicate key {key!r}, first on line {first.line}",
        others=(Place(span=first, note=f"{key!r} is set here first"),),
        hint="Keep one of the two.",
    )
