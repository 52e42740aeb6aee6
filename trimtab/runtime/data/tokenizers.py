"""From text to token ids.

Three choices: ``bytes``, a ``tokenizer.json`` of the tokenizers library, and byte-level BPE trained on the
training documents. Each document is followed by the *boundary* token in the streams made from it. The library is
imported only when text has to be encoded: a run that finds its tokens in the cache never loads it.
"""

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.runtime.data.errors import DataError, DataWarning

Tokens: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Token ids, one dimension."""

NUM_BYTE_TOKENS = 256
_TRAINED_BOUNDARY = "<|endoftext|>"
# How published tokenizers call the token at the end of a document, most specific first.
_BOUNDARIES = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")


def token_type(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds ids below ``vocab_size``: uint8, uint16 or uint32."""
    return np.min_scalar_type(vocab_size - 1)


class Tokenizer(Protocol):
    """Turns text into ids below ``vocab_size``; a pure function of the text, safe to call from any thread."""

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""

    @property
    def boundary(self) -> int:
        """The id that follows each document."""

    def encode(self, text: str) -> Tokens:
        """Ids of a text, without the boundary, in ``token_type(vocab_size)``."""

    def to_json(self) -> str | None:
        """The tokenizers library's description, or None for bytes."""


class TokenizerChoice(Protocol):
    """What the job file chose; becomes a tokenizer once the training texts are known."""

    @property
    def digest(self) -> str:
        """Equal digests, and equal training texts, give equal tokens."""

    def prepare(self, training_texts: Iterable[str]) -> Tokenizer:
        """Load or train. Reads ``training_texts`` only if it must train.

        Raises: DataError if a file is not a tokenizer.
        """


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """Ids are the bytes of the text in UTF-8; the boundary is byte 0 (NUL), which text does not hold.

    A text that holds NUL all the same is encoded as it is, and reads like two documents.
    It is its own choice: there is nothing to prepare.
    """

    vocab_size: int = NUM_BYTE_TOKENS
    boundary: int = 0
    digest: str = "bytes"

    def encode(self, text: str) -> Tokens:
        """Bytes of the text."""
        return np.frombuffer(text.encode(), np.uint8)

    def to_json(self) -> None:
        """None: bytes need no description."""

    def prepare(self, training_texts: Iterable[str]) -> Tokenizer:
        """Itself."""
        del training_texts
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChoice:
    """A ``tokenizer.json``.

    Args:
        path: For messages.
        content: The file's text.
    """

    path: Path
    content: str

    @property
    def digest(self) -> str:
        """Hash of the file's text."""
        return "file:" + hashlib.sha256(self.content.encode()).hexdigest()

    def prepare(self, training_texts: Iterable[str]) -> Tokenizer:
        """Load it; truncation and padding that the file may ask for are switched off."""
        del training_texts
        return _load(self.content, self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class BpeChoice:
    """Byte-level BPE, trained here.

    Args:
        vocab_size: Ids including all 256 bytes and the boundary.
    """

    vocab_size: int

    @property
    def digest(self) -> str:
        """Names the size; the texts it is trained on are part of the cache's key anyway."""
        return f"bpe:{self.vocab_size}"

    def prepare(self, training_texts: Iterable[str]) -> Tokenizer:
        """Train. The same texts in the same order give the same merges."""
        return _train(self.vocab_size, training_texts)


def choose_tokenizer(choice: str | Mapping[str, Any]) -> TokenizerChoice:
    """Read ``data.tokenizer``: ``bytes``, a path, or ``{bpe: {vocab: N}}``.

    Raises: DataError if it is none of these, the file is missing, or N is below 257.
    """
    if choice == "bytes":
        return ByteTokenizer()
    if isinstance(choice, str):
        return _read_file(Path(choice))
    vocab_size = dict(choice.get("bpe") or {}).get("vocab") if set(choice) == {"bpe"} else None
    if not isinstance(vocab_size, int):
        raise DataError(
            f"data.tokenizer: {choice!r} is not a tokenizer; write bytes, a path to tokenizer.json, or {{bpe: {{vocab: 4096}}}}"
        )
    if vocab_size <= NUM_BYTE_TOKENS:
        raise DataError(
            f"data.tokenizer: bpe needs a vocab of at least {NUM_BYTE_TOKENS + 1} (every byte and the boundary), not {vocab_size}"
        )
    return BpeChoice(vocab_size=vocab_size)


def _read_file(path: Path) -> FileChoice:
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return FileChoice(path=file, content=file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"data.tokenizer: {str(file)!r} cannot be read: {error.strerror}; write bytes, a path to tokenizer.json, "
            "or {bpe: {vocab: 4096}}"
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"data.tokenizer: {file} is not text; a tokenizer.json is needed") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class _LibraryTokenizer:
    library: Any
    vocab_size: int
    boundary: int

    def encode(self, text: str) -> Tokens:
        """Ids of the text; what looks like a special token in it is encoded as plain text."""
        return np.array(self.library.encode(text, add_special_tokens=False).ids, token_type(self.vocab_size))

    def to_json(self) -> str:
        return str(self.library.to_str())


def _load(content: str, path: Path) -> _LibraryTokenizer:
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for bad files
        raise DataError(f"data.tokenizer: {path} is not a tokenizer.json: {error}") from None
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    ids = library.get_vocab(with_added_tokens=True)
    boundary = _find_boundary(library, path)
    return _LibraryTokenizer(library=library, vocab_size=max(ids.values()) + 1, boundary=boundary)


def _find_boundary(library: Any, path: Path) -> int:
    special = {
        token.content: int(number)
        for number, token in library.get_added_tokens_decoder().items()
        if token.special
    }
    for name in _BOUNDARIES:
        if name in special:
            return special[name]
    if len(special) == 1:
        return next(iter(special.values()))
    found = ", ".join(special) or "none"
    raise DataError(
        f"data.tokenizer: {path} marks no end of a document: its special tokens are {found}, and one of "
        f"{' '.join(_BOUNDARIES)} is needed"
    )


def _train(vocab_size: int, texts: Iterable[str]) -> _LibraryTokenizer:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_TRAINED_BOUNDARY],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    library.encode_special_tokens = True
    num_learned = library.get_vocab_size()
    if num_learned < vocab_size:
        message = f"the training text holds only {num_learned} of the {vocab_size} tokens asked for; the rest stay unused"
        warnings.warn(message, DataWarning, stacklevel=2)
    return _LibraryTokenizer(
        library=library, vocab_size=vocab_size, boundary=library.get_vocab()[_TRAINED_BOUNDARY]
    )
