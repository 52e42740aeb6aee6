"""The systems that settings can be read from; a new one is a function and a line in the table. Each is loaded when asked for."""

from collections.abc import Mapping

from trimtab.spec.migration.settings import Migration, MigrationError
from trimtab.spec.migration.sources import Importer, Source
from trimtab.terms import nearest_name


def _read_deepspeed(source: Source) -> Migration:
    from trimtab.spec.migration.deepspeed import read_deepspeed

    return read_deepspeed(source)


def _read_megatron(source: Source) -> Migration:
    from trimtab.spec.migration.megatron import read_megatron

    return read_megatron(source)


def _read_torchtitan(source: Source) -> Migration:
    from trimtab.spec.migration.torchtitan import read_torchtitan

    return read_torchtitan(source)


IMPORTERS: Mapping[str, Importer] = {
    "deepspeed": _read_deepspeed,
    "megatron": _read_megatron,
    "torchtitan": _read_torchtitan,
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
