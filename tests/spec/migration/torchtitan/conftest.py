"""A configuration of torchtitan turned into a job."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trimtab.catalog import network, network_names
from trimtab.spec.migration import Migration, Source
from trimtab.spec.migration.torchtitan import read_torchtitan

NETWORKS: Mapping[str, Mapping[str, Any]] = {
    name: dataclasses.asdict(network(name)) for name in network_names()
}

Import = Callable[..., Migration]


@pytest.fixture
def convert() -> Import:
    """Imports the text of a file."""

    def run(text: str, *, devices: int | None = 8) -> Migration:
        source = Source(text=text, name="titan.toml", devices=devices, networks=NETWORKS)
        return read_torchtitan(source)

    return run
