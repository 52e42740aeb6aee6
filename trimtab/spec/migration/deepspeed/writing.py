"""A job as a DeepSpeed configuration."""

from trimtab.spec.migration.deepspeed.facts import facts_of
from trimtab.spec.migration.deepspeed.written import Written
from trimtab.spec.migration.deepspeed.written_keys import write_keys
from trimtab.spec.migration.deepspeed.written_statements import write_statements
from trimtab.spec.migration.settings import Export
from trimtab.spec.migration.targets import Exportable


def write_deepspeed(exportable: Exportable) -> Export:
    """The JSON that a script hands to ``deepspeed.initialize``, and what it leaves to that script."""
    written, facts = Written(), facts_of(exportable.loaded)
    write_keys(written, exportable, facts)
    write_statements(written, exportable.loaded, facts)
    return Export(
        target="DeepSpeed",
        text=written.text(),
        settings=tuple(written.sheet.settings),
        warnings=tuple(written.sheet.warnings),
    )
