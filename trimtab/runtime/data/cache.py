"""Tokens of a corpus on disk, made once and mapped into memory by every process of a machine.

A cache is a folder named by a digest of everything that decides its content::

    <key>/meta.json           sizes, vocabulary, digest of the tokens
    <key>/train.tokens        token ids, little endian, in the smallest unsigned type
    <key>/train.ends          for each document the index behind its boundary, int64, little endian
    <key>/held_out.tokens, held_out.ends
    <key>/tokenizer.json      unless the tokenizer is bytes
    <key>.lock                held by the process that builds

It is built in a folder of another name, written through to the disk and renamed, so a cache that can be seen is
complete: a crash leaves only a folder that the next builder removes. Old caches are never removed here.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.runtime.data.documents import Document, Documents
from trimtab.runtime.data.errors import DataError, DataWarning
from trimtab.runtime.data.packing import Stream
from trimtab.runtime.data.split import split_documents
from trimtab.runtime.data.tokenizers import Tokenizer, TokenizerChoice, token_type

TOKENIZER_FILE = "tokenizer.json"
TOKENS_FOLDER = ".tokens"
"""Holds the caches of runs whose jobs name no folder for them, beside those runs."""

# Part of the key: change it with anything that decides what a cache holds.
_FORMAT = 1
_POLL_S = 0.05
_REPORT_EVERY_S = 0.2
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the building of a cache is.

    Args:
        stage: ``tokenizer`` (text is read to train one) or ``tokens``.
        num_documents: Documents read in this stage.
        num_tokens: Tokens written.
        fraction: Part of the text that was read in this stage, 0 to 1.
    """

    stage: str
    num_documents: int
    num_tokens: int
    fraction: float


