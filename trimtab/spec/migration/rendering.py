"""Migrations as people read them: a commented job file, a table of what became of each setting, JSON."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.spec.migration.settings import Export, Fate, Migration, Setting
from trimtab.spec.resolved import yaml_lines

TABLE_WIDTH = 110
"""Columns of a table unless told otherwise."""

_PARALLELISM = "parallelism"
_AFTER_PARALLELISM = ("fault_tolerance",)

_HEADINGS = {
    Fate.CARRIED: "carried",
    Fate.CHANGED: "changed",
    Fate.IMPOSSIBLE: "no equivalent",
    Fate.IRRELEVANT: "not needed",
}


def render_job(migration: Migration) -> str:
    """The job file: behind each key and formula the settings that it came from, at the top what has no equivalent.

    Reading it with ``load_job`` gives the job of the migration.
    """
    lines = [*_heading(migration), *yaml_lines(_with_formulas(migration), _comments(migration))]
    return "\n".join(lines) + "\n"


def render_table(migration: Migration | Export, *, width: int = TABLE_WIDTH) -> str:
    """What became of each setting, grouped by fate, then the counts; never wider than ``width`` columns
    unless a single word is.
    """
    lines: list[str] = []
    for fate in Fate:
        found = [setting for setting in migration.settings if setting.fate is fate]
        if found:
            lines += [f"{_HEADINGS[fate]} ({len(found)})", *_rows(found, width), ""]
    lines += [f"warning: {warning}" for warning in migration.warnings]
    lines.append(summary(migration))
    return "\n".join(lines) + "\n"


def summary(migration: Migration | Export) -> str:
    """The counts in one line: ``12 carried, 3 changed, 1 no equivalent, 4 not needed``."""
    counts = ((migration.count(fate), _HEADINGS[fate]) for fate in Fate)
    return ", ".join(f"{count} {heading}" for count, heading in counts)


def settings_document(migration: Migration | Export) -> dict[str, Any]:
    """The table and the warnings as plain values for JSON."""
    return {
        "settings": [
            {
                "flag": setting.flag,
                "value": setting.value,
                "fate": setting.fate.value,
                "becomes": setting.becomes,
                "reason": setting.reason,
            }
            for setting in migration.settings
        ],
        "counts": {fate.value: migration.count(fate) for fate in Fate},
        "warnings": list(migration.warnings),
    }


def _heading(migration: Migration) -> Iterator[str]:
    yield f"# From {migration.origin}: {summary(migration)}."
    lost = [setting for setting in migration.settings if setting.fate is Fate.IMPOSSIBLE]
    if lost:
        yield "# Without an equivalent here:"
    for setting in lost:
        yield from _comment(f"  {setting.written}: {setting.reason}", indent="    ")
    for warning in migration.warnings:
        yield from _comment(f"Note: {warning}", indent="  ")


def _comment(text: str, *, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(text, TABLE_WIDTH - 2, subsequent_indent=indent, break_long_words=False):
        yield f"# {line}"


def _with_formulas(migration: Migration) -> dict[str, Any]:
    """The job with its formulas in their place: after the cards that say what runs, before what may fail."""
    if not migration.formulas:
        return dict(migration.job)
    text = _commented_formulas(migration)
    before = {key: value for key, value in migration.job.items() if key not in _AFTER_PARALLELISM}
    after = {key: value for key, value in migration.job.items() if key in _AFTER_PARALLELISM}
    return {**before, _PARALLELISM: text, **after}


def _commented_formulas(migration: Migration) -> str:
    origins = _origins(migration)
    lines = migration.formulas.rstrip("\n").splitlines()
    pad = max((len(line) for line in lines if line in origins), default=0)
    return "".join(
        f"{line:<{pad}}  -- {origins[line]}\n" if line in origins else f"{line}\n" for line in lines
    )


def _comments(migration: Migration) -> dict[str, str]:
    return {target: said for target, said in _origins(migration).items() if " " not in target}


def _origins(migration: Migration) -> Mapping[str, str]:
    """For each key and formula the settings that it came from, ``--lr 6e-5``, or the note on it."""
    origins: dict[str, str] = {}
    for setting in migration.settings:
        for target in setting.targets:
            origins[target] = (
                f"{origins[target]}, {setting.written}" if target in origins else setting.written
            )
    return {target: " ".join(said.split()) for target, said in {**migration.notes, **origins}.items()}


def _rows(settings: list[Setting], width: int) -> Iterator[str]:
    """One line a setting where it fits: what it was, what it became, why; the rest is wrapped under it."""
    limit = max(20, width * 2 // 5)
    left = max((len(setting.written) for setting in settings if len(setting.written) <= limit), default=limit)
    for setting in settings:
        said = " ".join(part for part in (setting.becomes, _bracketed(setting)) if part)
        first = f"  {setting.written:<{left}}  "
        lines = textwrap.wrap(said, max(20, width - left - 4), break_long_words=False, break_on_hyphens=False)
        if len(setting.written) > left:
            yield first.rstrip()
            first = " " * (left + 4)
        yield f"{first}{lines[0] if lines else ''}".rstrip()
        yield from (" " * (left + 4) + line for line in lines[1:])


def _bracketed(setting: Setting) -> str:
    if not setting.reason:
        return ""
    return f"({setting.reason})" if setting.becomes else setting.reason
