"""What tests ask of a migration."""

import json
from typing import Any

from trimtab.spec.migration import Export, Fate, Migration, Setting


def setting(migration: Migration | Export, flag: str) -> Setting:
    """The row of a setting."""
    return next(setting for setting in migration.settings if setting.flag == flag)


def fate(migration: Migration | Export, flag: str) -> Fate:
    """What became of a setting."""
    return setting(migration, flag).fate


def reason(migration: Migration | Export, flag: str) -> str:
    """Why it did."""
    return setting(migration, flag).reason


def formulas(migration: Migration) -> list[str]:
    """The formulas, one a line."""
    return migration.formulas.splitlines()


def written(export: Export, path: str) -> Any:
    """The value at a dotted path of a JSON file; None if it is not there."""
    value = json.loads(export.text)
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
