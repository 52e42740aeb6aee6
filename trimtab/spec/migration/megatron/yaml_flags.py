"""YAML configurations of Megatron-LM, Megatron Core and NeMo as flags."""

import fnmatch
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from trimtab.spec.migration.megatron.flags import Flag, parse_flags
from trimtab.spec.migration.megatron.launches import Launch
from trimtab.spec.migration.megatron.topics import is_known_flag
from trimtab.spec.migration.settings import Fate, MigrationError, Setting
from trimtab.spec.yaml_documents import ListValue, MappingValue, ScalarValue, YamlValue, read_mapping

_FIRST_KEY = re.compile(r"""^\{|^["']?[\w.-]+["']?\s*:(\s|$)""")


def is_yaml(text: str) -> bool:
    """Whether the first line that says something is a key of YAML and not a command."""
    lines = (
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "---"))
    )
    return _FIRST_KEY.match(next(lines, "")) is not None


def read_yaml_launch(text: str, *, source: str) -> Launch:
    """The flags that a configuration amounts to, and the fates of keys that amount to none.

    Raises: YamlError if it is no YAML; MigrationError if it is another system's.
    """
    tree = read_mapping(text, source=source)
    leaves = list(_leaves(tree, ()))
    _refuse_other_systems({path[-1].replace("-", "_") for path, _ in leaves})
    if {"model.encoder", "model.decoder"} <= {".".join(path[:2]) for path, _ in leaves}:
        raise MigrationError(
            "model.encoder and model.decoder are an encoder with a decoder; networks of Trimtab are decoders that "
            "predict the next token. Write the network as a class of your own and name it in model.module"
        )
    flags: list[Flag] = []
    settings: list[Setting] = []
    for path, values in leaves:
        found = _flags(path, values)
        if isinstance(found, Setting):
            settings.append(found)
        else:
            flags += found
    return Launch(flags=tuple(flags), settled=tuple(settings))


_NEOX = frozenset(
    {
        "pipe_parallel_size",
        "gpt_j_residual",
        "train_micro_batch_size_per_gpu",
        "scaled_upper_triang_masked_softmax_fusion",
    }
)


def _refuse_other_systems(keys: set[str]) -> None:
    if keys & _NEOX:
        raise MigrationError(
            f"{', '.join(sorted(keys & _NEOX))} are keys of GPT-NeoX or DeepSpeed, and their values mean other things than "
            "Megatron-LM's; read its DeepSpeed settings with `trimtab import deepspeed`"
        )


def _leaves(
    value: YamlValue, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...] | None]]:
    """Every value with the keys that lead to it; None for null."""
    if isinstance(value, MappingValue):
        for key, entry in value.entries.items():
            yield from _leaves(entry.value, (*path, key))
    elif isinstance(value, ListValue):
        items = [item.text for item in value.items if isinstance(item, ScalarValue)]
        yield path, tuple(items)
    elif isinstance(value, ScalarValue):
        yield path, None if value.value is None else tuple(value.text.split())


def _flags(path: tuple[str, ...], values: tuple[str, ...] | None) -> list[Flag] | Setting:
    shown, text = ".".join(path), " ".join(values or ())
    if values is None:
        return Setting(flag=shown, value="null", fate=Fate.IRRELEVANT, reason="not set")
    if path[0] == "ENV_VARS":
        return [Flag(name=f"export {path[-1]}", values=values)]
    if path[-1].startswith("--"):
        return _switched(path[-1], values, path[-1])
    if (meanings := _lookup(_tables()["valued"], path)) is not None:
        return _valued(shown, text, meanings)
    if (flag := _lookup(_tables()["renamed"], path)) is not None:
        return [Flag(name=flag, values=values, shown=shown)]
    if topic := _key_topic(shown):
        return Setting(flag=shown, value=text, fate=Fate(topic["fate"]), reason=topic["reason"])
    return _switched(f"--{path[-1].replace('_', '-')}", values, shown)


def _valued(shown: str, text: str, meanings: Mapping[str, str]) -> list[Flag] | Setting:
    said = meanings.get(text, meanings.get(text.lower()))
    if said == "":
        return Setting(flag=shown, value=text, fate=Fate.IRRELEVANT, reason="the default of both systems")
    if said is None:
        known = ", ".join(meanings)
        return Setting(
            flag=shown,
            value=text,
            fate=Fate.IMPOSSIBLE,
            reason=f"of its values these are known here: {known}",
        )
    return [
        Flag(name=flag.name, values=flag.values, shown=shown, given=text)
        for flag in parse_flags(said.split())
    ]


def _switched(flag: str, values: tuple[str, ...], shown: str) -> list[Flag] | Setting:
    """A key spelt like a flag: true gives a switch, false its opposite where there is one."""
    text = " ".join(values).lower()
    if text not in ("true", "false"):
        return [Flag(name=flag, values=values, shown=shown)]
    opposites = (f"--no-{flag[2:]}", f"--disable-{flag[2:]}")
    opposite = None if is_known_flag(flag) else next(filter(is_known_flag, opposites), None)
    if text == "true" and opposite is None:
        return [Flag(name=flag, shown=shown, given=text)]
    if text == "false" and opposite is not None:
        return [Flag(name=opposite, shown=shown, given=text)]
    reason = "off, as when it is not given" if text == "false" else "on, as when it is not given"
    return Setting(flag=shown, value=text, fate=Fate.IRRELEVANT, reason=reason)


def _lookup(table: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """What a table says under the path, or under the longest end of it."""
    for start in range(len(path)):
        if (found := table.get(".".join(path[start:]))) is not None:
            return found
    return None


def _key_topic(shown: str) -> Mapping[str, str] | None:
    return next(
        (
            topic
            for topic in _tables()["topics"].values()
            if any(fnmatch.fnmatchcase(shown, key) for key in topic["keys"])
        ),
        None,
    )


@cache
def _tables() -> Mapping[str, Any]:
    path = resources.files("trimtab.spec").joinpath("data", "migration", "megatron-keys.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))
