"""Networks by name: the tables of ``networks.toml``, and what a job changes in one."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from enum import StrEnum
from typing import TypeVar

from trimtab.catalog.errors import NetworkError, UnknownNameError
from trimtab.catalog.networks import Activation, Network, Norm, Positions
from trimtab.catalog.tables import toml_table

_Choice = TypeVar("_Choice", bound=StrEnum)


def network_names() -> tuple[str, ...]:
    """The presets that ``network`` knows, smallest family first."""
    return tuple(toml_table("networks.toml"))


def network(name: str, /, **overrides: object) -> Network:
    """The preset called ``name``, with fields replaced.

    An override of None leaves the preset's value. Where the preset has as many kv_heads as heads, an
    override of ``heads`` alone moves both. Choices may be given as text. The name of a changed network
    says what was changed: ``gpt-3m(layers=2)``.

    Raises: UnknownNameError for an unknown preset or field; NetworkError for a value of the wrong type
        and for fields that do not fit together.
    """
    presets = toml_table("networks.toml")
    if name not in presets:
        raise UnknownNameError("network", name, presets)
    preset = _read(name, {key: value for key, value in presets[name].items() if key != "source"})
    given = {field: value for field, value in overrides.items() if value is not None}
    if "heads" in given and preset.kv_heads == preset.heads:
        given.setdefault("kv_heads", given["heads"])
    _refuse_unknown_fields(given)
    changed = {field: value for field, value in given.items() if value != getattr(preset, field)}
    if not changed:
        return preset
    label = ", ".join(f"{field}={value}" for field, value in changed.items())
    return _read(f"{name}({label})", asdict(preset) | changed)


def _refuse_unknown_fields(given: Collection[str]) -> None:
    known = {field.name for field in fields(Network)} - {"name"}
    for field in given:
        if field not in known:
            raise UnknownNameError("network field", field, known)


def _read(name: str, values: Mapping[str, object]) -> Network:
    return Network(
        name=name,
        layers=_whole(values, "layers"),
        embed=_whole(values, "embed"),
        heads=_whole(values, "heads"),
        kv_heads=_whole(values, "kv_heads"),
        mlp=_whole(values, "mlp"),
        vocab=_whole(values, "vocab"),
        context=_whole(values, "context"),
        norm=_choice(values, "norm", Norm),
        positions=_choice(values, "positions", Positions),
        activation=_choice(values, "activation", Activation),
        tied=_flag(values, "tied"),
        bias=_flag(values, "bias"),
        dropout=_number(values, "dropout"),
        rope_base=_number(values, "rope_base"),
        norm_eps=_number(values, "norm_eps"),
    )


def _whole(values: Mapping[str, object], field: str) -> int:
    value = values[field]
    if isinstance(value, bool) or not isinstance(value, int):
        raise NetworkError(f"network field {field!r} is {value!r}; it takes a whole number")
    return value


def _number(values: Mapping[str, object], field: str) -> float:
    value = values[field]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NetworkError(f"network field {field!r} is {value!r}; it takes a number")
    return float(value)


def _flag(values: Mapping[str, object], field: str) -> bool:
    value = values[field]
    if not isinstance(value, bool):
        raise NetworkError(f"network field {field!r} is {value!r}; it takes true or false")
    return value


def _choice(values: Mapping[str, object], field: str, choices: type[_Choice]) -> _Choice:
    value = str(values[field])
    if value not in set(choices):
        raise UnknownNameError(field, value, [choice.value for choice in choices])
    return choices(value)
