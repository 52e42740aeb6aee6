"""The systems that settings can be read from; a new one is a function and a line in the table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.spec.migration.settings import Migration, MigrationError
from trimtab.terms import nearest_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What an importer reads.

    Args:
        text: A script, a configuration or a command line.
        name: Its name, shown in errors and in the job file.
        devices: Devices to train on, where the settings leave them open; None: as many as they need.
        networks: The fields of each network that ``model.preset`` may name, as ``Network`` of the catalog
            names them; who calls hands them in, since this room knows no catalog.
    """

    text: str
    name: str
    devices: int | None = None
    networks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


Importer = Callable[[Source], Migration]
"""The job that the settings of one system amount to, every one of them with its fate.

Raises: MigrationError if the text cannot be read, or trains what Trimtab cannot.
"""

IMPORTERS: Mapping[str, Importer] = {}


def import_settings(system: str, source: Source) -> Migration:
    """The job that another system's settings amount to.

    Raises: MigrationError for a system that is not in the table, and as the system's own reader.
    """
    if system not in IMPORTERS:
        nearest = nearest_name(system, IMPORTERS)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise MigrationError(f"unknown system {system!r}; there are {', '.join(IMPORTERS)}.{hint}")
    return IMPORTERS[system](source)
