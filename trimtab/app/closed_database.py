"""A database in memory that a question is asked of, and that reaches nothing else.

DuckDB answers. The question is parsed: it must be one statement that reads. The tables that it names are filled;
then files, network, extensions and settings are shut off for good, and the question runs in a transaction that
cannot write. So it may come from anywhere: it sees the tables and nothing of the machine.
"""

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from trimtab.app.errors import QueryError
from trimtab.app.sql_errors import Told, refusal_of, refused_statement
from trimtab.terms import Cell, ColumnType, Relation, unique_names

MAX_ROWS = 1_000_000
"""Of an answer that is shown or written as text; Parquet holds any number."""

MAX_MEMORY_BYTES = 2_000_000_000
"""For tables, sorts and joins; nothing is ever put on a disk instead."""

MAX_SECONDS = 60.0
"""Of one question."""

_TYPES = {
    ColumnType.TEXT: "VARCHAR",
    ColumnType.INTEGER: "BIGINT",
    ColumnType.BIG_INTEGER: "HUGEINT",
    ColumnType.REAL: "DOUBLE",
    ColumnType.BOOLEAN: "BOOLEAN",
}

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "errors_as_json": "true",
    "max_temp_directory_size": "0KB",
    "memory_limit": f"{MAX_MEMORY_BYTES}B",
    "python_enable_replacements": "false",  # or a name in SQL could stand for a variable of this program
    "temp_directory": "",
}

_INDIRECT = re.compile(r"query|serialized", re.IGNORECASE)
"""Functions that take the name of a table as a text, which may be put together from pieces, have such names."""

_WIDE = ("HUGEINT", "UHUGEINT")
"""Integers that Parquet has no type for: DuckDB would write them as floating point numbers."""

_READING = "Write SELECT, WITH, FROM, VALUES, DESCRIBE, SHOW or SUMMARIZE."
_PIVOT = "List the values of a PIVOT: PIVOT ledger ON line IN ('useful', 'restart') USING sum(ns)."


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a question gave.

    Args:
        names: Of its columns; no two are equal but for the size of letters.
        types: Of its columns, as DuckDB calls them.
        rows: In order.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


