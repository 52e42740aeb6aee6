"""The systems that settings can be read from; a new one is a function and a line in the table."""

from collections.abc import Mapping
from typing import Protocol

from trimtab.spec.migration.settings import Migration, MigrationError
from trimtab.terms import nearest_name


class Importer(Protocol):
    """Reads the settings of one system."""

    def __call__(self, text: str, *, source: str, devices: int | None) -> Migration:
        """The job that the settings amount to, every one of them with its fate.

        Args:
            text: A script, a configuration or a command line.
            source: Its name, shown in errors and in the job file.
            devices: Devices to train on, where the settings leave them open; None: as many as they need.

        Raises: MigrationError if the text cannot be read, or trains what Trimtab cannot.
        """


IMPORTERS: Mapping[str, Importer] = {}


def import_settings(system: str, text: str, *, source: str, devices: int | None = None) -> Migration:
    """The job that another system's settings amount to.

    Raises: MigrationError for a system that is not in the table, and as the system's own reader.
    """
    if system not in IMPORTERS:
        nearest = nearest_name(system, IMPORTERS)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise MigrationError(f"unknown system {system!r}; there are {', '.join(IMPORTERS)}.{hint}")
    return IMPORTERS[system](text, source=source, devices=devices)
