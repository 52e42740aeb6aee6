"""Layouts as users name them: ``tp=8, pp=4, store=states``."""

from collections.abc import Mapping
from typing import Any

from trimtab.cost.search import Layout
from trimtab.plan.pipelines import StageSchedule
from trimtab.terms import InputError, nearest_name

_KEYS: Mapping[str, str] = {
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "devices": "devices",
    "microbatch": "microbatch",
    "store": "store",
    "pieces": "pieces",
    "schedule": "schedule",
    "recompute": "recompute_quarters",
    "sequence_parallel": "sequence_parallel",
}
"""What stands before ``=`` in a layout that a user asks about."""

_STORED = {"nothing": 0, "states": 1, "grads": 2, "params": 3}
_AGAIN = {"none": 0, "all": 4}


def layout_of(text: str, *, devices: int) -> Layout:
    """The layout that a text names: ``tp=8, pp=4, store=states, recompute=all``.

    Raises: InputError for a key or a value that there is not.
    """
    values: dict[str, Any] = {"devices": devices}
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in _KEYS:
            nearest = nearest_name(key, list(_KEYS))
            hint = f"  Did you mean {nearest!r}?" if nearest else ""
            raise InputError(f"--why-not: unknown {key!r}; there is {', '.join(_KEYS)}.{hint}")
        values[_KEYS[key]] = _value(key, value)
    layout = Layout(**values)
    degree = layout.tensor * layout.pipeline * layout.context
    if min(degree, layout.expert, layout.microbatch, layout.pieces) < 1 or layout.devices % degree:
        raise InputError(
            f"--why-not {text}: tp {layout.tensor} x pp {layout.pipeline} x cp {layout.context} must divide "
            f"{layout.devices} devices"
        )
    return layout


def _value(key: str, value: str) -> Any:
    names: Mapping[str, int] = {
        "store": _STORED,
        "recompute": _AGAIN,
        "sequence_parallel": {"yes": 1, "no": 0},
    }.get(key, {})
    if key == "schedule":
        if value not in {found.value for found in StageSchedule}:
            raise InputError(f"--why-not: schedule {value!r}; there is {', '.join(StageSchedule)}")
        return StageSchedule(value)
    if value in names:
        return bool(names[value]) if key == "sequence_parallel" else names[value]
    if key == "recompute" and value in ("1", "2", "3"):
        return int(value)
    if names or not value.isdecimal():
        there_is = (
            ", ".join([*names, *(("1, 2 or 3 of four layers",) if key == "recompute" else ())])
            or "a whole number"
        )
        raise InputError(f"--why-not: {key} is {value!r}; it takes {there_is}")
    return int(value)
