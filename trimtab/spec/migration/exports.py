"""The systems that a job can be written for; a new one is a function and a line in the table."""

from collections.abc import Callable, Mapping

from trimtab.spec.job_files import LoadedJob
from trimtab.spec.migration.settings import Export, MigrationError
from trimtab.terms import nearest_name

Exporter = Callable[[LoadedJob], Export]
"""Writes a job's settings for another system; every key and formula that says something gets a fate."""

EXPORTERS: Mapping[str, Exporter] = {}


def export_job(target: str, job: LoadedJob) -> Export:
    """A job's settings as another system writes them.

    Raises: MigrationError for a system that is not in the table, or a job that it cannot express at all.
    """
    if target not in EXPORTERS:
        nearest = nearest_name(target, EXPORTERS)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise MigrationError(f"unknown system {target!r}; there are {', '.join(EXPORTERS)}.{hint}")
    return EXPORTERS[target](job)
