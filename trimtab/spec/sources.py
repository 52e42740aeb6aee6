"""One tree of values out of a job file, the files that it extends, and the overrides of the command line."""

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace

from trimtab.spec.card_types import OneOf
from trimtab.spec.errors import JobFileError, Problem, YamlError
from trimtab.spec.fields import Path, card_at
from trimtab.spec.located_text import LocatedText
from trimtab.spec.yaml_documents import (
    Entry,
    ListValue,
    MappingValue,
    ScalarValue,
    YamlValue,
    read_mapping,
    read_yaml,
)
from trimtab.terms import Span

Read = Callable[[str], str]
"""Gives the text of a file by its path; raises OSError or UnicodeDecodeError if it cannot."""

EXTENDS = "extends"
"""The key that names the file whose values hold where this one says nothing."""

FOLDER, CONFIGURATION = "folder", "configuration"
"""The key under ``model`` that names a Hugging Face folder, and the one that holds what its file says."""

CONFIG_FILE = "config.json"
"""The file of such a folder that describes the network."""

_ALTERNATIVES: dict[Path, tuple[str, ...]] = {
    ("model",): ("preset", FOLDER, "module"),
    ("train",): ("steps", "epochs"),
}
"""Keys of which a card takes exactly one: choosing one in a later source takes back the others."""

_BELONGS_TO_CHOICE: dict[Path, tuple[str, ...]] = {("model",): (CONFIGURATION,)}
"""Keys that say more about the one chosen, and are taken back with it."""


class SourceReader:
    """Reads texts into trees and keeps them, so that errors can show their lines.

    Args:
        read: Gives the text of another file.
        source: Name of the job file; paths in overrides are relative to it.
    """

    def __init__(self, read: Read, *, source: str) -> None:
        self.documents: dict[str, str] = {}
        self._read = read
        self._source = source

    def read_job(self, text: str, overrides: Sequence[str]) -> MappingValue:
        """The values of a job file over those of its bases, under those of the overrides.

        Raises: JobFileError if one of the texts cannot be read at all.
        """
        tree = self._read_with_bases(text, self._source, ())
        problems: list[Problem] = []
        for number, override in enumerate(overrides, start=1):
            try:
                tree = merge(tree, self._read_override(override, f"--set #{number}"))
            except YamlError as error:
                problems += error.problems
        if problems:
            raise JobFileError(problems, self.documents)
        return tree

    def read_bases(self, tree: MappingValue, document: str) -> MappingValue:
        """The values of a job that stands inside another text over those of the files that it extends.

        Args:
            tree: The job; its places are in ``document``, which errors call by the reader's source.
            document: The whole text.

        Raises: JobFileError if one of the texts cannot be read at all.
        """
        self.documents[self._source] = document
        return self._with_bases(tree, self._source, ())

    def read_formulas(self, tree: MappingValue) -> MappingValue:
        """The tree with ``parallelism: {file: x.trim}`` replaced by the text of that file.

        Raises: JobFileError if the file cannot be read.
        """
        entry = tree.entries.get("parallelism")
        if entry is None or not isinstance(entry.value, MappingValue):
            return tree
        named = entry.value.entries.get("file")
        if named is None or len(entry.value.entries) > 1 or not isinstance(named.value, ScalarValue):
            return tree
        path = self._beside(named.value)
        text = self._text_of(path, named.value.span)
        whole = Span(source=path, line=1, column=1)
        formulas = ScalarValue(
            value=text,
            text=text,
            span=whole,
            is_plain=False,
            origin=path,
            located=LocatedText.whole(text, source=path),
        )
        return tree.with_entry("parallelism", replace(entry, value=formulas))

    def read_configuration(self, tree: MappingValue) -> MappingValue:
        """The tree with what ``config.json`` in ``model.folder`` says under ``model.configuration``.

        The folder is named anew, from where the job file is read: its weights are looked for later, by others who do
        not know which file named it.

        A configuration that stands there already is kept: a run that is resumed trains the network that it
        began with, whatever has become of the folder.

        Raises: JobFileError if the file cannot be read, or is not a mapping.
        """
        entry = tree.entries.get("model")
        if entry is None or not isinstance(entry.value, MappingValue):
            return tree
        model, folder = entry.value, entry.value.entries.get(FOLDER)
        if CONFIGURATION in model.entries or folder is None or not isinstance(folder.value, ScalarValue):
            return tree
        beside = self._beside(folder.value)
        path = posixpath.join(beside, CONFIG_FILE)
        text = self._text_of(path, folder.value.span)
        try:
            # JSON is YAML 1.2 but for the tabs that may stand between its parts, and nowhere else.
            value = read_yaml(text.replace("\t", " "), source=path)
        except YamlError as error:
            raise JobFileError(error.problems, self.documents) from None
        if not isinstance(value, MappingValue):
            problem = Problem(span=value.span, message=f"{CONFIG_FILE} holds no mapping of keys")
            raise JobFileError([problem], self.documents)
        named = replace(folder, value=replace(folder.value, value=beside, text=beside))
        described = model.with_entry(FOLDER, named).with_entry(CONFIGURATION, replace(folder, value=value))
        return tree.with_entry("model", replace(entry, value=described))

    def _read_with_bases(self, text: str, source: str, readers: tuple[str, ...]) -> MappingValue:
        self.documents[source] = text
        try:
            tree = read_mapping(text, source=source)
        except YamlError as error:
            raise JobFileError(error.problems, self.documents | error.documents) from None
        return self._with_bases(tree, source, readers)

    def _with_bases(self, tree: MappingValue, source: str, readers: tuple[str, ...]) -> MappingValue:
        entry = tree.entries.get(EXTENDS)
        if entry is None:
            return tree
        own = replace(tree, entries={key: entry for key, entry in tree.entries.items() if key != EXTENDS})
        if not isinstance(entry.value, ScalarValue) or not isinstance(entry.value.value, str):
            problem = Problem(span=entry.value.span, message="extends takes the path of one file")
            raise JobFileError([problem], self.documents)
        path = self._beside(entry.value)
        chain = (*readers, source)
        if path in chain:
            circle = " -> ".join((*chain[chain.index(path) :], path))
            message = f"files extend each other in a circle: {circle}"
            raise JobFileError([Problem(span=entry.value.span, message=message)], self.documents)
        base = self._read_with_bases(self._text_of(path, entry.value.span), path, chain)
        return merge(base, own)

    def _beside(self, name: ScalarValue) -> str:
        """The path of a file named in a source: relative to the file that names it."""
        source = self._source if name.span.source.startswith("--set") else name.span.source
        return posixpath.normpath(posixpath.join(posixpath.dirname(source), name.text))

    def _text_of(self, path: str, span: Span) -> str:
        try:
            text = self._read(path)
        except OSError as error:
            reason = error.strerror or str(error)
        except UnicodeDecodeError:
            reason = "it is not UTF-8 text"
        else:
            self.documents[path] = text
            return text
        hint = "Paths are relative to the file that names them."
        problem = Problem(span=span, message=f"cannot read {path!r}: {reason}", hint=hint)
        raise JobFileError([problem], self.documents)

    def _read_override(self, text: str, source: str) -> MappingValue:
        self.documents[source] = text
        dotted, equals, value = text.partition("=")
        keys = dotted.strip().split(".")
        if not equals or not all(keys):
            span = Span(source=source, line=1, column=1, length=max(1, len(dotted)))
            problem = Problem(
                span=span,
                message=f"{text!r} is not an override; it must be a key, '=' and a value",
                hint="For example --set train.steps=100",
            )
            raise YamlError([problem], self.documents)
        if keys[0] == EXTENDS:
            span = Span(source=source, line=1, column=1, length=len(dotted))
            problem = Problem(span=span, message="extends stands in a file; an override cannot bring one in")
            raise YamlError([problem], self.documents)
        start = len(dotted) + 1
        if value.strip():
            # Blanks in place of the key keep every column of the value where the user wrote it.
            tree = _loosen(read_yaml(" " * start + value, source=source))
        else:
            tree = ScalarValue(
                value=None, text="", span=Span(source=source, line=1, column=start), is_loose=True
            )
        return _nest(keys, tree, Span(source=source, line=1, column=1, length=len(dotted)))


