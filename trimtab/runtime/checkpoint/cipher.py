"""Encryption of a checkpoint's files: AES-256-GCM, chunk by chunk, with a key for each file that a project's key wraps.

A file's key is made for one save of one file and never used again, so the number of the chunk makes a nonce that does not
repeat. The nonce also says whether the chunk is the last: a chunk that is moved, left out or cut off does not decrypt. The
run, the step and the file's name are bound to every chunk and to the wrapped key.

Loads the library ``cryptography`` when it is first used: the writer of a run that does not encrypt starts without.
"""

import hmac
import os
from collections.abc import Callable
from typing import Any

from trimtab.runtime.checkpoint.signing import Key, canonical

ALGORITHM = "aes-256-gcm"
TAG_BYTES = 16
"""That a chunk grows by."""
_NONCE_BYTES = 12
_SECRET_BYTES = 32
_WRAPPING = b"trimtab-checkpoint wrapping 1"


class CipherError(Exception):
    """What is stored was not made with this key, or not for this place."""


def about(run: str, step: int, file: str) -> bytes:
    """What is bound to a file's key and to each of its chunks: which file of which save it is."""
    return canonical({"run": run, "step": step, "file": file})


def new_secret() -> bytes:
    """A key for one file of one save."""
    return os.urandom(_SECRET_BYTES)


def wrap(secret: bytes, key: Key, bound: bytes) -> str:
    """A file's key as it may stand in a manifest, in hexadecimal."""
    nonce = os.urandom(_NONCE_BYTES)
    sealed: bytes = _aead(_wrapping(key)).encrypt(nonce, secret, bound)
    return (nonce + sealed).hex()


def unwrap(wrapped: str, key: Key, bound: bytes) -> bytes:
    """The inverse.

    Raises: CipherError if it was wrapped with another key, or for another file.
    """
    contents = bytes.fromhex(wrapped)
    return _opened(_wrapping(key), contents[:_NONCE_BYTES], memoryview(contents)[_NONCE_BYTES:], bound)


def sealer(secret: bytes, bound: bytes) -> Callable[[int, bool, memoryview], bytes]:
    """Encrypts chunks, given the number of each, whether it is the last, and its bytes."""
    aead = _aead(secret)

    def seal(number: int, is_last: bool, plain: memoryview) -> bytes:
        sealed: bytes = aead.encrypt(_nonce(number, is_last), plain, bound)
        return sealed

    return seal


def opener(secret: bytes, bound: bytes) -> Callable[[int, bool, memoryview], bytes]:
    """The inverse, which raises CipherError for what is not the chunk of that number."""

    def open_chunk(number: int, is_last: bool, stored: memoryview) -> bytes:
        return _opened(secret, _nonce(number, is_last), stored, bound)

    return open_chunk


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(8, "big") + bytes(3) + bytes([is_last])


def _wrapping(key: Key) -> bytes:
    """Another secret than the one that signs, though a project has one key for both."""
    return hmac.digest(key.secret, _WRAPPING, "sha256")


def _aead(secret: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(secret)


def _opened(secret: bytes, nonce: bytes, stored: memoryview, bound: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        opened: bytes = _aead(secret).decrypt(nonce, stored, bound)
    except (InvalidTag, ValueError) as error:
        raise CipherError("it does not decrypt") from error
    return opened
