"""A DeepSpeed file on its way out: its settings so far, and what became of each key and formula."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.spec.migration.sheets import Sheet

_ORDER = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "optimizer",
    "scheduler",
    "gradient_clipping",
    "bf16",
    "data_types",
    "communication_data_type",
    "zero_optimization",
)
"""Sections as most files have them; the others follow as they come."""


@dataclass(slots=True)
class Written:
    """What the writers of a DeepSpeed file fill in.

    Args:
        settings: Settings of the file by their dotted path.
        sheet: Keys and formulas of the job with their fates.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    sheet: Sheet = field(default_factory=Sheet)

    def carry(self, name: str, value: str, settings: Mapping[str, Any]) -> None:
        """A key or formula says the same there."""
        self.settings |= settings
        self.sheet.carry(name, value, *_said(settings))

    def change(self, name: str, value: str, settings: Mapping[str, Any], *, reason: str) -> None:
        """A key or formula is said in another way there, or with another effect."""
        self.settings |= settings
        self.sheet.change(name, value, *_said(settings), reason=reason)

    def refuse(self, name: str, value: str, reason: str) -> None:
        """A key or formula has no equivalent there."""
        self.sheet.refuse(name, value, reason)

    def drop(self, name: str, value: str, reason: str) -> None:
        """A key or formula is not needed there."""
        self.sheet.drop(name, value, reason)

    def tell(self, name: str, value: str, settings: Mapping[str, Any], lost: list[str]) -> None:
        """Carried if nothing is lost, changed if something is, without an equivalent if nothing says it."""
        if not settings:
            self.refuse(name, value, "; ".join(lost))
        elif lost:
            self.change(name, value, settings, reason="; ".join(lost))
        else:
            self.carry(name, value, settings)

    def text(self) -> str:
        """The file."""
        tree: dict[str, Any] = {}
        for path, value in self.settings.items():
            *sections, key = path.split(".")
            place = tree
            for section in sections:
                place = place.setdefault(section, {})
            place[key] = value
        first = [section for section in _ORDER if section in tree]
        others = [section for section in tree if section not in _ORDER]
        return _json({section: tree[section] for section in (*first, *others)}, indent="") + "\n"


def _json(value: Any, *, indent: str) -> str:
    """JSON with a line for each setting and each object of a list; other lists stand on one line."""
    inner = f"{indent}  "
    if isinstance(value, Mapping):
        lines = [f"{inner}{json.dumps(key)}: {_json(item, indent=inner)}" for key, item in value.items()]
        return ",\n".join(lines).join(("{\n", f"\n{indent}}}"))
    if _is_of_objects(value):
        lines = [f"{inner}{json.dumps(item)}" for item in value]
        return ",\n".join(lines).join(("[\n", f"\n{indent}]"))
    return json.dumps(value)


def _is_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _said(settings: Mapping[str, Any]) -> list[str]:
    """Each setting as a table shows it: ``zero_optimization.stage 3``."""
    return [f"{path} {_short(value)}".rstrip() for path, value in settings.items()]


def _short(value: Any) -> str:
    """A value as text; a list of objects stands in the file alone."""
    if _is_of_objects(value):
        return ""
    return value if isinstance(value, str) else json.dumps(value)