class ClosedDatabase:
    """Relations that one question is asked of, one database a question.

    Args:
        relations: That it may speak of; rows are made of those that it names.
        absent: Relations that are not there, each with the reason.
        max_seconds: After which the question is given up.
    """

    def __init__(
        self,
        relations: Iterable[Relation],
        absent: Mapping[str, str] | None = None,
        *,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self._relations = tuple(relations)
        self._absent = absent or {}
        self._max_seconds = max_seconds

    def ask(self, sql: str) -> Answer:
        """The answer to one statement that reads.

        Raises: QueryError if it is not one, cannot be answered, or takes too long or too much; what a relation
            raises when its rows are made.
        """
        with self._opened(sql) as connection:
            result = connection.execute(sql)
            names = unique_names(column[0] for column in result.description or ())
            types = tuple(str(column[1]).strip('"') for column in result.description or ())
            rows = result.fetchmany(MAX_ROWS + 1)
        if len(rows) > MAX_ROWS:
            raise refused_statement(
                sql,
                f"the answer has more than {MAX_ROWS:,} rows",
                hint="Add LIMIT, or write it with --format parquet --out FILE.",
            )
        return Answer(names=names, types=types, rows=rows)

    def write_parquet(self, sql: str, folder: Path) -> tuple[Path, int]:
        """Write the answer to one statement that reads to a file; returns it and the number of its rows.

        Integers of more than 64 bits are written as decimals of 38 digits.

        Args:
            sql: The statement.
            folder: For the file; it holds nothing else, because the statement could read it.

        Raises: As ``ask``.
        """
        target = folder.absolute() / "answer.parquet"
        try:
            with self._opened(sql, target.parent) as connection:
                answer = connection.sql(sql)
                answer.project(_as_parquet(answer)).write_parquet(str(target))
        except QueryError:
            self.ask(sql)  # which tells the place of what is wrong with a statement
            raise
        with duckdb.connect() as connection:
            counted = connection.execute("SELECT count(*) FROM read_parquet($1)", [str(target)])
            ((num_rows,),) = counted.fetchall()
        return target, num_rows

    @contextmanager
    def _opened(self, sql: str, folder: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        """The tables for one statement, everything else shut off but for one folder; given up when time is over."""
        connection = duckdb.connect(":memory:", config=_SETTINGS)
        timer = threading.Timer(self._max_seconds, connection.interrupt)
        timer.daemon = True
        try:
            _refuse_what_does_more(connection, sql)
            for relation in self._relations:
                _create(connection, relation)
                if _may_speak_of(sql, relation.name):
                    _fill(connection, relation)
            _shut_off(connection, folder)
            timer.start()
            yield connection
        except duckdb.Error as error:
            raise refusal_of(error, self._told(sql)) from error
        except RuntimeError as error:
            if "interrupted" not in str(error):
                raise
            raise KeyboardInterrupt from error  # Of SIGINT DuckDB makes an error of its own.
        finally:
            timer.cancel()
            connection.close()

    def _told(self, sql: str) -> Told:
        return Told(
            sql=sql,
            relations=self._relations,
            absent=self._absent,
            max_seconds=self._max_seconds,
            max_memory_bytes=MAX_MEMORY_BYTES,
        )


def _refuse_what_does_more(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Let exactly one statement pass, and that reads.

    Raises: QueryError otherwise; duckdb.Error if it is no SQL.
    """
    statements = connection.extract_statements(sql)
    if not statements:
        raise refused_statement(sql, "there is no statement", hint="Write SELECT … FROM a table.")
    first, *more = statements
    if more:
        raise refused_statement(
            sql, "a second statement", start=len(first.query), hint="Ask one question at a time."
        )
    if first.type != duckdb.StatementType.SELECT:
        hint = _PIVOT if re.match(r"\s*PIVOT\b", sql, re.IGNORECASE) else _READING
        raise refused_statement(sql, "this statement does more than read", hint=hint)


def _shut_off(connection: duckdb.DuckDBPyConnection, folder: Path | None) -> None:
    """Take away everything but the tables, in this order for good, and begin a transaction that cannot write."""
    connection.execute("SET allowed_directories = $1", [[str(folder)] if folder else []])
    connection.execute("SET allowed_paths = []")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    connection.execute("BEGIN TRANSACTION READ ONLY")


def _as_parquet(answer: duckdb.DuckDBPyRelation) -> str:
    """A list of columns under names of their own, in types that Parquet has."""
    cells = []
    names = unique_names(answer.columns)
    for number, (name, type_) in enumerate(zip(names, answer.types, strict=True), start=1):
        cell = f"CAST(#{number} AS DECIMAL(38, 0))" if str(type_) in _WIDE else f"#{number}"
        cells.append(f"{cell} AS {_quoted(name)}")
    return ", ".join(cells)


def _may_speak_of(sql: str, name: str) -> bool:
    """Whether a question can need the rows of a relation: it has its name somewhere, or could put it together."""
    return name in sql.casefold() or _INDIRECT.search(sql) is not None


def _create(connection: duckdb.DuckDBPyConnection, relation: Relation) -> None:
    columns = ", ".join(f"{_quoted(column.name)} {_TYPES[column.type]}" for column in relation.columns)
    connection.execute(f"CREATE TABLE {_quoted(relation.name)} ({columns})")


def _fill(connection: duckdb.DuckDBPyConnection, relation: Relation) -> None:
    """Insert the rows as one text of columns: many times faster than row by row."""
    cells = list(zip(*relation.rows(), strict=True))
    if not cells:
        return
    columns = []
    lists = []
    for number, (column, values) in enumerate(zip(relation.columns, cells, strict=True)):
        is_big = column.type is ColumnType.BIG_INTEGER
        columns.append([None if value is None else str(value) for value in values] if is_big else values)
        lists.append(f"unnest(from_json(cells->{number}, '[\"{_TYPES[column.type]}\"]'))")
    statement = (
        f"INSERT INTO {_quoted(relation.name)} SELECT {', '.join(lists)} FROM (SELECT $1::JSON AS cells)"  # noqa: S608 - names of our own
    )
    connection.execute(statement, [_json(columns)])


def _json(columns: Sequence[Sequence[Cell]]) -> str:
    """As JSON in Unicode that can be encoded: half of a pair of surrogates in a journal becomes a question mark."""
    text = json.dumps(columns, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="replace").decode()


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
