"""The preset that a network is closest to, and what must be changed in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.spec.cards import Model
from trimtab.spec.fields import keys_of

_BASE = "gpt-3m"
"""The preset to start from where no networks were handed in: every field is then given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A preset with its changes.

    Args:
        preset: Its name.
        changes: The fields in which the network differs and that a job file can change.
        lost: The fields in which it differs and that a job file cannot change, with the preset's values.
    """

    preset: str
    changes: Mapping[str, Any]
    lost: Mapping[str, Any]


def choose_preset(wanted: Mapping[str, Any], networks: Mapping[str, Mapping[str, Any]]) -> Choice:
    """The preset that needs no change that a job file cannot make, then the fewest changes, then the nearest size.

    Args:
        wanted: The fields of the network, as far as they are known.
        networks: The fields of every preset.
    """
    if not networks:
        settable = keys_of(Model)
        return Choice(preset=_BASE, changes={k: v for k, v in wanted.items() if k in settable}, lost={})
    choices = [_choice(name, fields, wanted) for name, fields in networks.items()]
    return min(choices, key=lambda choice: _distance(choice, wanted, networks[choice.preset]))


def _choice(name: str, fields: Mapping[str, Any], wanted: Mapping[str, Any]) -> Choice:
    settable = keys_of(Model)
    differing = {key: value for key, value in wanted.items() if fields.get(key) != value}
    if (size := wanted.get("head_size")) is not None:
        differing.pop("head_size", None)
        if _moved_head_size(fields, differing) != size:
            differing["head_size"] = size
    return Choice(
        preset=name,
        changes={key: value for key, value in differing.items() if key in settable},
        lost={key: fields.get(key) for key in differing if key not in settable},
    )


def _moved_head_size(fields: Mapping[str, Any], differing: Mapping[str, Any]) -> int:
    """The head size that a preset has once its width and heads are others: their quotient, where it was that."""
    size: int = fields["head_size"]
    if size * fields["heads"] != fields["embed"]:
        return size
    changed = {**fields, **differing}
    return int(changed["embed"] // changed["heads"])


def _distance(choice: Choice, wanted: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[float, ...]:
    sizes = [(wanted.get(key) or 1) / (fields.get(key) or 1) for key in ("layers", "embed", "embed")]
    return (len(choice.lost), len(choice.changes), abs(sum(map(math.log, sizes))))
