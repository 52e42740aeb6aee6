"""How a run is told from outside to go on with another number of devices: a file in its folder, taken by whoever runs it."""

import json
import os
from pathlib import Path

_NAME = "wanted-devices.json"


def want_devices(folder: Path, devices: int) -> None:
    """Leave the wish in a run's folder; a newer one replaces it."""
    unfinished = folder / f"{_NAME}.tmp-{os.getpid()}"
    unfinished.write_text(json.dumps({"devices": devices}) + "\n", encoding="utf-8")
    unfinished.replace(folder / _NAME)


def take_wanted_devices(folder: Path) -> int | None:
    """The wish, which is gone from the folder then; None if there is none."""
    path = folder / _NAME
    try:
        wanted = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    path.unlink()
    return int(wanted["devices"])
