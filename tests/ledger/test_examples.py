import doctest

import pytest

from trimtab.ledger import comparison, journal


@pytest.mark.parametrize("module", [comparison, journal])
def test_the_examples_in_docstrings_hold(module):
    """An example that is wrong teaches the wrong thing."""
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
