"""Migrations as people read them: a commented job file, a table of what became of each setting, JSON."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimtab.spec.migration.settings import Export, Fate, Migration, Setting
from trimtab.spec.resolved import yaml_lines

TABLE_WIDTH = 110
"""Columns of a table unless told otherwise."""

_LONGEST = 60
"""Characters of a value, or of a list of settings, that are shown; the rest stands in the JSON form."""

_FORMULA_WIDTH = 60
"""Columns of a formula before its comment, where it is shorter."""

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
            rows = _rows(found, width) if found[0].becomes else _paragraphs(found, width)
            lines += [f"{_HEADINGS[fate]} ({len(found)})", *rows, ""]
    for warning in migration.warnings:
        lines += _wrapped(f"warning: {warning}", width, indent="  ")
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
    yield from _comment(f"From {migration.origin}: {summary(migration)}.", indent="  ")
    lost = [setting for setting in migration.settings if setting.fate is Fate.IMPOSSIBLE]
    if lost:
        yield "# Without an equivalent here:"
    for reason, names in _by_reason(lost).items():
        yield from _comment(f"  {', '.join(names)}: {reason}", indent="    ")
    for warning in migration.warnings:
        yield from _comment(f"Note: {warning}", indent="  ")


def _comment(text: str, *, indent: str) -> Iterator[str]:
    for line in _wrapped(text, TABLE_WIDTH - 2, indent=indent):
        yield f"# {line}"


def _by_reason(settings: Sequence[Setting]) -> Mapping[str, list[str]]:
    """Settings that met their fate for the same reason, as they were written."""
    groups: dict[str, list[str]] = {}
    for setting in settings:
        groups.setdefault(setting.reason, []).append(_short(setting))
    return groups


def _short(setting: Setting) -> str:
    """The setting in a line, the end of its value left out if that is a list of files."""
    value = " ".join(setting.value.split())
    return f"{setting.flag} {value if len(value) <= _LONGEST else f'{value[: _LONGEST - 1]}…'}".rstrip()


def _wrapped(text: str, width: int, *, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


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
    pad = min(_FORMULA_WIDTH, max((len(line) for line in lines if line in origins), default=0))
    return "".join(
        f"{line:<{pad}}  -- {origins[line]}\n" if line in origins else f"{line}\n" for line in lines
    )


def _comments(migration: Migration) -> dict[str, str]:
    return {target: said for target, said in _origins(migration).items() if " " not in target}


def _origins(migration: Migration) -> Mapping[str, str]:
    """For each key and formula the settings that it came from, ``--lr 6e-5``, or the note on it."""
    origins: dict[str, list[str]] = {}
    for setting in migration.settings:
        for target in setting.targets:
            origins.setdefault(target, []).append(_short(setting))
    return {**migration.notes, **{target: _listed(found) for target, found in origins.items()}}


def _listed(found: Sequence[str]) -> str:
    """As many as fit a line, and how many more there are."""
    shown = list(found)
    while len(shown) > 1 and len(", ".join(shown)) > _LONGEST:
        shown.pop()
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _rows(settings: list[Setting], width: int) -> Iterator[str]:
    """One line a setting where it fits: what it was, what it became, why; the rest is wrapped under it."""
    limit = max(20, width * 2 // 5)
    lengths = [len(_short(setting)) for setting in settings]
    left = max((length for length in lengths if length <= limit), default=limit)
    for setting in settings:
        written = _short(setting)
        said = " ".join(part for part in (setting.becomes, _bracketed(setting)) if part)
        first = f"  {written:<{left}}  "
        lines = _wrapped(said, max(20, width - left - 4), indent="")
        if len(written) > left:
            yield first.rstrip()
            first = " " * (left + 4)
        yield f"{first}{lines[0] if lines else ''}".rstrip()
        yield from (" " * (left + 4) + line for line in lines[1:])


def _bracketed(setting: Setting) -> str:
    return f"({setting.reason})" if setting.reason else ""


def _paragraphs(settings: list[Setting], width: int) -> Iterator[str]:
    """What became nothing: for each reason the settings, then why."""
    for reason, names in _by_reason(settings).items():
        yield from _wrapped(f"  {', '.join(names)}", width, indent="  ")
        yield from _wrapped(f"      {reason}", width, indent="      ")
