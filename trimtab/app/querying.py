"""The verb ``query``: SQL over the tables of a plan, and over those of a run."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.app.answer_formats import AnswerFormat, as_csv, as_json, as_table
from trimtab.app.closed_database import Answer, ClosedDatabase
from trimtab.app.compiling import compiled
from trimtab.app.deciding import read_decided_job
from trimtab.app.job_reading import read_job, refuse_script, say_warnings
from trimtab.app.module_relations import module_relations
from trimtab.app.output import print_document, say
from trimtab.app.run_folders import RESOLVED_FILE, find_run
from trimtab.app.run_records import read_records
from trimtab.app.saved_places import saved_place
from trimtab.app.stored_checkpoints import folder_storage
from trimtab.ledger.relations import run_relations
from trimtab.plan.layout import network_of
from trimtab.plan.relations.every_relation import PLAN_SCHEMAS, plan_relations
from trimtab.runtime.checkpoint.store import find_checkpoints
from trimtab.spec import LoadedJob
from trimtab.terms import ExitCode, InputError, Relation, TrimtabError


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command line asks for.

    Args:
        subject: A job file, or a run's directory or name.
        sql: The question; None to read it from standard input.
        overrides: What stood after each ``--set``.
        format: Of the answer; None for what the file's name says, else a table.
        file: Where the answer goes; None for standard output.
        is_json: Whether standard output shall hold one JSON document.
    """

    subject: str
    sql: str | None = None
    overrides: Sequence[str] = ()
    format: AnswerFormat | None = None
    file: Path | None = None
    is_json: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What can be asked.

    Args:
        relations: The tables.
        absent: Those that are not there, each with the reason.
    """

    relations: tuple[Relation, ...]
    absent: Mapping[str, str] = field(default_factory=dict)


def answer(asked: Asked) -> int:
    """Print or write the answer to a question; returns the exit code.

    Raises: QueryError if the question is wrong; InputError if the answer cannot be written.
    """
    format_ = _format_of(asked)
    subject = find_subject(asked.subject, asked.overrides)
    sql = asked.sql if asked.sql is not None else _read_sql()
    database = ClosedDatabase(subject.relations, subject.absent)
    if asked.file is not None:
        num_rows = _write(database, sql, format_, asked.file)
        if asked.is_json:
            print_document({"file": str(asked.file), "format": format_.value, "rows": num_rows})
        else:
            say(f"{num_rows:,} {'row' if num_rows == 1 else 'rows'} -> {asked.file}")
        return ExitCode.DONE
    found = database.ask(sql)
    _print(_text(found, format_, width=_terminal_width()))
    return ExitCode.DONE


def list_tables(text: str, overrides: Sequence[str], *, is_json: bool) -> int:
    """Print the tables that can be asked, with their columns; returns the exit code."""
    subject = find_subject(text, overrides)
    if is_json:
        print_document({"tables": [_description(relation) for relation in subject.relations]})
        return ExitCode.DONE
    _print("\n\n".join(_described(relation) for relation in subject.relations))
    for reason in sorted(set(subject.absent.values())):
        say(f"without the tables of its plan: {reason}")
    return ExitCode.DONE


def find_subject(text: str, overrides: Sequence[str]) -> Subject:
    """The tables of a job, or of a run with those of its plan.

    A file, or a name that ends as a job file's does, is a job; anything else is a run.

    Raises: What reading the job, compiling its plan or finding the run raises.
    """
    if Path(text).is_file() or text.endswith((".yaml", ".yml")):
        loaded = read_decided_job(text, overrides)
        refuse_script(loaded, verb="query")
        say_warnings(loaded)
        if network_of(loaded.job) is None:
            return _module_subject(loaded)
        return Subject(relations=plan_relations(compiled(loaded), loaded.program))
    folder = find_run(text)
    if overrides:
        raise InputError(f"--set changes a job, and {folder.name} is a run: what it did is done")
    written = read_records(folder)
    storage = folder_storage(folder, written, now_unix_ns=time.time_ns())
    records = run_relations(written, find_checkpoints(saved_place(folder)), storage)
    try:
        loaded = read_job(str(folder / RESOLVED_FILE))
        return Subject(relations=(*records, *plan_relations(compiled(loaded), loaded.program)))
    except TrimtabError as error:
        first, *_ = str(error).splitlines()
        reason = f"the plan of {folder.name} cannot be made: {first}"
        return Subject(
            relations=records, absent=dict.fromkeys((schema.name for schema in PLAN_SCHEMAS), reason)
        )


def _module_subject(loaded: LoadedJob) -> Subject:
    """The tensors of a class of the user's own; how a plan would lay them out is not known."""
    relations, notes = module_relations(loaded)
    for note in notes:
        say(f"note: {note}")
    known = {relation.name for relation in relations}
    reason = f"{loaded.job.model.module} is a class of your own: its tensors are known, its operators are not"
    absent = {schema.name: reason for schema in PLAN_SCHEMAS if schema.name not in known}
    return Subject(relations=relations, absent=absent)


