"""The systems that settings can be read from; a new one is a function and a line in the table."""

from collections.abc import Mapping

from trimtab.spec.migration.deepspeed import read_deepspeed
from trimtab.spec.migration.megatron import read_megatron
from trimtab.spec.migration.settings import MigrationError
from trimtab.spec.migration.sources import Importer
from trimtab.spec.migration.torchtitan import read_torchtitan
from trimtab.terms import nearest_name

IMPORTERS: Mapping[str, Importer] = {
    "deepspeed": read_deepspeed,
    "megatron": read_megatron,
    "torchtitan": read_torchtitan,
}
"""Their readers, by the name that `trimtab import` takes."""


def importer_for(system: str) -> Importer:
    """The reader of a system's settings.

    Raises: MigrationError for a system that is not in the table, with the nearest that is.
    """
    if system not in IMPORTERS:
        nearest = nearest_name(system, IMPORTERS)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise MigrationError(f"unknown system {system!r}; there are {', '.join(IMPORTERS)}.{hint}")
    return IMPORTERS[system]
