"""The examples in docstrings of the room."""

import doctest
import importlib
import pkgutil

import pytest

import trimtab.cost

MODULES = [module.name for module in pkgutil.walk_packages(trimtab.cost.__path__, "trimtab.cost.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    """Otherwise a docstring shows what no longer holds."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
