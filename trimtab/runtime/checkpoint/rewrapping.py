"""A new project key for what an old one encrypted: the keys of files are wrapped anew, the files stay as they are."""

import json
import os
from pathlib import Path

from trimtab.ledger.manifests import MANIFEST_NAME, CheckpointError
from trimtab.runtime.checkpoint.cipher import about, wrap
from trimtab.runtime.checkpoint.durable import sync_folder, write_all
from trimtab.runtime.checkpoint.keyring import Keyring, secret_of
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.opened import OpenCheckpoint
from trimtab.runtime.checkpoint.signing import Key, signed


def rewrap(folder: Path | ObjectPath, keys: Keyring, new: Key) -> int:
    """Have a checkpoint opened by another project key from now on; the old one opens it no more.

    The manifest is replaced in one act, signed again. May be called again after it was cut short.

    Args:
        folder: Of the checkpoint; nobody prunes it meanwhile.
        keys: Of the run, with the old project key.
        new: The new one.

    Returns: How many files are opened by the new key that were not before.

    Raises: SignatureError if the run has not signed it; EncryptionError naming the key that a file is encrypted with, if it
        is neither; OSError if the system refuses.
    """
    with OpenCheckpoint(folder, keys, is_opened=False) as opened:
        manifest = opened.manifest
        if manifest.signature is None:
            raise CheckpointError(f"{folder.name}/{MANIFEST_NAME}: not signed, so nothing in it is encrypted")
        document = json.loads(json.dumps(manifest.document))
        num_changed = 0
        for entry, written in zip(manifest.files, document["files"], strict=True):
            if entry.cipher is None or entry.cipher.key == new.id:
                continue
            secret = secret_of(manifest, entry, folder.name, keys)
            assert secret is not None, "the entry has a cipher"
            bound = about(manifest.run, manifest.step, entry.name)
            written["cipher"] |= {"key": new.id, "wrapped": wrap(secret, new, bound)}
            num_changed += 1
    if num_changed:
        _replace(folder, json.dumps(signed(document, keys.signing), indent=1))
    return num_changed


def _replace(folder: Path | ObjectPath, text: str) -> None:
    if isinstance(folder, ObjectPath):
        (folder / MANIFEST_NAME).write(text.encode())
        return
    unfinished = folder / f"{MANIFEST_NAME}.tmp-{os.getpid()}"
    try:
        with unfinished.open("wb", buffering=0) as file:
            write_all(file.fileno(), memoryview(text.encode()))
            os.fsync(file.fileno())
        os.replace(unfinished, folder / MANIFEST_NAME)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(folder)
