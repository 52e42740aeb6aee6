"""The stages of a job as Megatron's layout string."""

from collections.abc import Sequence

from trimtab.spec.job_files import LoadedJob
from trimtab.spec.language import PlaceStatement, SplitStatement, compile_predicate
from trimtab.spec.migration.roles import Roles, role_of


def layers_of_stages(loaded: LoadedJob, roles: Roles, layers: int) -> tuple[int, ...]:
    """How many layers each stage holds, in the order of the layers; empty if that cannot be told."""
    places = [found for found in loaded.program.statements if isinstance(found, PlaceStatement)]
    total = roles.size(roles.stages) * _stages_a_rank(loaded)
    if not layers or any(place.table.text != "layers" for place in places):
        return ()
    stages = [_stage_of(layer, places) for layer in range(layers)]
    placed = {stage: stages.count(stage) for stage in stages if stage is not None}
    rest, left = total - len(placed), stages.count(None)
    if (rest == 0) != (left == 0) or left < rest:
        return ()
    even = iter([left // rest + (place < left % rest) for place in range(rest)])
    return tuple(placed[stage] if stage in placed else next(even) for stage in range(total))


def layout_string(counts: Sequence[int]) -> str:
    """The layout string; the embedding stands with the first stage, the loss with the last.

    >>> layout_string((3, 4, 1))
    'Et*3|t*4|tL'
    """
    return f"E{'|'.join('t' if count == 1 else f't*{count}' for count in counts)}L"


def _stages_a_rank(loaded: LoadedJob) -> int:
    using = [
        statement.using
        for statement in loaded.program.statements
        if isinstance(statement, SplitStatement) and role_of(statement) == "stages"
    ]
    return int(using[-1].arguments[0].value) if using and using[-1] and using[-1].arguments else 1


def _stage_of(layer: int, places: Sequence[PlaceStatement]) -> int | None:
    """The stage that the last matching statement puts a layer on."""
    found = [
        place.index
        for place in places
        if place.where is None or compile_predicate(place.where)({"layer": layer}.get) is True
    ]
    return found[-1] if found else None
