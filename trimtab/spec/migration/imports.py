"""The systems that settings can be read from; a new one is a function and a line in the table."""

from collections.abc import Mapping

from trimtab.spec.migration.megatron import read_megatron
from trimtab.spec.migration.settings import Migration, MigrationError
from trimtab.spec.migration.sources import Importer, Source
from trimtab.terms import nearest_name

IMPORTERS: Mapping[str, Importer] = {"megatron": read_megatron}
"""Their readers, by the name that `trimtab import` takes."""


def import_settings(system: str, source: Source) -> Migration:
    """The job that another system's settings amount to.

    Raises: MigrationError for a system that is not in the table, and as the system's own reader.
    """
    if system not in IMPORTERS:
        nearest = nearest_name(system, IMPORTERS)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise MigrationError(f"unknown system {system!r}; there are {', '.join(IMPORTERS)}.{hint}")
    return IMPORTERS[system](source)
