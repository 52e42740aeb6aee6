"""The examples in docstrings hold."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["dot_writing", "markup", "quantities", "rank_groups", "rank_ranges"])
def test_examples(name):
    """Who reads an example believes it."""
    failed, tried = doctest.testmod(importlib.import_module(f"trimtab.app.pages.{name}"))
    assert tried
    assert not failed
