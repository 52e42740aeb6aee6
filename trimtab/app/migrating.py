"""The verbs ``import`` and ``export``: settings of other systems into job files, and job files into theirs."""

import dataclasses
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from trimtab.app.errors import JobReadError
from trimtab.app.job_reading import read_job, refuse_script, say_warnings
from trimtab.app.output import print_document, say
from trimtab.catalog import (
    ClusterError,
    Network,
    NetworkError,
    UnknownNameError,
    cluster,
    network,
    network_names,
)
from trimtab.plan.layout import network_of
from trimtab.spec import JobFileError, LoadedJob, load_job
from trimtab.spec.migration import (
    Export,
    Exportable,
    Importer,
    Migration,
    MigrationError,
    Source,
    exporter_for,
    importer_for,
    render_job,
    render_table,
    settings_document,
)
from trimtab.terms import ExitCode, InputError

COMMAND_LINE = "the command line"
"""The name of settings that were given as flags, without a file."""


def import_file(
    system: str, words: Sequence[str], *, target: Path | None, devices: int | None, is_json: bool
) -> int:
    """Turn another system's settings into a job file, and print what became of each.

    Args:
        system: Whose settings: a name of ``IMPORTERS``.
        words: The file, then further settings that count before it; either may be missing.
        target: The job file to write; None prints it.
        devices: Devices to train on where the settings leave them open.
        is_json: Print one JSON document instead.

    Returns: the exit code, 2 if the job that the settings amount to cannot be.
    Raises: MigrationError, SpecError or JobReadError if the settings cannot be read; InputError if the job file
        cannot be written.
    """
    importer = importer_for(system)
    path, flags = (words[0], words[1:]) if words and not words[0].startswith("--") else (None, words)
    if path is None and not flags:
        raise MigrationError("name a file with the settings, or give them: trimtab import SYSTEM -- FLAGS")
    source = Source(
        text=_read(path) if path else "",
        name=path or COMMAND_LINE,
        flags=tuple(flags),
        devices=devices,
        networks={name: network_fields(network(name)) for name in network_names()},
    )
    migration = _read_settings(importer, source)
    text = render_job(migration)
    refusal = _refusal(text, str(target or "the job file"))
    if target is not None:
        _write(target, text)
    _show_import(migration, text, target, refusal, is_json=is_json)
    return ExitCode.INPUT_WRONG if refusal else ExitCode.DONE


def export_file(
    system: str, path: str, overrides: Sequence[str], *, target: Path | None, is_json: bool
) -> int:
    """Write a job's settings for another system, and print what became of each; returns the exit code.

    Raises: MigrationError for an unknown system; JobFileError or JobReadError for a job that is wrong;
        InputError if the file cannot be written.
    """
    loaded = read_job(path, overrides)
    refuse_script(loaded, verb="export")
    say_warnings(loaded)
    found = network_of(loaded.job)
    exportable = Exportable(
        loaded=loaded,
        name=path,
        network=network_fields(found) if found else {},
        devices_per_node=_devices_per_node(loaded),
    )
    export = exporter_for(system)(exportable)
    if target is not None:
        _write(target, export.text)
    _show_export(system, export, target, is_json=is_json)
    return ExitCode.DONE


def _read_settings(importer: Importer, source: Source) -> Migration:
    try:
        return importer(source)
    except MigrationError as error:
        raise MigrationError(f"{source.name}: {error}") from error


def _refusal(text: str, name: str) -> str:
    """Why the job that the settings amount to cannot be; empty if it can."""
    try:
        network_of(load_job(text, source=name, environment=os.environ, read=_read).job)
    except (JobFileError, NetworkError) as error:
        return str(error)
    return ""


def _show_import(
    migration: Migration, text: str, target: Path | None, refusal: str, *, is_json: bool
) -> None:
    if is_json:
        document = {
            "file": str(target) if target else None,
            "job": text,
            "formulas": migration.formulas,
            "refused": refusal or None,
        }
        print_document(document | settings_document(migration))
    elif target is None:
        print(text, end="")
        say(render_table(migration))
    else:
        print(render_table(migration), end="")
        print(f"wrote {target}; next: trimtab explain {target}")
    if refusal:
        say(f"these settings cannot hold together here; change the job file:\n{refusal}")


def _show_export(system: str, export: Export, target: Path | None, *, is_json: bool) -> None:
    if is_json:
        document = {"system": system, "file": str(target) if target else None, "text": export.text}
        print_document(document | settings_document(export))
    elif target is None:
        print(export.text, end="")
        say(render_table(export))
    else:
        print(render_table(export), end="")
        print(f"wrote {target}")


def network_fields(found: Network) -> dict[str, Any]:
    """The fields of a network as plain values, choices as a job file writes them."""
    plain = {field.name: _plain(getattr(found, field.name)) for field in dataclasses.fields(found)}
    plain["bias"] = {"all": True, "none": False}.get(plain["bias"], plain["bias"])
    return plain


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _devices_per_node(loaded: LoadedJob) -> int | None:
    """Devices of the smallest machine of the cluster that a job names."""
    name = loaded.job.orchestration.cluster
    if name is None:
        return None
    try:
        return min(node.num_devices for node in cluster(name).nodes)
    except (UnknownNameError, ClusterError) as error:
        raise JobReadError(f"{loaded.origins['orchestration.cluster']}  {error}") from error


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise JobReadError(f"{path}: cannot read the settings: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JobReadError(f"{path}: the settings are not UTF-8 text") from error


def _write(target: Path, text: str) -> None:
    """Write a file that was not there.

    Raises: InputError if it was, or the system refuses.
    """
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{target} is already there; choose another name") from None
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
