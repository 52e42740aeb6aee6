"""What an exporter writes from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.spec.job_files import LoadedJob
from trimtab.spec.migration.settings import Export


@dataclass(frozen=True, kw_only=True, slots=True)
class Exportable:
    """A job with what this room cannot know of it.

    Args:
        loaded: The job.
        name: Of its file, as the user wrote it.
        network: The fields of its network, as ``Network`` of the catalog names them; empty for a class of the
            user's own.
        devices_per_node: Devices of one machine; None if nobody says.
    """

    loaded: LoadedJob
    name: str
    network: Mapping[str, Any] = field(default_factory=dict)
    devices_per_node: int | None = None


Exporter = Callable[[Exportable], Export]
"""Writes a job's settings for another system; every key and formula that says something gets a fate.

Raises: MigrationError if the system cannot express the job at all.
"""
