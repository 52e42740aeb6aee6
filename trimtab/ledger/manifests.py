"""The manifest of a checkpoint: what a whole one holds.

A checkpoint is a folder ``step-<N>`` with ``model.safetensors`` (fp32 master weights under their logical
names), ``optimizer.safetensors`` (``<part>/<name>``) and ``manifest.json``, which is written last. Where ranks hold
pieces, each has files of its own, ``model-<rank>.safetensors`` and ``optimizer-<rank>.safetensors``, with boxes of
tensors: ``<name>[0:8,16:32]``.

Text comes in as a value: who reads the disk passes it, so that this module needs neither paths nor tensors.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from trimtab.terms import RunError

FORMAT_NAME = "trimtab-checkpoint"
FORMAT_MAJOR = 3
"""A reader refuses a newer major version: the meaning of a field has changed.

2: a part may stand in the files of several ranks, in boxes.
3: a file has digests of its chunks, and its own is made of them; a signature covers all that the manifest says.
"""
FORMAT_MINOR = 0
"""Grows when an optional field with a default is added; a reader accepts every minor version."""
VERSION = (FORMAT_MAJOR, FORMAT_MINOR)
_CHUNKED = 3
"""Major version from which files have chunks."""

MANIFEST_NAME = "manifest.json"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
SIGNATURE_ALGORITHM = "hmac-sha256"
CIPHER_ALGORITHM = "aes-256-gcm"
PARAMETERS = "parameters"
"""The part that holds the master weights; every other part is optimizer state."""

_SEALED_OTHERWISE = ("files", "digest", "signature")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_RANK_FILE = re.compile(r"(model|optimizer)-(?:0|[1-9][0-9]{0,8})\.(safetensors)")
_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")
_WRAPPED = re.compile(r"[0-9a-f]{120}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

_Value = TypeVar("_Value")


class CheckpointError(RunError):
    """A checkpoint cannot be used; the message names the file.

    CheckpointError
    ├── UnsupportedFormatError   another major version of the format
    ├── SignatureError           not signed by the run that reads it (``runtime.checkpoint.errors``)
    ├── EncryptionError          encrypted with a key that is not given (``runtime.checkpoint.errors``)
    └── StateMismatchError       whole, but of another model (``runtime.checkpoint.errors``)
    """


class UnsupportedFormatError(CheckpointError):
    """The checkpoint is in a major version of the format that this Trimtab does not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunks:
    """The pieces of a file that are checked one by one: its header, then pieces of one size."""

    head_bytes: int
    chunk_bytes: int
    sha256: tuple[str, ...]
    """Of each, in hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cipher:
    """How a file is encrypted."""

    algorithm: str
    key: str
    """Name of the project's key."""
    wrapped: str
    """The file's own key, encrypted with that, in hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    """As stored."""
    sha256: str
    """In hexadecimal: over the digests of its chunks, or, before format 3, over the whole file."""
    chunks: Chunks | None = None
    """None before format 3."""
    cipher: Cipher | None = None
    """None if it is plain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """The mark of a key on a manifest."""

    key: str
    """The key's name."""
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One kind of state and how much of it there must be, so that an emptied one is noticed."""

    name: str
    """``parameters``, or the optimizer's own word: ``exp_avg``."""
    file: str
    num_tensors: int
    size_bytes: int
    """Bytes of the tensors, without the file's header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What one checkpoint holds."""

    step: int
    """Optimizer steps that were finished when the state was staged."""
    files: tuple[FileEntry, ...]
    parts: tuple[Part, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What resumes a run besides tensors: lr schedule, seeds, data position, and so on. JSON values."""
    written_by: str = ""
    """Version of Trimtab that wrote the checkpoint; empty when not recorded."""
    version: tuple[int, int] = VERSION
    run: str = ""
    """Which run it is of; empty when not recorded."""
    folder: str = ""
    """In which the files stand, inside the checkpoint; empty: beside the manifest."""
    signature: Signature | None = None
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What the signature is on: the manifest as it was read."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together, without the manifest."""
        return sum(entry.size_bytes for entry in self.files)


def rank_file(file: str, rank: int) -> str:
    """The file of one rank that holds its pieces of what a file would hold.

    >>> rank_file("model.safetensors", 12)
    'model-12.safetensors'
    """
    stem, _, kind = file.partition(".")
    return f"{stem}-{rank}.{kind}"


def whole_file(file: str) -> str:
    """The inverse, also of a file that is of no rank.

    >>> whole_file("model-12.safetensors"), whole_file("model.safetensors")
    ('model.safetensors', 'model.safetensors')
    """
    match = _RANK_FILE.fullmatch(file)
    return f"{match[1]}.{match[2]}" if match else file


def is_plain_file_name(name: str) -> bool:
    """Whether a name can only mean a file inside its own folder, whoever decodes it.

    >>> is_plain_file_name("model.safetensors"), is_plain_file_name("../model"), is_plain_file_name("a%2fb")
    (True, False, False)
    """
    return _FILE_NAME.fullmatch(name) is not None


def stored_path(manifest: Manifest, file: str) -> str:
    """Where a file stands inside its checkpoint."""
    return f"{manifest.folder}/{file}" if manifest.folder else file


def parse_json(text: str, source: str) -> Any:
    """Strict JSON: no NaN or infinity, no key twice, no nesting without end.

    Raises: CheckpointError naming ``source``.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source}: not strict JSON: {error}") from error


def parse_manifest(text: str, source: str) -> Manifest:
    """The manifest that a text describes.

    Args:
        text: Contents of ``manifest.json``.
        source: The name that errors show, such as ``checkpoints/step-20/manifest.json``.

    Raises: UnsupportedFormatError for another major version; CheckpointError for anything that is missing,
        of the wrong type, damaged, or names a file outside the checkpoint.
    """
    document = parse_json(text, source)
    reader = _Reader(source, "the manifest", document)
    if reader.take("format", str) != FORMAT_NAME:
        raise reader.error(f"format is {document['format']!r}, expected {FORMAT_NAME!r}")
    version = _parse_version(reader)
    is_chunked = version[0] >= _CHUNKED
    if reader.take("digest", str) != seal(document)["digest"]:
        raise reader.error("damaged: its digest does not fit what it says")
    files = tuple(_parse_file(entry, is_chunked=is_chunked) for entry in reader.take_items("files"))
    manifest = Manifest(
        step=reader.take_count("step"),
        files=files,
        parts=tuple(
            _parse_part(entry, {file.name for file in files}) for entry in reader.take_items("parts")
        ),
        extra=reader.take("extra", dict),
        written_by=reader.take("written_by", str, default=""),
        version=version,
        run=reader.take("run", str, default=""),
        folder=_parse_folder(reader),
        signature=_parse_signature(reader),
        document=document,
    )
    for kind, names in (
        ("file", [(f.name,) for f in manifest.files]),
        ("part", [(p.name, p.file) for p in manifest.parts]),
    ):
        if len(set(names)) != len(names):
            raise reader.error(f"a {kind} is listed twice: {sorted(names)}")
    return manifest


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON values, sealed, in the order in which they are written."""
    document = {
        "format": FORMAT_NAME,
        "version": "{}.{}".format(*manifest.version),
        "written_by": manifest.written_by,
        "run": manifest.run,
        "step": manifest.step,
        "files": [_as_document(entry) for entry in manifest.files],
        "parts": [_as_document(part) for part in manifest.parts],
        "extra": dict(manifest.extra),
    }
    return seal(document | {"folder": manifest.folder} if manifest.folder else document)


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the digest that makes a flipped bit in it show, whether or not somebody has the key.

    The files' own entries are left out: who writes them fills them in last, and each is checked against its
    file anyway. Fields that this version does not know are covered too. The signature covers all.
    """
    covered = {name: value for name, value in document.items() if name not in _SEALED_OTHERWISE}
    text = json.dumps(covered, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return {**document, "digest": hashlib.sha256(text.encode()).hexdigest()}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError(f"a key stands twice among {[key for key, _ in pairs]}")
    return document


class _Reader:
    """One JSON object, from which fields of a stated type are taken."""

    def __init__(self, source: str, where: str, document: object) -> None:
        self._source = source
        self._where = where
        if not isinstance(document, dict):
            raise self.error(f"expected an object, found {_type_name(document)}")
        self._document = document

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._source}: {self._where}: {message}")

    def take(self, name: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        if name not in self._document and default is not None:
            return default
        if name not in self._document:
            raise self.error(f"{name!r} is missing")
        value = self._document[name]
        if type(value) is not kind:  # not isinstance: True would pass as an integer
            raise self.error(f"{name!r} must be {kind.__name__}, found {_type_name(value)}")
        return value

    def take_count(self, name: str) -> int:
        value = self.take(name, int)
        if value < 0:
            raise self.error(f"{name!r} must not be negative, found {value}")
        return value

    def has(self, name: str) -> bool:
        return name in self._document

    def take_object(self, name: str) -> "_Reader":
        return _Reader(self._source, name, self.take(name, dict))

    def take_items(self, name: str) -> list["_Reader"]:
        items = self.take(name, list)
        return [_Reader(self._source, f"{name}[{i}]", item) for i, item in enumerate(items)]


def _type_name(value: object) -> str:
    return type(value).__name__


def _parse_version(reader: _Reader) -> tuple[int, int]:
    text = reader.take("version", str)
    match = _VERSION.fullmatch(text)
    if match is None:
        raise reader.error(f"version {text!r} is not of the form major.minor")
    major, minor = int(match[1]), int(match[2])
    if not 1 <= major <= FORMAT_MAJOR:
        raise UnsupportedFormatError(
            str(reader.error(f"format version {text}; this Trimtab reads 1.x to {FORMAT_MAJOR}.x"))
            + ("; install a newer Trimtab to use it" if major > FORMAT_MAJOR else "")
        )
    return major, minor


def _parse_file(reader: _Reader, *, is_chunked: bool) -> FileEntry:
    name = reader.take("name", str)
    if not is_plain_file_name(name):
        raise reader.error(f"file name {name!r} could lead outside the checkpoint")
    return FileEntry(
        name=name,
        sha256=_checked_digest(reader.take("sha256", str), name, reader),
        size_bytes=reader.take_count("size_bytes"),
        chunks=_parse_chunks(name, reader.take_object("chunks")) if is_chunked else None,
        cipher=_parse_cipher(reader.take_object("cipher")) if reader.has("cipher") else None,
    )


def _parse_chunks(name: str, reader: _Reader) -> Chunks:
    chunks = Chunks(
        head_bytes=reader.take_count("head_bytes"),
        chunk_bytes=reader.take_count("chunk_bytes"),
        sha256=tuple(_checked_digest(found, name, reader) for found in reader.take("sha256", list)),
    )
    if not chunks.chunk_bytes:
        raise reader.error(f"chunks of {name} have no size")
    return chunks


def _parse_cipher(reader: _Reader) -> Cipher:
    algorithm = reader.take("algorithm", str)
    if algorithm != CIPHER_ALGORITHM:
        raise reader.error(f"algorithm is {algorithm!r}, expected {CIPHER_ALGORITHM!r}")
    wrapped = reader.take("wrapped", str)
    if not _WRAPPED.fullmatch(wrapped):
        raise reader.error(f"wrapped key is not 120 hexadecimal digits: {wrapped!r}")
    return Cipher(algorithm=algorithm, key=reader.take("key", str), wrapped=wrapped)


def _checked_digest(found: object, name: str, reader: _Reader) -> str:
    if not isinstance(found, str) or not _SHA256.fullmatch(found):
        raise reader.error(f"sha256 of {name} is not 64 hexadecimal digits: {found!r}")
    return found


def _parse_folder(reader: _Reader) -> str:
    folder = reader.take("folder", str, default="")
    if folder and not is_plain_file_name(folder):
        raise reader.error(f"folder {folder!r} could lead outside the checkpoint")
    return folder


def _parse_signature(reader: _Reader) -> Signature | None:
    if not reader.has("signature"):
        return None
    found = reader.take_object("signature")
    algorithm = found.take("algorithm", str)
    if algorithm != SIGNATURE_ALGORITHM:
        raise found.error(f"algorithm is {algorithm!r}, expected {SIGNATURE_ALGORITHM!r}")
    return Signature(key=found.take("key", str), value=_checked_digest(found.take("value", str), "it", found))


def _parse_part(reader: _Reader, file_names: set[str]) -> Part:
    part = Part(
        name=reader.take("name", str),
        file=reader.take("file", str),
        num_tensors=reader.take_count("num_tensors"),
        size_bytes=reader.take_count("size_bytes"),
    )
    if part.file not in file_names:
        raise reader.error(f"part {part.name!r} is in {part.file!r}, which is not among the files")
    return part


def _as_document(entry: FileEntry | Part) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if value is not None}
