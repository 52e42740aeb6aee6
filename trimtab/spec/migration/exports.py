"""The systems that a job can be written for; a new one is a function and a line in the table. Each is loaded when asked for."""

from collections.abc import Mapping

from trimtab.spec.migration.settings import Export, MigrationError
from trimtab.spec.migration.targets import Exportable, Exporter
from trimtab.spec.migration.torchrun import write_torchrun
from trimtab.terms import nearest_name


def _write_deepspeed(exportable: Exportable) -> Export:
    from trimtab.spec.migration.deepspeed import write_deepspeed

    return write_deepspeed(exportable)


def _write_megatron(exportable: Exportable) -> Export:
    from trimtab.spec.migration.megatron import write_megatron

    return write_megatron(exportable)


EXPORTERS: Mapping[str, Exporter] = {
    "deepspeed": _write_deepspeed,
    "megatron": _write_megatron,
    "torchrun": write_torchrun,
}
"""Their writers, by the name that `trimtab export` takes."""


def exporter_for(system: str) -> Exporter:
    """The writer of a system's settings.

    Raises: MigrationError for a system that is not in the table, with the nearest that is.
    """
    if system not in EXPORTERS:
        nearest = nearest_name(system, EXPORTERS)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise MigrationError(f"unknown system {system!r}; there are {', '.join(EXPORTERS)}.{hint}")
    return EXPORTERS[system]
