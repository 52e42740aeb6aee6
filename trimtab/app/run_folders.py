"""Runs on disk: making the folder of a run, finding it by name, and who is at work in it.

A run is a folder ``<name>-<N>`` inside the folder of runs. The process that runs an attempt holds the file
``run.lock`` in it under an advisory lock, which the kernel lets go of however that process ends; so a run is
alive exactly as long as the lock is held, and no two attempts can be at work at once.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.app.errors import RunStateError, UnknownRunError
from trimtab.terms import InputError, nearest_name

DEFAULT_RUNS = Path("runs")
"""Where runs are looked for by name: what ``orchestration.runs`` is by default, under the working folder."""

RESOLVED_FILE = "resolved.yaml"
ABOUT_FILE = "run.json"
REPORT_FILE = "report.json"
JOURNAL_FOLDER = "journal"
LOGS_FOLDER = "logs"
_LOCK_FILE = "run.lock"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_AGENT_JOURNAL = re.compile(r"agent-([0-9]+)\.jsonl")
_RANK_JOURNAL = re.compile(r"rank-[0-9]+-([0-9]+)\.jsonl")
_RANK_LOG = re.compile(r"rank-[0-9]+-([0-9]+)\.log")


def create_run(runs: Path, name: str) -> Path:
    """A new folder ``<name>-<N>`` with the first free N; two callers at once get two folders.

    Raises: RunStateError if the system refuses.
    """
    try:
        runs.mkdir(parents=True, exist_ok=True)
        while True:
            folder = next_run(runs, name)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise RunStateError(
            f"cannot make a run in {runs}: {error.strerror}; see orchestration.runs"
        ) from error


def next_run(runs: Path, name: str) -> Path:
    """The folder that ``create_run`` would make now."""
    pattern = re.compile(rf"{re.escape(name)}-([0-9]+)")
    taken = [int(match[1]) for entry in _names_in(runs) if (match := pattern.fullmatch(entry))]
    return runs / f"{name}-{max(taken, default=0) + 1}"


def find_run(text: str, runs: Path = DEFAULT_RUNS) -> Path:
    """The run that a user means: a directory, else the name of a run in ``runs``, or a beginning of one name.

    A name never leads out of ``runs``: only letters, digits, dots, hyphens and underscores make one.

    Raises: UnknownRunError listing the runs that fit, or naming the nearest.
    """
    if os.sep in text or text in (".", ".."):
        return _checked(Path(text))
    names = [name for name in _names_in(runs) if _is_run(runs / name)] if _PLAIN_NAME.fullmatch(text) else []
    fitting = [text] if text in names else [name for name in names if name.startswith(text)]
    if len(fitting) == 1:
        return runs / fitting[0]
    if fitting:
        listed = "\n".join(f"  {name}" for name in fitting)
        raise UnknownRunError(f"{text!r} fits several runs in {runs}:\n{listed}\nWrite one of them in full.")
    if _is_run(Path(text)):
        return Path(text)
    near = nearest_name(text, names or _names_in(runs))
    hint = f" Did you mean {near!r}?" if near else ""
    raise UnknownRunError(f"no run {text!r} in {runs}/, and no such directory.{hint}")


def next_attempt(folder: Path) -> int:
    """The number of the attempt that would be made next; the first is 1."""
    return 1 + max(_numbers(folder / JOURNAL_FOLDER, _AGENT_JOURNAL), default=0)


def next_incarnation(folder: Path) -> int:
    """A number above that of every process that any rank of the run ever had; the first is 0.

    A process has a log from its start on, and a journal once it is up: one that was ended before has used its number, too.
    """
    used = [*_numbers(folder / JOURNAL_FOLDER, _RANK_JOURNAL), *_numbers(folder / LOGS_FOLDER, _RANK_LOG)]
    return 1 + max(used, default=-1)


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Be the one process that works in a run's folder, as long as the block lasts.

    Raises: RunStateError naming the process that is at work there.
    """
    lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, 32).decode(errors="replace").strip()
            raise RunStateError(
                f"{folder.name} is running (process {pid or 'unknown'}); `trimtab stop {folder.name}` ends it"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)


def job_file_of(folder: Path) -> str | None:
    """The job file that a run was begun by, as its user wrote it; None if there was none, or nobody wrote it down."""
    try:
        about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    job_file = about.get("job_file") if isinstance(about, dict) else None
    return job_file if isinstance(job_file, str) else None


def is_alive(folder: Path) -> bool:
    """Whether some process is at work in the run."""
    try:
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def lock_owner(folder: Path) -> int | None:
    """The process id that the last one at work in the run wrote down; None if nobody did."""
    try:
        text = (folder / _LOCK_FILE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else None


def working_folder(folder: Path) -> Path:
    """Where the run was started: what relative paths in its job are relative to.

    Raises: InputError if the folder's record of it cannot be read.
    """
    path = folder / ABOUT_FILE
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        found = Path(about["working_folder"])
        found.stat()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not say where the run was started: {error}") from error
    return found


def _checked(folder: Path) -> Path:
    if not _is_run(folder):
        what = "is no run: it has no resolved.yaml" if folder.is_dir() else "is no directory"
        raise UnknownRunError(f"{folder} {what}")
    return folder


def _is_run(folder: Path) -> bool:
    return (folder / RESOLVED_FILE).is_file()


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    """The number in each file's name that fits a pattern."""
    return [int(match[1]) for name in _names_in(folder) if (match := pattern.fullmatch(name))]


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder), key=_by_number)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _by_number(name: str) -> tuple[str, int]:
    """Orders quickstart-2 before quickstart-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, -1)
