"""The stages of a job as Megatron's layout string."""

import itertools
from collections.abc import Sequence

from trimtab.spec.job_files import LoadedJob
from trimtab.spec.language import PlaceStatement, SplitStatement, compile_predicate
from trimtab.spec.migration.megatron.roles import Roles, role_of


def chunks_of(loaded: LoadedJob, roles: Roles, layers: int) -> tuple[int, ...]:
    """Layers of each chunk in the order of the layers, the ranks taking turns; empty if that is not how they lie."""
    places = [found for found in loaded.program.statements if isinstance(found, PlaceStatement)]
    stages = roles.size(roles.stages)
    if places:
        return _placed(places, stages, layers)
    total = stages * _chunks_a_rank(loaded)
    return (layers // total,) * total if layers and layers % total == 0 else ()


def layout_string(chunks: Sequence[int]) -> str:
    """The layout string; the embedding stands with the first chunk, the loss with the last.

    >>> layout_string((3, 4, 0))
    'Et*3|t*4|L'
    """
    layers = ["t" if count == 1 else f"t*{count}" if count else "" for count in chunks]
    return f"E{'|'.join(layers)}L"


def _chunks_a_rank(loaded: LoadedJob) -> int:
    using = [
        statement.using
        for statement in loaded.program.statements
        if isinstance(statement, SplitStatement) and role_of(statement) == "stages"
    ]
    return int(using[-1].arguments[0].value) if using and using[-1] and using[-1].arguments else 1


def _placed(places: Sequence[PlaceStatement], stages: int, layers: int) -> tuple[int, ...]:
    if not layers or any(place.table.text != "layers" for place in places):
        return ()
    chunks: list[int] = []
    for rank, members in itertools.groupby(_rank_of(layer, places) for layer in range(layers)):
        if rank is None or rank >= stages:
            return ()
        chunks += [0] * ((rank - len(chunks)) % stages)
        chunks.append(len(list(members)))
    chunks += [0] * (-len(chunks) % stages)
    return tuple(chunks)


def _rank_of(layer: int, places: Sequence[PlaceStatement]) -> int | None:
    """The rank that the last matching statement puts a layer on."""
    found = [
        place.index
        for place in places
        if place.where is None or compile_predicate(place.where)({"layer": layer}.get) is True
    ]
    return found[-1] if found else None
