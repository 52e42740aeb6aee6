"""The examples in docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import trimtab.plan.pipelines as package

MODULES = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    """Otherwise a docstring shows what no longer holds."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
