"""What do another system's settings mean here, and ours there?"""

from trimtab.spec.migration.exports import EXPORTERS, exporter_for
from trimtab.spec.migration.imports import IMPORTERS, importer_for
from trimtab.spec.migration.rendering import render_job, render_table, settings_document, summary
from trimtab.spec.migration.settings import Export, Fate, Migration, MigrationError, Setting
from trimtab.spec.migration.sources import Importer, Source
from trimtab.spec.migration.targets import Exportable, Exporter

__all__ = [
    "EXPORTERS",
    "IMPORTERS",
    "Export",
    "Exportable",
    "Exporter",
    "Fate",
    "Importer",
    "Migration",
    "MigrationError",
    "Setting",
    "Source",
    "exporter_for",
    "importer_for",
    "render_job",
    "render_table",
    "settings_document",
    "summary",
]
