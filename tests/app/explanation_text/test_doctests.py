"""The examples in docstrings of the package."""

import doctest
import importlib
import pkgutil

import pytest

import trimtab.app.explanation_text

MODULES = [
    module.name
    for module in pkgutil.walk_packages(
        trimtab.app.explanation_text.__path__, "trimtab.app.explanation_text."
    )
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    """Otherwise a docstring shows what no longer holds."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
