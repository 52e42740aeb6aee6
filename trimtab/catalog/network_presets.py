"""Networks by name: the tables of ``networks.toml``, and what a job changes in a network."""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import TypeVar

from trimtab.catalog.errors import NetworkError, UnknownNameError
from trimtab.catalog.networks import Activation, Bias, Network, Norm, Positions, RopeScaling
from trimtab.catalog.tables import toml_table

_Choice = TypeVar("_Choice", bound=StrEnum)

_DEFAULTS = {field.name: field.default for field in fields(Network) if field.default is not MISSING}


def network_names() -> tuple[str, ...]:
    """The presets that ``network`` knows, smallest family first."""
    return tuple(toml_table("networks.toml"))


def network(name: str, /, **overrides: object) -> Network:
    """The preset called ``name``, with fields replaced as by ``changed_network``.

    Raises: UnknownNameError for an unknown preset or field; NetworkError for a value of the wrong type
        and for fields that do not fit together.
    """
    presets = toml_table("networks.toml")
    if name not in presets:
        raise UnknownNameError("network", name, presets)
    preset = _read(name, {key: value for key, value in presets[name].items() if key != "source"})
    return changed_network(preset, overrides)


def changed_network(base: Network, overrides: Mapping[str, object]) -> Network:
    """A network with fields replaced.

    An override of None leaves the base's value. Where the base has as many kv_heads as heads, an override
    of ``heads`` alone moves both; where its heads make up its width, ``embed`` and ``heads`` move a head
    size that is not given. Choices may be given as text, and ``bias`` as true (all) or false (none). The name of a changed
    network says what was changed: ``gpt-3m(layers=2)``.

    Raises: UnknownNameError for an unknown field; NetworkError for a value of the wrong type and for fields
        that do not fit together.
    """
    given = {field: value for field, value in overrides.items() if value is not None}
    _refuse_unknown_fields(given)
    if isinstance(given.get("bias"), bool):
        given["bias"] = Bias.ALL if given["bias"] else Bias.NONE
    if "heads" in given and base.kv_heads == base.heads:
        given.setdefault("kv_heads", given["heads"])
    changed = {field: value for field, value in given.items() if value != getattr(base, field)}
    if not changed:
        return base
    label = ", ".join(f"{field}={value}" for field, value in changed.items())
    values = {field.name: getattr(base, field.name) for field in fields(Network)}
    if "head_size" not in given and base.head_size * base.heads == base.embed:
        values["head_size"] = 0
    return _read(f"{base.name}({label})", values | changed)


def _refuse_unknown_fields(given: Collection[str]) -> None:
    known = {field.name for field in fields(Network)} - {"name", "rope_scaling"}
    for field in given:
        if field not in known:
            raise UnknownNameError("network field", field, known)


def _read(name: str, given: Mapping[str, object]) -> Network:
    values = {**_DEFAULTS, **given}
    scaling = values["rope_scaling"]
    assert scaling is None or isinstance(scaling, RopeScaling), "it has no text of its own"
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
        bias=_choice(values, "bias", Bias),
        dropout=_number(values, "dropout"),
        rope_base=_number(values, "rope_base"),
        norm_eps=_number(values, "norm_eps"),
        head_size=_whole(values, "head_size"),
        qk_norm=_flag(values, "qk_norm"),
        experts=_whole(values, "experts"),
        top_k=_whole(values, "top_k"),
        window=_whole(values, "window"),
        full_layers=_whole(values, "full_layers"),
        rope_scaling=scaling,
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
