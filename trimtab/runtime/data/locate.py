"""From what the job file calls ``data.text`` to a list of files.

A source is ``python-stdlib``, a file, a folder (read recursively) or a glob. Files are ordered by name, not by
the order in which the system lists them, and each real file is read once however often it is named.
"""

import difflib
import errno
import os
import re
import stat
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath

from trimtab.runtime.data.errors import DataError, DataWarning

PYTHON_STDLIB = "python-stdlib"

# What distributions of Python ship apart, leave out or generate on the building machine: without these, two
# installations of one Python version give the same text. Tests are left out because some hold broken text.
_STDLIB_LEFT_OUT = frozenset(
    {
        "ensurepip",
        "idlelib",
        "lib2to3",
        "test",
        "tests",
        "tkinter",
        "turtledemo",
        "site-packages",
        "dist-packages",
    }
)
_STDLIB_GENERATED = re.compile(r"(_sysconfigdata_.*|sitecustomize|usercustomize)\.py")
_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_WILDCARDS = frozenset("*?[")


class FileKind(Enum):
    """How a file is cut into documents."""

    TEXT = "one document a file"
    JSONL = "one document a line"
    PARQUET = "one document a row"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file to read.

    Args:
        path: Where it is.
        name: Its name inside its source, with ``/``; the same wherever the source stands, so that what depends
            on names (the held-out split) survives a move of the folder.
        size_bytes: Its size when it was found.
        modified_ns: Its modification time when it was found.
    """

    path: Path
    name: str
    size_bytes: int
    modified_ns: int

    @property
    def kind(self) -> FileKind:
        """Read from the name: ``.jsonl``, ``.parquet``, anything else is text."""
        kinds = {".jsonl": FileKind.JSONL, ".parquet": FileKind.PARQUET}
        return kinds.get(self.path.suffix.lower(), FileKind.TEXT)


def locate(text: str | Sequence[str], *, leave_out: Path | None = None) -> tuple[SourceFile, ...]:
    """The files that ``text`` (one source or a list of them) names, in the order in which they are read.

    Args:
        text: One source or a list of them.
        leave_out: A folder whose files are never text, wherever it stands: the token cache, which would otherwise
            be read as text by the next run on the same folder.

    Raises: DataError if a source does not exist, cannot be listed, or holds no file.
    """
    sources = [text] if isinstance(text, str) else list(text)
    if not sources:
        raise DataError(f"data.text: the list is empty; name a file, a folder, a glob or {PYTHON_STDLIB!r}")
    found: dict[tuple[int, int], SourceFile] = {}
    num_repeated = 0
    left_out = None if leave_out is None else os.path.join(os.path.abspath(leave_out), "")
    for source in sources:
        files = [
            (path, name)
            for path, name in _locate_one(source)
            if left_out is None or not os.path.abspath(path).startswith(left_out)
        ]
        if not files:
            raise DataError(f"data.text: {source!r} holds no documents: no file was found in it")
        for path, name in files:
            status = _status(path)
            key = (status.st_dev, status.st_ino)
            num_repeated += key in found
            found.setdefault(
                key,
                SourceFile(path=path, name=name, size_bytes=status.st_size, modified_ns=status.st_mtime_ns),
            )
    if num_repeated:
        message = (
            f"data.text names {num_repeated} file(s) more than once (or through links); each is read once"
        )
        warnings.warn(message, DataWarning, stacklevel=2)
    return tuple(found.values())


def _locate_one(source: str) -> Iterator[tuple[Path, str]]:
    if source == PYTHON_STDLIB:
        return _stdlib_files(Path(sysconfig.get_path("stdlib")))
    if not source or "\0" in source:
        raise DataError(
            f"data.text: {source!r} is not a path; name a file, a folder, a glob or {PYTHON_STDLIB!r}"
        )
    if _LOCATION.match(source):
        raise DataError(
            f"data.text: {source!r} is a location on a network; only local paths are read: copy it first"
        )
    path = Path(source)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if _WILDCARDS & set(source):
            return _glob_files(source)
        raise _unreachable(path, error) from None
    if stat.S_ISDIR(mode):
        return _folder_files(path, path, ancestors=())
    return iter([(path, path.name)])


def _stdlib_files(root: Path) -> Iterator[tuple[Path, str]]:
    names = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _STDLIB_LEFT_OUT]
        names += [
            PurePath(folder, file).relative_to(root).as_posix()
            for file in files
            if file.endswith(".py") and not _STDLIB_GENERATED.fullmatch(file)
        ]
    return ((root / name, name) for name in sorted(names))


def _glob_files(pattern: str) -> Iterator[tuple[Path, str]]:
    """Files (not folders) that match; ``**`` stands for any depth and does not follow links to folders."""
    parts = PurePath(pattern).parts
    first = next(index for index, part in enumerate(parts) if _WILDCARDS & set(part))
    base = Path(*parts[:first])
    try:
        matches = {path for path in base.glob(str(PurePath(*parts[first:]))) if path.is_file()}
    except (ValueError, OSError) as error:
        raise DataError(f"data.text: the glob {pattern!r} cannot be read: {error}") from None
    if not matches:
        raise DataError(
            f"data.text: no file matches {pattern!r}; write '**/*.txt' for every .txt file below a folder"
        )
    named = sorted((path.relative_to(base).as_posix(), path) for path in matches)
    return ((path, name) for name, path in named)


def _folder_files(folder: Path, root: Path, ancestors: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    """Every regular file below, by name; names that begin with a dot and special files are left out.

    Links to folders are followed; one that leads back to a folder it stands in is an error.
    """
    real = folder.resolve()
    if real in ancestors:
        raise DataError(
            f"data.text: {folder} is a loop of links: it leads back to {real}, which it stands in"
        )
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"data.text: the folder {folder} cannot be listed: {error.strerror}") from None
    for entry in entries:
        try:
            mode = entry.stat().st_mode
        except OSError as error:
            raise _unreachable(entry, error) from None
        if stat.S_ISDIR(mode):
            yield from _folder_files(entry, root, (*ancestors, real))
        elif stat.S_ISREG(mode):
            yield entry, entry.relative_to(root).as_posix()


def _status(path: Path) -> os.stat_result:
    """Status of a regular file; a pipe or a device would be read for ever."""
    try:
        status = path.stat()
    except OSError as error:
        raise _unreachable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"data.text: {path} is not a regular file (a pipe, a socket or a device)")
    return status


def _unreachable(path: Path, error: OSError) -> DataError:
    if error.errno == errno.ELOOP:
        return DataError(f"data.text: {path} is a loop of symbolic links")
    if path.is_symlink():
        return DataError(f"data.text: {path} is a link to {os.readlink(path)}, which does not exist")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return DataError(f"data.text: there is no file or folder {str(path)!r}{_nearest(path)}")
    return DataError(f"data.text: {path} cannot be read: {error.strerror}")


def _nearest(path: Path) -> str:
    """A hint at the existing name nearest to the first part of the path that does not exist."""
    missing = path
    while missing != missing.parent and not missing.parent.is_dir():
        missing = missing.parent
    try:
        names = {entry.name: str(entry) for entry in missing.parent.iterdir()}
    except OSError:
        names = {}
    if missing.parent == Path():
        names[PYTHON_STDLIB] = PYTHON_STDLIB
    near = difflib.get_close_matches(missing.name, names, n=1)
    hint = f"; did you mean {names[near[0]]!r}?" if near else ""
    if missing != path:
        return f", as {str(missing)!r} does not exist{hint}"
    return hint or f"; paths start at {str(missing.parent.resolve())!r}"
