"""A job as a launch of Megatron-LM."""

import shlex
from collections.abc import Iterable, Iterator

from trimtab.spec.migration.megatron.statements import write_statements
from trimtab.spec.migration.megatron.written_keys import write_keys
from trimtab.spec.migration.megatron.written_network import write_network
from trimtab.spec.migration.settings import Export
from trimtab.spec.migration.sheets import Sheet
from trimtab.spec.migration.targets import Exportable
from trimtab.spec.migration.torchrun import launcher_words
from trimtab.spec.resolved import is_secret

PROGRAM = "pretrain_gpt.py"

_GATHERED = "--recompute-modules"
"""A flag that takes several values; given twice, only the last would count."""


def write_megatron(exportable: Exportable) -> Export:
    """The job's settings as flags behind ``torchrun … pretrain_gpt.py``."""
    sheet = Sheet()
    write_network(sheet, exportable)
    write_statements(sheet, exportable.loaded, int(exportable.network.get("layers", 0)))
    write_keys(sheet, exportable)
    launcher, warning = launcher_words(exportable)
    sheet.warnings += [warning] if warning else []
    return Export(
        target="Megatron-LM",
        text="\n".join(_lines(sheet, launcher, exportable)) + "\n",
        settings=tuple(sheet.settings),
        warnings=tuple(sheet.warnings),
    )


def _lines(sheet: Sheet, launcher: Iterable[str], exportable: Exportable) -> Iterator[str]:
    """A script: the variables that are exported, then one flag a line."""
    yield "#!/bin/bash"
    yield f"# Written by `trimtab export megatron {exportable.name}`."
    for name, value in exportable.loaded.job.orchestration.environment.assigned.items():
        yield (
            f"# export {name}=: a secret is not written"
            if is_secret(name)
            else f"export {name}={shlex.quote(value)}"
        )
    words = [f"torchrun {' '.join(launcher)}", PROGRAM, *_gathered(sheet.flags)]
    yield " \\\n    ".join(words)


def _gathered(flags: Iterable[str]) -> list[str]:
    """The flags, the values of one that takes several behind one name."""
    found = list(flags)
    values = [flag.removeprefix(f"{_GATHERED} ") for flag in found if flag.startswith(f"{_GATHERED} ")]
    others = [flag for flag in found if not flag.startswith(f"{_GATHERED} ")]
    return [*others, f"{_GATHERED} {' '.join(values)}"] if values else others