OnProgress = Callable[[Progress], None]
OnWait = Callable[[float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedTokens:
    """Both sides of a corpus, mapped into memory.

    Args:
        train: Documents to train on.
        held_out: Documents to evaluate on.
        vocab_size: Ids are below this.
        digest: Hash of tokens and document ends; equal on every machine that holds the same data, wherever the
            files stand and whenever they were copied.
        folder: Where the cache is.
    """

    train: Stream
    held_out: Stream
    vocab_size: int
    digest: str
    folder: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What decides a cache's content.

    Args:
        documents: The text.
        tokenizer: How it becomes tokens.
        held_out: Fraction of documents to hold out.
        seed: Chooses which.
    """

    documents: Documents
    tokenizer: TokenizerChoice
    held_out: float
    seed: int

    def key(self) -> str:
        """Name of the cache; changes when a file or a setting does."""
        values = [
            _FORMAT,
            self.documents.fingerprint(),
            self.documents.field,
            self.tokenizer.digest,
            self.held_out,
            self.seed,
        ]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]


def open_cache(
    folder: Path, recipe: Recipe, *, on_progress: OnProgress | None = None, on_wait: OnWait | None = None
) -> CachedTokens:
    """Open the cache of a recipe; build it first if it is missing or damaged.

    Any number of processes may call this at once: one builds, the others wait for it. If the builder dies, one of
    those that wait takes over.

    Args:
        folder: Holds the caches; made if missing.
        recipe: What to open.
        on_progress: Called some times a second while this process builds.
        on_wait: Called with the seconds waited so far, some times a second, while another process builds.

    Raises: DataError if the text cannot be read or the folder cannot be written.
    """
    key = recipe.key()
    if cached := _load(folder / key):
        return cached
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{key}.lock", on_wait):
            if cached := _load(folder / key):
                return cached
            _build(folder, key, recipe, _Reporter(on_progress, recipe.documents.size_bytes))
    except OSError as error:
        raise DataError(
            f"data.cache: tokens cannot be written to {folder}: {error.strerror}; name another folder in data.cache"
        ) from None
    built = _load(folder / key)
    assert built is not None, "a cache that was just built is complete"
    return built


@dataclass(frozen=True, kw_only=True, slots=True)
class _Meta:
    vocab_size: int
    boundary: int
    digest: str
    num_tokens: dict[str, int]
    num_documents: dict[str, int]


def _load(folder: Path) -> CachedTokens | None:
    """The cache in a folder; None, with a warning, if it is damaged; None if there is none."""
    if not folder.exists():
        return None
    try:
        meta = _Meta(**json.loads((folder / "meta.json").read_text(encoding="utf-8")))
        return CachedTokens(
            train=_load_stream(folder, "train", meta),
            held_out=_load_stream(folder, "held_out", meta),
            vocab_size=meta.vocab_size,
            digest=meta.digest,
            folder=folder,
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        warnings.warn(
            f"the token cache {folder} is damaged ({error}) and is built again", DataWarning, stacklevel=3
        )
        return None


def _load_stream(folder: Path, side: str, meta: _Meta) -> Stream:
    tokens = _map(folder / f"{side}.tokens", token_type(meta.vocab_size), meta.num_tokens[side])
    ends = _map(folder / f"{side}.ends", np.dtype("<i8"), meta.num_documents[side])
    return Stream(tokens=tokens, ends=ends, boundary=meta.boundary)


def _map(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    size_bytes = path.stat().st_size
    if size_bytes != length * dtype.itemsize:
        raise ValueError(f"{path.name} has {size_bytes} bytes, not {length * dtype.itemsize}")
    if length == 0:
        return np.empty(0, dtype)
    # A plain view: numpy's memmap class makes each small indexing several times slower.
    return np.asarray(np.memmap(path, dtype, mode="r"))


@contextlib.contextmanager
def _locked(path: Path, on_wait: OnWait | None) -> Iterator[None]:
    """Hold the lock; the system releases it when the process dies."""
    began_s = time.monotonic()
    with path.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if on_wait is not None:
                    on_wait(time.monotonic() - began_s)
                time.sleep(_POLL_S)
        yield


def _build(folder: Path, key: str, recipe: Recipe, report: "_Reporter") -> None:
    """Write the cache; the lock is held."""
    for stale in folder.glob(f"{key}.building-*"):
        shutil.rmtree(stale)
    building = folder / f"{key}.building-{os.getpid()}"
    building.mkdir()
    try:
        _write(building, recipe, report)
        recipe.documents.check_unchanged()
        # A damaged cache may still be mapped by others: their maps outlive the names.
        shutil.rmtree(folder / key, ignore_errors=True)
        building.rename(folder / key)
        _sync(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write(folder: Path, recipe: Recipe, report: "_Reporter") -> None:
    documents = recipe.documents
    names = (document.name for document in documents)
    split = split_documents(names, fraction=recipe.held_out, seed=recipe.seed)
    training = (document for document in documents if not split.is_held_out(document.name))
    tokenizer = recipe.tokenizer.prepare(report.texts(training))
    with (
        _StreamWriter(folder, "train", tokenizer) as train,
        _StreamWriter(folder, "held_out", tokenizer) as held_out,
    ):
        for document in documents:
            writer = held_out if split.is_held_out(document.name) else train
            report.tokens(document, writer.add(document.text))
    report.end()
    sides = {"train": train, "held_out": held_out}
    meta = _Meta(
        vocab_size=tokenizer.vocab_size,
        boundary=tokenizer.boundary,
        digest=hashlib.sha256((train.digest() + held_out.digest()).encode()).hexdigest(),
        num_tokens={side: writer.num_tokens for side, writer in sides.items()},
        num_documents={side: len(writer.ends) for side, writer in sides.items()},
    )
    if (description := tokenizer.to_json()) is not None:
        _write_text(folder / TOKENIZER_FILE, description)
    _write_text(folder / "meta.json", json.dumps(asdict(meta), indent=1))
    _sync(folder)


class _StreamWriter:
    """Writes one side of the split, document by document."""

    def __init__(self, folder: Path, side: str, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._boundary = np.array([tokenizer.boundary], token_type(tokenizer.vocab_size)).tobytes()
        self._file = (folder / f"{side}.tokens").open("wb", buffering=_BUFFER_BYTES)
        self._ends_path = folder / f"{side}.ends"
        self._hash = hashlib.sha256()
        self.num_tokens = 0
        self.ends: list[int] = []

    def __enter__(self) -> "_StreamWriter":
        return self

    def add(self, text: str) -> int:
        """Append a document; the number of tokens, with its boundary."""
        ids = self._tokenizer.encode(text)
        for raw in (ids.tobytes(), self._boundary):
            self._file.write(raw)
            self._hash.update(raw)
        self.num_tokens += len(ids) + 1
        self.ends.append(self.num_tokens)
        return len(ids) + 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        raw = np.array(self.ends, "<i8").tobytes()
        self._hash.update(raw)
        _write_bytes(self._ends_path, raw)

    def digest(self) -> str:
        """Hash of tokens and ends; final once closed."""
        return self._hash.hexdigest()


class _Reporter:
    """Tells progress, not more often than people and heartbeats need."""

    def __init__(self, on_progress: OnProgress | None, total_bytes: int) -> None:
        self._on_progress = on_progress
        self._total_bytes = max(total_bytes, 1)
        self._reported_s = time.monotonic()
        self._num_documents = 0
        self._num_tokens = 0

    def texts(self, documents: Iterator[Document]) -> Iterator[str]:
        """Texts of documents, reported as they are read."""
        for document in documents:
            self._tell("tokenizer", document)
            yield document.text
        self._num_documents = 0

    def tokens(self, document: Document, num_tokens: int) -> None:
        """A document was written."""
        self._num_tokens += num_tokens
        self._tell("tokens", document)

    def end(self) -> None:
        """All documents were written."""
        if self._on_progress is not None:
            self._on_progress(self._progress("tokens", 1.0))

    def _tell(self, stage: str, document: Document) -> None:
        self._num_documents += 1
        now_s = time.monotonic()
        if self._on_progress is not None and now_s - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now_s
            self._on_progress(self._progress(stage, document.end_bytes / self._total_bytes))

    def _progress(self, stage: str, fraction: float) -> Progress:
        return Progress(
            stage=stage, num_documents=self._num_documents, num_tokens=self._num_tokens, fraction=fraction
        )


def _write_text(path: Path, text: str) -> None:
    _write_bytes(path, text.encode())


def _write_bytes(path: Path, raw: bytes) -> None:
    with path.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make names in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
