"""From files to documents: texts with a name, read one after the other, never all at once.

Nothing that is read is executed, and nothing is left out silently: a line without text is an error that names
the line, because a corpus that quietly lost a tenth of its lines looks like a corpus.
"""

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.runtime.data.errors import DataError
from trimtab.runtime.data.locate import FileKind, SourceFile, locate

if TYPE_CHECKING:
    import duckdb

_ROWS_AT_ONCE = 256
# One thread keeps rows in order and leaves the other cores alone; nothing is loaded from elsewhere.
_DUCKDB: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text, the unit of the held-out split.

    Args:
        name: The file's name in its source; ``#line`` or ``#row`` (from 1) follows in files of many documents.
        text: The whole text; may be empty.
        end_bytes: Bytes of all files up to and including this document, for progress. Inside a Parquet file it
            stands at the file's start.
    """

    name: str
    text: str
    end_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """Documents of a list of files; can be read any number of times.

    Args:
        files: The files, in order.
        field: The key or column that holds the text in JSON Lines and Parquet.
    """

    files: tuple[SourceFile, ...]
    field: str

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    def fingerprint(self) -> list[tuple[str, str, int, int]]:
        """What changes when a file is added, removed, renamed, moved or edited; does not read the files."""
        return [
            (str(file.path.resolve()), file.name, file.size_bytes, file.modified_ns) for file in self.files
        ]

    def check_unchanged(self) -> None:
        """Refuse files that were edited since they were found.

        Raises: DataError naming the first such file.
        """
        for file in self.files:
            try:
                now = file.path.stat()
            except OSError as error:
                raise DataError(f"{file.path} vanished while it was being read: {error.strerror}") from None
            if (now.st_size, now.st_mtime_ns) != (file.size_bytes, file.modified_ns):
                raise DataError(
                    f"{file.path} changed while it was being read; start again when it is complete"
                )

    def __iter__(self) -> Iterator[Document]:
        """Read the documents in order.

        Raises: DataError at text that is not UTF-8, a line that is not JSON, or a missing field.
        """
        start_bytes = 0
        for file in self.files:
            yield from _READERS[file.kind](file, self.field, start_bytes)
            start_bytes += file.size_bytes


def find_documents(text: str | Sequence[str], *, field: str, leave_out: Path | None = None) -> Documents:
    """The documents that ``data.text`` names, except in the folder ``leave_out``; files are read later.

    Raises: DataError as ``locate`` does.
    """
    return Documents(files=locate(text, leave_out=leave_out), field=field)


def _read_text(file: SourceFile, _field: str, start_bytes: int) -> Iterator[Document]:
    try:
        raw = file.path.read_bytes()
    except OSError as error:
        raise _unreadable(file.path, error) from None
    text = _decode(raw, file.path, first_line=1, first_byte=0)
    yield Document(name=file.name, text=text, end_bytes=start_bytes + file.size_bytes)


def _read_jsonl(file: SourceFile, field: str, start_bytes: int) -> Iterator[Document]:
    offset = 0
    try:
        with file.path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                line = _decode(raw, file.path, first_line=number, first_byte=offset)
                offset += len(raw)
                if not line.strip():
                    continue
                text = _text_of_line(line, field, where=f"{file.path}:{number}")
                yield Document(name=f"{file.name}#{number}", text=text, end_bytes=start_bytes + offset)
    except OSError as error:
        raise _unreadable(file.path, error) from None


def _text_of_line(line: str, field: str, *, where: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}:{error.colno}  not JSON: {error.msg}\n{_excerpt(line, error.colno)}"
        ) from None
    except ValueError as error:
        raise DataError(f"{where}:1  JSON that Python does not read: {error}") from None
    except RecursionError:
        raise DataError(
            f"{where}:1  JSON nested too deeply; a line is one flat object with {field!r}"
        ) from None
    if not isinstance(record, dict):
        raise DataError(
            f'{where}:1  a line must be an object such as {{"{field}": "..."}}, not {_kind(record)}'
        )
    if field not in record:
        found = ", ".join(repr(key) for key in record) or "none"
        raise DataError(
            f"{where}:1  no field {field!r}; fields found: {found}. Name one of them in data.field"
        )
    text = record[field]
    if not isinstance(text, str):
        raise DataError(f"{where}:1  field {field!r} must be a string, not {_kind(text)}")
    if "\\u" in line and not _is_unicode(text):
        raise DataError(
            f"{where}:1  field {field!r} holds half of a surrogate pair (\\ud800 to \\udfff), not text"
        )
    return text


def _read_parquet(file: SourceFile, field: str, start_bytes: int) -> Iterator[Document]:
    import duckdb

    # A path is data, not SQL and not a pattern: it goes in as a parameter with its wildcards escaped.
    path = glob.escape(str(file.path.resolve()))
    column = '"' + field.replace('"', '""') + '"'
    with duckdb.connect(":memory:", config=_DUCKDB) as connection:
        try:
            connection.execute("SET enable_progress_bar = false")
            schema = connection.execute("DESCRIBE SELECT * FROM read_parquet($1)", [path]).fetchall()
            _check_column({row[0]: row[1] for row in schema}, field, file.path)
            rows = connection.execute(f"SELECT {column} FROM read_parquet($1)", [path])  # noqa: S608 - quoted above
            for number, (text,) in enumerate(_fetch(rows), start=1):
                if text is None:
                    raise DataError(
                        f"{file.path}: row {number}: column {field!r} is null; every row needs text"
                    )
                yield Document(name=f"{file.name}#{number}", text=text, end_bytes=start_bytes)
        except duckdb.Error as error:
            first_line = str(error).splitlines()[0]
            raise DataError(f"{file.path} cannot be read as Parquet: {first_line}") from None


def _fetch(rows: "duckdb.DuckDBPyConnection") -> Iterator[Any]:
    while batch := rows.fetchmany(_ROWS_AT_ONCE):
        yield from batch


def _check_column(types: dict[str, str], field: str, path: Path) -> None:
    if field not in types:
        found = ", ".join(repr(name) for name in types)
        raise DataError(
            f"{path}: no column {field!r}; columns found: {found}. Name one of them in data.field"
        )
    if types[field] != "VARCHAR":
        raise DataError(f"{path}: column {field!r} must hold strings, not {types[field]}")


_READERS = {FileKind.TEXT: _read_text, FileKind.JSONL: _read_jsonl, FileKind.PARQUET: _read_parquet}


def _decode(raw: bytes, path: Path, *, first_line: int, first_byte: int) -> str:
    """UTF-8 to text; a byte order mark at the start of the file is dropped, line ends stay as they are."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = first_line + raw.count(b"\n", 0, error.start)
        raise DataError(
            f"{path}:{line}  byte 0x{raw[error.start]:02x} at offset {first_byte + error.start} is not UTF-8; "
            "convert the file, or name only text files with a glob such as 'folder/**/*.txt'"
        ) from None
    return text.removeprefix("\ufeff") if first_byte == 0 else text


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror}")


def _excerpt(line: str, column: int) -> str:
    """The text around a column, with a caret under it; lines of JSON can be megabytes long."""
    start = max(0, column - 41)
    shown = line[start : start + 60].rstrip("\r\n").replace("\t", " ")
    return f"    {shown}\n    {' ' * (column - 1 - start)}^"


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
