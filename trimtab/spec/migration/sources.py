"""What an importer reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.spec.migration.settings import Migration


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What an importer reads.

    Args:
        text: A script, a configuration or a command line.
        name: Its name, shown in errors and in the job file.
        flags: Further settings in the words of a command line, which count before those of the text.
        devices: Devices to train on, where the settings leave them open; None: as many as they need.
        networks: The fields of each network that ``model.preset`` may name, as ``Network`` of the catalog
            names them; who calls hands them in, since this room knows no catalog.
    """

    text: str
    name: str
    flags: tuple[str, ...] = ()
    devices: int | None = None
    networks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


Importer = Callable[[Source], Migration]
"""The job that the settings of one system amount to, every one of them with its fate.

Raises: MigrationError if the text cannot be read, or trains what Trimtab cannot.
"""
