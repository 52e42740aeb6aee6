"""The systems that settings are read from and written for."""

import pytest

from trimtab.spec.migration import MigrationError, exporter_for, importer_for
from trimtab.spec.migration.exports import EXPORTERS
from trimtab.spec.migration.imports import IMPORTERS


@pytest.mark.parametrize(("find", "table"), [(importer_for, IMPORTERS), (exporter_for, EXPORTERS)])
def test_systems_are_found_by_name(find, table):
    """A misspelt system is refused with the nearest."""
    for name in table:
        assert find(name) is table[name]
    with pytest.raises(
        MigrationError, match=r"unknown system 'megatorn'; there are .*megatron.* Did you mean 'megatron'"
    ):
        find("megatorn")
