"""Megatron-LM's layout of a pipeline as one string."""

import pytest

from trimtab.spec.migration import MigrationError
from trimtab.spec.migration.megatron.layout_string import layers_of_stages


@pytest.mark.parametrize(
    ("layout", "counts"),
    [
        ("Et*3|(tt|)*29,m|L", (3, *(2,) * 29, 0, 0)),
        ("Ett|ttL", (2, 2)),
        ("E|t|tL", (0, 1, 1)),
        ("E,t*2 | t*4, L", (2, 4)),
        (r"Et\*3\|ttL", (3, 2)),
        ("(t*2|)*3L", (2, 2, 2, 0)),
        ("Et|(t|)*0L", (1, 0)),
    ],
)
def test_layers(layout, counts):
    """One repetition read wrongly moves every layer behind it."""
    assert layers_of_stages(layout) == counts


@pytest.mark.parametrize("layout", ["Ex|L", "Et|(t|L", "E((t|)*2|)*2L", "t*", "3*t", "Et|2L"])
def test_other_symbols_are_refused(layout):
    """What is not understood must not count as nothing."""
    with pytest.raises(MigrationError, match=r"the pipeline layout .* holds"):
        layers_of_stages(layout)


def test_a_layout_without_end_is_refused():
    """A number mistyped would fill the memory."""
    with pytest.raises(MigrationError, match="longer than 100000 symbols"):
        layers_of_stages("E(t*9999|)*9999L")
