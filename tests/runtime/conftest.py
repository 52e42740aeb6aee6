"""Crews of ranks that all tests of the runtime share."""

from collections.abc import Callable, Iterator

import pytest

from trimtab.runtime.lowering import Crew

CrewOf = Callable[[int], Crew]


@pytest.fixture(scope="session")
def crew_of() -> Iterator[CrewOf]:
    """The crew of a size, started once."""
    crews: dict[int, Crew] = {}

    def crew(size: int) -> Crew:
        if size not in crews or not crews[size].is_open:
            crews[size] = Crew(size)
        return crews[size]

    yield crew
    for found in crews.values():
        found.close()
