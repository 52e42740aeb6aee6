"""The examples in docstrings of the package."""

import doctest
import importlib
import pkgutil

import pytest

import trimtab.plan.explanation

MODULES = [
    module.name
    for module in pkgutil.walk_packages(trimtab.plan.explanation.__path__, "trimtab.plan.explanation.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    """Otherwise a docstring shows what no longer holds."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
