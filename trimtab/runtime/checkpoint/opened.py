"""A checkpoint that is being read: its manifest believed, its files ready to be asked. Without torch."""

from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from trimtab.ledger.manifests import MANIFEST_NAME, FileEntry, parse_manifest, stored_path
from trimtab.runtime.checkpoint.checked import CheckedFile, File, Stored
from trimtab.runtime.checkpoint.cipher import about, opener
from trimtab.runtime.checkpoint.keyring import Keyring, check_signature, check_step, secret_of
from trimtab.runtime.checkpoint.local_folder import LocalFolder
from trimtab.runtime.checkpoint.object_folder import ObjectFolder
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.sealed import SealedFile


class StoredFolder(Protocol):
    """Where the manifest and the files of a checkpoint stand. Making one raises CheckpointError if it is not there."""

    def text(self, path: str, source: str) -> str:
        """The text of a file.

        Raises: CheckpointError naming ``source``.
        """

    def stored(self, path: str, source: str, size_bytes: int) -> Stored:
        """The bytes of a file.

        Raises: CheckpointError naming ``source``, if it is not there or has another size.
        """

    def close(self) -> None:
        """Let it go. Files that were asked for stay readable."""


class OpenCheckpoint:
    """A checkpoint that is being read: on disk it is not pruned meanwhile, and no link leads out of it.

    A context manager.

    Args:
        folder: Of the checkpoint.
        keys: Of the run that it must be of; None for a run that has none.
        is_opened: Whether what is encrypted will be read; False for those who read the manifest alone.

    Raises: CheckpointError naming what is missing or wrong; SignatureError if this run has not signed it;
        EncryptionError if the key that opens it is missing.
    """

    def __init__(self, folder: Path | ObjectPath, keys: Keyring | None, *, is_opened: bool = True) -> None:
        self.name = folder.name
        self._folder: StoredFolder = LocalFolder(folder) if isinstance(folder, Path) else ObjectFolder(folder)
        source = f"{self.name}/{MANIFEST_NAME}"
        try:
            text = self._folder.text(MANIFEST_NAME, source)
            self.manifest = parse_manifest(text, source)
            check_step(self.manifest, self.name)
            warning = check_signature(self.manifest, text, self.name, keys)
            self._secrets = {
                entry.name: secret_of(self.manifest, entry, self.name, keys)
                for entry in (self.manifest.files if is_opened else ())
            }
        except BaseException:
            self._folder.close()
            raise
        self.warnings = (warning,) if warning else ()
        """What whoever uses it should be told."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let it go. Files that were opened stay open."""
        self._folder.close()

    def source(self, entry: FileEntry) -> str:
        """The name of a file in messages."""
        return f"{self.name}/{entry.name}"

    def file(self, entry: FileEntry) -> File:
        """A file, whose bytes are checked, and decrypted, as they are read.

        Raises: CheckpointError naming it, if it is not there or has another size than the manifest states.
        """
        source = self.source(entry)
        found = self._folder.stored(stored_path(self.manifest, entry.name), source, entry.size_bytes)
        stored = CheckedFile(entry, source, found)
        if (secret := self._secrets[entry.name]) is None:
            return stored
        bound = about(self.manifest.run, self.manifest.step, entry.name)
        return SealedFile(entry, source, stored, opener(secret, bound))
