"""The weights of a checkpoint as one safetensors file that others read. Without torch."""

import os
from pathlib import Path

import numpy as np

from trimtab.ledger.manifests import PARAMETERS
from trimtab.runtime.checkpoint.contents import Contents, open_contents
from trimtab.runtime.checkpoint.durable import sync_folder, write_all
from trimtab.runtime.checkpoint.keyring import Keyring
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.pieces import whole_box
from trimtab.runtime.checkpoint.tensorfile import header_of


def export_model(folder: Path | ObjectPath, target: Path, keys: Keyring | None) -> None:
    """Write the weights to a file of the user's, replacing it in one act and only if all of them are whole.

    One tensor is in memory at a time, whether it stands in one file or in pieces of several ranks.

    Args:
        folder: Of the checkpoint.
        target: The file.
        keys: Of the run; None for a run that has none.

    Raises: CheckpointError if one of the checkpoint's files is damaged, or not the run's; OSError if the target cannot be written.
    """
    unfinished = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        with open_contents(folder, keys) as contents:
            _write(contents, unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(target.parent)


def _write(contents: Contents, target: Path) -> None:
    shapes = contents.shapes[PARAMETERS]
    header, _ = header_of(shapes.items())
    with target.open("xb", buffering=0) as file:
        write_all(file.fileno(), memoryview(header))
        for name, shape in shapes.items():
            values = np.empty(shape, dtype="<f4")
            contents.copy(PARAMETERS, name, whole_box(shape), values)
            write_all(file.fileno(), values.data.cast("B"))
        os.fsync(file.fileno())
