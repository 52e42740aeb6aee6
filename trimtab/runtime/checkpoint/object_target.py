"""Where a writer writes: an object store, in which the manifest's own appearance is the last act of a save.

Files of an attempt stand under a name of the attempt's own, ``step-20/<attempt>/model-0.safetensors``; what counts is
``step-20/manifest.json``, which names the attempt, and is written when everything else is there. An attempt that fails
leaves objects that nobody looks at.
"""

import contextlib
import errno
import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from trimtab.runtime.checkpoint.folder_target import MANIFEST_FILE, Attempt, Sink
from trimtab.runtime.checkpoint.marks import read_marks
from trimtab.runtime.checkpoint.objects import ObjectPath

GIVEN_UP = "given-up"
FORSAKEN_S = 86_400.0
"""After which the objects of an attempt without a manifest are nobody's: no writer has patience for a day."""


class ObjectTarget:
    """See Target.

    Args:
        root: Of all checkpoints of the run.
        run_folder: In which pins and marks stand.
    """

    def __init__(self, root: ObjectPath, run_folder: Path) -> None:
        self._root, self._run_folder = root, run_folder

    def attempt(self, step: int, into: str | None) -> Attempt:
        """See Target."""
        assert into is not None, "the manifest names the attempt, so it is known before"
        return ObjectAttempt(self._root / f"step-{step}", attempt_of(into))

    def clear(self, names: list[str]) -> None:
        """See Target. Names mean nothing here: what counts is age, and that no manifest speaks of it."""
        del names
        about = self._root.about()
        newest: dict[tuple[str, str], float] = {}
        for name, facts in about.items():
            step, _, rest = name.partition("/")
            attempt, is_inside, _ = rest.partition("/")
            if is_inside:
                newest[step, attempt] = max(newest.get((step, attempt), 0.0), _changed_s(facts))
        aside = {name.partition(".set-aside-")[0] for name in about if ".set-aside-" in name}
        for (step, attempt), changed_s in newest.items():
            if step in aside or changed_s > time.time() - FORSAKEN_S:
                continue
            if f"{step}/{MANIFEST_FILE}" in about and self._is_of(step, attempt):
                continue
            for name in about:
                if name.startswith(f"{step}/{attempt}/"):
                    (self._root / name).remove()

    def prune(self, step: int) -> None:
        """See Target. The manifest goes first. Nothing tells who is reading: a reader finds an object gone."""
        if step in read_marks(self._run_folder).pinned:
            raise OSError("it is pinned")
        folder = self._root / f"step-{step}"
        names = list(folder.sizes())
        if MANIFEST_FILE not in names:
            raise FileNotFoundError(f"there is no {folder / MANIFEST_FILE}")
        for name in sorted(names, key=lambda name: name != MANIFEST_FILE):
            (folder / name).remove()

    def free_bytes(self) -> None:
        """See Target."""
        return

    def _is_of(self, step: str, attempt: str) -> bool:
        try:
            return bool(json.loads((self._root / step / MANIFEST_FILE).read()).get("folder") == attempt)
        except ValueError:
            return True  # damaged: whose the files are, nobody can say


class ObjectAttempt:
    """See Attempt.

    Args:
        step: Of the checkpoint.
        attempt: A name that no other attempt has.
    """

    look_s = 0.5

    def __init__(self, step: ObjectPath, attempt: str) -> None:
        self._step, self._own = step, step / attempt
        self._written: list[str] = []

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """See Attempt. It goes up part by part, as it is written, and is there when the block ends."""
        self._written.append(name)
        file = (self._own / name).open_new()
        try:
            yield ObjectSink(file)
        except BaseException:
            with contextlib.suppress(Exception):  # what was begun is forgotten, or collected later
                file.discard()
            raise
        try:
            file.close()
        except Exception as error:
            raise OSError(f"cannot write {self._own / name}: {error}") from error

    def leave(self, name: str, document: dict[str, Any]) -> None:
        """See Attempt."""
        (self._own / name).write(_text(document))

    def find(self, name: str) -> dict[str, Any] | None:
        """See Attempt."""
        if (self._own / GIVEN_UP).exists():
            raise FileNotFoundError(f"{self._own} was given up")
        try:
            document: dict[str, Any] = json.loads((self._own / name).read())
        except FileNotFoundError:
            return None
        return document

    def arrived_bytes(self, names: list[str]) -> int:
        """See Attempt. What goes up in parts is not seen until it is whole."""
        sizes = self._own.sizes()
        return sum(sizes.get(name, 0) for name in names)

    def finish(self, manifest: dict[str, Any], received: list[str]) -> None:
        """See Attempt. The store refuses a second manifest, where it can; else whoever comes last is believed."""
        (self._step / MANIFEST_FILE).write_first(_text(manifest))
        for name in received:
            with contextlib.suppress(OSError):  # it is in nobody's way
                (self._own / name).remove()

    def discard(self) -> None:
        """See Attempt. The others see that it was given up, and remove what is theirs."""
        with contextlib.suppress(OSError):
            (self._own / GIVEN_UP).write(b"")
        for name in self._written:
            with contextlib.suppress(OSError):
                (self._own / name).remove()


class ObjectSink:
    """See Sink."""

    fd: int | None = None

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, chunk: memoryview) -> None:
        """See Sink."""
        try:
            self._file.write(bytes(chunk))
        except Exception as error:
            raise OSError(errno.EIO, f"cannot write: {error}") from error


def attempt_of(into: str) -> str:
    """The name under which an attempt's objects stand, from what the lead has opened.

    >>> attempt_of("step-20.tmp-77-0a1b2c3d")
    '77-0a1b2c3d'
    """
    return into.partition(".tmp-")[2]


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False).encode()


def _changed_s(facts: dict[str, Any]) -> float:
    """When an object was last changed; the end of time where the store does not say."""
    for name in ("LastModified", "last_modified", "mtime", "created"):
        found = facts.get(name)
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, int | float):
            return float(found)
    return float("inf")
