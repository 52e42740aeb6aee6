"""The systems that a job can be written for; a new one is a function and a line in the table."""

from collections.abc import Mapping

from trimtab.spec.migration.megatron import write_megatron
from trimtab.spec.migration.settings import Export, MigrationError
from trimtab.spec.migration.targets import Exportable, Exporter
from trimtab.spec.migration.torchrun import write_torchrun
from trimtab.terms import nearest_name

EXPORTERS: Mapping[str, Exporter] = {"megatron": write_megatron, "torchrun": write_torchrun}
"""Their writers, by the name that `trimtab export` takes."""


def export_job(target: str, exportable: Exportable) -> Export:
    """A job's settings as another system writes them.

    Raises: MigrationError for a system that is not in the table, or a job that it cannot express at all.
    """
    if target not in EXPORTERS:
        nearest = nearest_name(target, EXPORTERS)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise MigrationError(f"unknown system {target!r}; there are {', '.join(EXPORTERS)}.{hint}")
    return EXPORTERS[target](exportable)
