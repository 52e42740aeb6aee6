"""Job files on disk, read with what the command line and the environment say about them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trimtab.app.errors import JobReadError
from trimtab.app.output import say
from trimtab.catalog import ConfigError, ConfigProblem, NetworkError, UnknownNameError
from trimtab.plan.layout import network_of
from trimtab.spec import Job, LoadedJob, load_job
from trimtab.terms import InputError


def read_job(path: str, overrides: Sequence[str] = ()) -> LoadedJob:
    """The job of a file.

    Args:
        path: Of the job file, as the user wrote it: errors show it so.
        overrides: What stood after each ``--set``.

    Raises: JobReadError if the file cannot be read at all, its network cannot be built, or its formulas are still to be
        found; JobFileError with everything that is wrong in it.
    """
    return _closed(read_open_job(path, overrides))


def read_open_job(path: str, overrides: Sequence[str] = ()) -> LoadedJob:
    """The job of a file whose parallelism may still be ``auto``.

    Args:
        path: Of the job file, as the user wrote it: errors show it so.
        overrides: What stood after each ``--set``.

    Raises: As ``read_job``.
    """
    try:
        text = _read_text(path)
    except OSError as error:
        raise JobReadError(f"{path}: cannot read the job file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise JobReadError(f"{path}:{line}: the job file is not UTF-8 text") from error
    return read_open_text(text, source=path, overrides=overrides)


def read_job_text(text: str, *, source: str, overrides: Sequence[str] = ()) -> LoadedJob:
    """The job of a text; ``source`` is what errors call it, and files that it names are found beside.

    Raises: JobReadError if its network cannot be built, or its formulas are still to be found; JobFileError with
        everything that is wrong in it.
    """
    return _closed(read_open_text(text, source=source, overrides=overrides))


def read_open_text(text: str, *, source: str, overrides: Sequence[str] = ()) -> LoadedJob:
    """The job of a text whose parallelism may still be ``auto``.

    Raises: As ``read_job_text``.
    """
    loaded = load_job(text, source=source, overrides=overrides, environment=os.environ, read=_read_text)
    try:
        network_of(loaded.job)
    except ConfigError as error:
        raise JobReadError("\n".join(_placed(error.problems, loaded.origins))) from error
    except (NetworkError, UnknownNameError) as error:
        raise JobReadError(f"{loaded.origins[network_key(loaded.job)]}  {error}") from error
    return replace(loaded, warnings=(*loaded.warnings, *_configuration_warnings(loaded)))


def _closed(loaded: LoadedJob) -> LoadedJob:
    if loaded.is_undecided:
        raise JobReadError(
            f"{loaded.origins['parallelism']}  parallelism is auto, and this needs formulas\n"
            "  trimtab plan JOB --out best.trim finds them; write parallelism: {file: best.trim}"
        )
    return loaded


def network_key(job: Job) -> str:
    """The dotted path of the key that names what a checked job trains."""
    return f"model.{next(iter(job.model.named))}"


def refuse_script(loaded: LoadedJob, *, verb: str) -> None:
    """Refuse to look into a job whose network only a program of the user's knows.

    Raises: InputError.
    """
    if loaded.job.script is not None:
        raise InputError(
            f"{loaded.origins['script.file']}  {verb} looks into the network, and only the script "
            f"{loaded.job.script.file} knows it; `trimtab run` trains it, `trimtab report` says where the time went"
        )


def say_warnings(loaded: LoadedJob) -> None:
    """Say on standard error what may be meant otherwise."""
    for warning in loaded.warnings:
        say(f"warning: {warning}")


def _configuration_warnings(loaded: LoadedJob) -> list[str]:
    """What a foreign configuration says that is not carried over, each with its place."""
    model = loaded.job.model
    if model.folder is None:
        return []
    # Few jobs need it, and every command waits for what stands at the top.
    from trimtab.catalog.hugging_face import read_config

    return _placed(read_config(model.configuration, name=model.folder).warnings, loaded.origins)


def _placed(problems: Sequence[ConfigProblem], origins: Mapping[str, str]) -> list[str]:
    """Each message behind the line of its key, or of the folder where the key is missing."""
    return [
        f"{origins.get(f'model.configuration.{problem.key}', origins['model.folder'])}  {problem.message}"
        for problem in problems
    ]


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
