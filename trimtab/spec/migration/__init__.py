"""What do another system's settings mean here, and ours there?"""

from trimtab.spec.migration.exports import EXPORTERS, export_job
from trimtab.spec.migration.imports import IMPORTERS, import_settings
from trimtab.spec.migration.rendering import render_job, render_table, settings_document, summary
from trimtab.spec.migration.settings import Export, Fate, Migration, MigrationError, Setting
from trimtab.spec.migration.sources import Source
from trimtab.spec.migration.targets import Exportable

__all__ = [
    "EXPORTERS",
    "IMPORTERS",
    "Export",
    "Exportable",
    "Fate",
    "Migration",
    "MigrationError",
    "Setting",
    "Source",
    "export_job",
    "import_settings",
    "render_job",
    "render_table",
    "settings_document",
    "summary",
]
