"""What DuckDB says is wrong with a question, said as Trimtab says it: the place, the nearest name, what to do."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import duckdb

from trimtab.app.errors import QueryError
from trimtab.spec import Problem
from trimtab.spec.errors import render_problem
from trimtab.terms import Relation, Span, format_bytes, nearest_name

SOURCE = "query"
"""What places in the SQL are called."""

_MAX_TABLES_LISTED = 3
_MAX_HINT = 300
_NOT_A_COLUMN = re.compile(r'Table "(?P<table>.+)" does not have a column named "(?P<name>.+)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What an error is told about.

    Args:
        sql: The question.
        relations: That it may speak of.
        absent: Relations that are not there, each with the reason.
        max_seconds: That it may take.
        max_memory_bytes: That it may need.
    """

    sql: str
    relations: Sequence[Relation]
    absent: Mapping[str, str]
    max_seconds: float
    max_memory_bytes: int


def refused_statement(sql: str, message: str, *, hint: str, start: int = 0) -> QueryError:
    """The error for a question that is not asked at all.

    Args:
        sql: The question.
        message: What was found.
        hint: What to do.
        start: Where it was found, in characters.
    """
    start += len(sql[start:]) - len(sql[start:].lstrip())
    length = len(sql[start:].split("\n")[0])
    return _error(sql, message, hint, _span(sql, start, length))


def refusal_of(error: duckdb.Error, told: Told) -> QueryError:
    """Ours for one of DuckDB's."""
    details = _details(error)
    span = _place(told.sql, details)
    message, hint = _sentences(error, details, told)
    return _error(told.sql, message, hint, span)


def _error(sql: str, message: str, hint: str, span: Span | None) -> QueryError:
    if span is None:
        return QueryError(f"{SOURCE}  {message}" + (f"\n  {hint}" if hint else ""))
    return QueryError(render_problem(Problem(span=span, message=message, hint=hint), {SOURCE: sql}))


def _details(error: duckdb.Error) -> Mapping[str, Any]:
    """What DuckDB tells with its message; the message alone if it is no JSON."""
    text = str(error)
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        return {"exception_message": text}
    return found if isinstance(found, dict) else {"exception_message": text}


def _sentences(error: duckdb.Error, details: Mapping[str, Any], told: Told) -> tuple[str, str]:
    """What is wrong, and what to do."""
    text = str(details.get("exception_message", ""))
    match error:
        case duckdb.InterruptException():
            message = f"the question was given up after {told.max_seconds:g} s"
            return message, "Ask for less: join on equal columns, add WHERE."
        case duckdb.OutOfMemoryException():
            message = f"the question needs more than {format_bytes(told.max_memory_bytes)} of memory"
            return message, "Ask for less: join on equal columns, add WHERE."
        case duckdb.PermissionException():
            return "a question reads the tables of a plan or a run, and nothing else", _tables(told)
        case duckdb.TransactionException():
            return "a question reads, and changes nothing", "Write SELECT without INSERT, UPDATE or DELETE."
        case duckdb.CatalogException():
            return _missing(details, told)
    if details.get("error_subtype") == "COLUMN_NOT_FOUND":
        return _unknown_column(str(details.get("name", "")), told)
    if match := _NOT_A_COLUMN.search(text):
        return _unknown_column(match["name"], told)
    first, *more = (line.strip() for line in text.splitlines() if line.strip())
    return first.removesuffix("!"), shorten("  ".join(more), _MAX_HINT, placeholder=" …")


def _missing(details: Mapping[str, Any], told: Told) -> tuple[str, str]:
    """A table or a function that is not there."""
    kind, name = str(details.get("type", "name")), str(details.get("name", ""))
    if kind == "Table" and name.casefold() in told.absent:
        return f"no table {name!r} here: {told.absent[name.casefold()]}", _tables(told)
    if kind == "Table":
        return f"no table {name!r}", _tables(told) + _did_you_mean(name, _names(told))
    if not name:  # It would be there with an extension.
        first = str(details.get("exception_message", "")).partition("\n")[0]
        return first.removesuffix("."), "A question loads no extensions."
    noun = "function" if kind.endswith("Function") else kind.lower()
    return f"no {noun} {name!r}", _did_you_mean(name, str(details.get("candidates", "")).split(",")).strip()


def _unknown_column(name: str, told: Told) -> tuple[str, str]:
    """A column that no table of the question has."""
    words = set(re.findall(r"\w+", told.sql.casefold()))
    meant = [relation for relation in told.relations if relation.name in words]
    names = [column.name for relation in meant for column in relation.columns]
    listed = "\n  ".join(
        f"columns of {relation.name}: {', '.join(column.name for column in relation.columns)}."
        for relation in meant[:_MAX_TABLES_LISTED]
    )
    return f"no column {name!r}", listed + _did_you_mean(name, names)


def _tables(told: Told) -> str:
    return f"tables: {', '.join(_names(told))}."


def _names(told: Told) -> list[str]:
    return [relation.name for relation in told.relations]


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = nearest_name(name, [candidate for candidate in known if candidate])
    return f"  Did you mean {near!r}?" if near else ""


def _place(sql: str, details: Mapping[str, Any]) -> Span | None:
    """Where it is, if DuckDB tells: it counts bytes, and writes ``[start,length]``."""
    found = [int(number) for number in re.findall(r"\d+", str(details.get("location", "")))]
    if len(found) != 2:
        return None
    start, length = found
    encoded = sql.encode(errors="replace")
    before, covered = encoded[:start], encoded[start : start + length]
    return _span(sql, len(before.decode(errors="ignore")), len(covered.decode(errors="ignore")))


def _span(sql: str, start: int, length: int) -> Span:
    before = sql[:start]
    line = before.count("\n") + 1
    return Span(source=SOURCE, line=line, column=start - before.rfind("\n"), length=max(1, length))