def merge(base: MappingValue, over: MappingValue, path: Path = ()) -> MappingValue:
    """Both mappings in one; `over` holds where they differ.

    Mappings merge key by key. Everything else is replaced: lists, formulas, and the member of a choice such
    as the optimizer, whose settings would mean nothing to another member.
    """
    card = card_at(path)
    is_choice = card is not None and issubclass(card, OneOf)
    if is_choice and set(base.entries) != set(over.entries):
        return over
    entries = dict(base.entries)
    alternatives = _ALTERNATIVES.get(path, ())
    if any(key in over.entries for key in alternatives):
        taken_back = (*alternatives, *_BELONGS_TO_CHOICE.get(path, ()))
        entries = {key: entry for key, entry in entries.items() if key not in taken_back}
    for key, entry in over.entries.items():
        below = entries.get(key)
        if below and isinstance(below.value, MappingValue) and isinstance(entry.value, MappingValue):
            entries[key] = replace(below, value=merge(below.value, entry.value, (*path, key)))
        else:
            entries[key] = entry
    return replace(base, entries=entries)


def _nest(keys: Sequence[str], value: YamlValue, span: Span) -> MappingValue:
    """The value under its keys, each with its own place in the dotted path at `span`."""
    column = span.column + span.length
    for key in reversed(keys):
        column -= len(key)
        key_span = replace(span, column=column, length=len(key))
        value = MappingValue(entries={key: Entry(key_span=key_span, value=value)}, span=key_span)
        column -= 1
    assert isinstance(value, MappingValue)
    return value


def _loosen(value: YamlValue) -> YamlValue:
    """The value with its plain scalars left for their fields to type."""
    if isinstance(value, MappingValue):
        entries = {key: replace(entry, value=_loosen(entry.value)) for key, entry in value.entries.items()}
        return replace(value, entries=entries)
    if isinstance(value, ListValue):
        return replace(value, items=tuple(_loosen(item) for item in value.items))
    return replace(value, is_loose=value.is_plain)
