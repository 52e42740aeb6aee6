"""The catalog's data files: read when first asked for, then kept."""

import csv
import gzip
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources


@cache
def toml_table(file_name: str) -> Mapping[str, Mapping[str, object]]:
    """The tables of a TOML file in ``trimtab/catalog/data``, by name."""
    return tomllib.loads(_text(file_name))


@cache
def csv_rows(file_name: str) -> tuple[Mapping[str, str], ...]:
    """The rows of a CSV file in ``trimtab/catalog/data``; an empty field is an empty string."""
    return tuple(csv.DictReader(_text(file_name).splitlines()))


def _text(file_name: str) -> str:
    content = resources.files("trimtab.catalog").joinpath("data", file_name).read_bytes()
    return (gzip.decompress(content) if file_name.endswith(".gz") else content).decode()
