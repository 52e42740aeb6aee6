"""The keys of a run, and what it believes of a checkpoint: only what bears its mark.

The file ``checkpoint-key.json`` is made when a run starts, beside its folder ``checkpoints`` and never in it: who can put
files into checkpoints, or keeps copies of them, has no key. Nobody but its owner can read it.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.ledger.checkpoint_folders import folder_name
from trimtab.ledger.manifests import MANIFEST_NAME, CheckpointError, FileEntry, Manifest
from trimtab.runtime.checkpoint.cipher import CipherError, about, unwrap
from trimtab.runtime.checkpoint.errors import EncryptionError, SignatureError
from trimtab.runtime.checkpoint.signing import KEY_BYTES, Key, fits
from trimtab.terms import InputError

KEY_FILE = "checkpoint-key.json"
_CHECKPOINTS = "checkpoints"
_HEX_KEY = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Keyring:
    """What a run signs with, and whom it believes.

    Args:
        run: The run's identity: a checkpoint of another is refused, even under the same key.
        signing: Signs manifests.
        sealing: The project's key, with which the keys of files are wrapped; None: files are written plain.
        unsigned: SHA-256 of the manifests that were there, unsigned, when the key was made, by folder. No other is believed
            without a signature.
    """

    run: str
    signing: Key
    sealing: Key | None = None
    unsigned: Mapping[str, str] = field(default_factory=dict)


def find_key(place: str, base: Path) -> Key:
    """The key that a job file names, by ``env:NAME`` or ``file:PATH``.

    Args:
        place: As the job file says.
        base: What a relative path is relative to.

    Raises: InputError if it is not there, or is no key.
    """
    kind, _, name = place.partition(":")
    if kind == "env":
        if (text := os.environ.get(name)) is None:
            raise InputError(f"the environment has no {name}, which holds a key of the run's checkpoints")
        return parse_key(text, f"environment variable {name}")
    path = base / Path(name).expanduser()
    try:
        return parse_key(path.read_text(encoding="utf-8", errors="replace"), str(path))
    except OSError as error:
        raise InputError(f"cannot read the key {path}: {error.strerror}") from error


def open_keyring(run_folder: Path, signing: Key | None = None, sealing: Key | None = None) -> Keyring:
    """The keys of a run that saves; makes them if it has none. Several processes may call it at once.

    Args:
        run_folder: Of the run.
        signing: The key that the job file names; None: the run's own, in its folder.
        sealing: The project's key, if the run encrypts.

    Raises: InputError if the file is there and cannot be understood, or has no key; OSError if it cannot be made.
    """
    found = read_keyring(run_folder, signing, sealing)
    if found is not None:
        return found
    document = {
        "run": secrets.token_hex(16),
        "key": None if signing else secrets.token_hex(KEY_BYTES),
        "unsigned": _manifests_there(run_folder / _CHECKPOINTS),
    }
    _make(run_folder / KEY_FILE, json.dumps(document, indent=1))
    found = read_keyring(run_folder, signing, sealing)  # which may be another process's
    assert found is not None
    return found


def read_keyring(run_folder: Path, signing: Key | None = None, sealing: Key | None = None) -> Keyring | None:
    """The keys of a run, for those who read; None if it never had any, as runs of older releases.

    Raises: InputError if the file cannot be understood, or has no key and none is given.
    """
    path = run_folder / KEY_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read the key of the run's checkpoints, {path}: {error.strerror}") from error
    try:
        document: dict[str, Any] = json.loads(text)
        run, secret, unsigned = document["run"], document["key"], dict(document["unsigned"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a key file: {error!r}; restore it from a copy") from error
    if signing is None and secret is None:
        raise InputError(
            f"{path}: this run signs with a key from elsewhere; name it by fault_tolerance.checkpoint.sign"
        )
    signing = signing or parse_key(secret, str(path))
    return Keyring(run=run, signing=signing, sealing=sealing, unsigned=unsigned)


def parse_key(text: str, source: str) -> Key:
    """The key that a text spells: 64 hexadecimal digits, 32 bytes.

    Args:
        text: Never shown.
        source: Where it stands, for messages.

    Raises: InputError naming ``source``.
    """
    text = text.strip()
    if not _HEX_KEY.fullmatch(text):
        raise InputError(
            f"{source}: {len(text)} characters that are no key; a key is 64 hexadecimal digits, "
            "such as `openssl rand -hex 32` prints"
        )
    return Key(secret=bytes.fromhex(text))


def check_signature(manifest: Manifest, text: str, name: str, keys: Keyring | None) -> str | None:
    """Refuse a manifest that is not the run's own.

    Args:
        manifest: As read.
        text: From which it was read.
        name: Of the checkpoint's folder.
        keys: Of the run; None for a run that has none.

    Returns: A warning about one that is older than signatures; None if it is signed.

    Raises: SignatureError naming the file and the key that is missing or wrong.
    """
    source = f"{name}/{MANIFEST_NAME}"
    signature = manifest.signature
    if signature is None:
        if keys is not None and keys.unsigned.get(name) != hashlib.sha256(text.encode()).hexdigest():
            raise SignatureError(
                f"{source}: not signed, and this run signs its checkpoints: somebody else wrote it, or took the "
                "signature off"
            )
        return (
            f"{name} is not signed: an older Trimtab wrote it. Its files fit its manifest; who wrote that, "
            "nobody can say"
        )
    if keys is None:
        raise SignatureError(
            f"{source}: signed with key {signature.key}, and there is no key to check it with: it belongs into "
            f"{KEY_FILE} in the run's folder"
        )
    if signature.key != keys.signing.id:
        raise SignatureError(
            f"{source}: wrong key: signed with key {signature.key}, the one given is {keys.signing.id}; "
            f"restore {KEY_FILE} in the run's folder, or see fault_tolerance.checkpoint.sign"
        )
    if not fits(manifest.document, signature.value, keys.signing):
        raise SignatureError(f"{source}: forged or damaged: its signature does not fit what it says")
    if manifest.run != keys.run:
        raise SignatureError(f"{source}: of another run: {manifest.run}, this one is {keys.run}")
    return None


def secret_of(manifest: Manifest, entry: FileEntry, name: str, keys: Keyring | None) -> bytes | None:
    """The key of a file that is encrypted; None for a plain one.

    Raises: EncryptionError naming the project's key that is missing or wrong.
    """
    if entry.cipher is None:
        return None
    source = f"{name}/{entry.name}"
    if keys is None or keys.sealing is None:
        raise EncryptionError(
            f"{source}: encrypted with key {entry.cipher.key}, and none is given; "
            "name it by fault_tolerance.checkpoint.encrypt"
        )
    if keys.sealing.id != entry.cipher.key:
        raise EncryptionError(
            f"{source}: wrong key: encrypted with key {entry.cipher.key}, the one given is {keys.sealing.id}; "
            "see fault_tolerance.checkpoint.encrypt"
        )
    try:
        return unwrap(entry.cipher.wrapped, keys.sealing, about(manifest.run, manifest.step, entry.name))
    except CipherError as error:
        raise EncryptionError(
            f"{source}: its key was wrapped for another file, or with another key"
        ) from error


def check_step(manifest: Manifest, name: str) -> None:
    """Refuse a checkpoint under the name of another step.

    Raises: CheckpointError naming both.
    """
    if name.partition(".")[0] != folder_name(manifest.step):
        raise CheckpointError(f"{name}/{MANIFEST_NAME}: it is of step {manifest.step}")


def _manifests_there(root: Path) -> dict[str, str]:
    """The digest of every manifest that is there before the run has a key."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted(os.listdir(root)):
            with contextlib.suppress(OSError):
                found[folder] = hashlib.sha256((root / folder / MANIFEST_NAME).read_bytes()).hexdigest()
    return found


def _make(path: Path, text: str) -> None:
    """Make a file that others find whole or not at all, and only its owner can read; nothing if it is there."""
    unfinished = path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        unfinished.unlink()