def _format_of(asked: Asked) -> AnswerFormat:
    """The format that was asked for.

    Raises: InputError for two of them, and for Parquet without a file.
    """
    if asked.is_json and asked.file is None:
        if asked.format not in (None, AnswerFormat.JSON):
            raise InputError(f"--json and --format {asked.format} are two formats; keep one of them")
        return AnswerFormat.JSON
    by_suffix = {f".{format_.value}": format_ for format_ in AnswerFormat}
    named = by_suffix.get(asked.file.suffix) if asked.file else None
    found = asked.format or named or AnswerFormat.TABLE
    if found is AnswerFormat.PARQUET and asked.file is None:
        raise InputError("Parquet is no text; add --out FILE")
    return found


def _read_sql() -> str:
    if sys.stdin.isatty():
        say("SQL, then Ctrl-D:")
    return sys.stdin.read()


def _write(database: ClosedDatabase, sql: str, format_: AnswerFormat, file: Path) -> int:
    """Write the answer, all of it or nothing; returns the number of rows.

    Raises: InputError if the system refuses.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as folder:
            if format_ is AnswerFormat.PARQUET:
                unfinished, num_rows = database.write_parquet(sql, Path(folder))
            else:
                found = database.ask(sql)
                unfinished, num_rows = Path(folder, "answer"), len(found.rows)
                unfinished.write_text(
                    _text(found, format_, width=None) + _END[format_], encoding="utf-8", newline=""
                )
            unfinished.replace(file)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}; choose another place with --out") from error
    return num_rows


_END = {AnswerFormat.TABLE: "\n", AnswerFormat.JSON: "\n", AnswerFormat.CSV: ""}


def _text(answer: Answer, format_: AnswerFormat, *, width: int | None) -> str:
    if format_ is AnswerFormat.CSV:
        return as_csv(answer.names, answer.rows)
    if format_ is AnswerFormat.JSON:
        return as_json(answer.names, answer.types, answer.rows)
    return as_table(answer.names, answer.rows, width=width)


def _terminal_width() -> int | None:
    """Columns of the terminal, or as COLUMNS says; None where the answer goes elsewhere, and is not cut short."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return None


def _print(text: str) -> None:
    """Print a text; who has read enough of it may close the pipe."""
    try:
        print(text.removesuffix("\n"), flush=True)
    except BrokenPipeError:
        # What is still in the buffer must not be tried again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _description(relation: Relation) -> Mapping[str, object]:
    columns = [
        {"name": column.name, "type": column.type.value, "meaning": column.meaning}
        for column in relation.columns
    ]
    return {"name": relation.name, "meaning": relation.meaning, "columns": columns}


def _described(relation: Relation) -> str:
    lines = [f"{relation.name}: {relation.meaning}"]
    widest = max(len(column.name) for column in relation.columns)
    lines += [f"  {column.name:{widest}}  {column.type:11}  {column.meaning}" for column in relation.columns]
    return "\n".join(lines).replace("`", "")
