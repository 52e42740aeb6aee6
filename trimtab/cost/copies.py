"""What do copies of the state in other ranks' memory take?"""

from trimtab.plan.physical import Plan
from trimtab.plan.placements import local_elements
from trimtab.plan.program import Parameter
from trimtab.plan.tables import BYTES_OF, Table

COPIES_HELD = 4
"""Two of the own pieces and two of another rank's: one of each may be on its way."""


def copy_bytes(plan: Plan, *, num_states: int) -> int:
    """Bytes of one copy of the rank that has most: all that it keeps between steps, in fp32.

    Args:
        plan: Where each piece lies.
        num_states: Of the optimizer, for each element of a parameter.
    """
    by_place: dict[int, int] = {}
    for parameter in plan.parameters.values():
        elements = _elements(plan, parameter, num_states)
        for place in {plan.pipeline.rank_of_stage[stage] for stage in parameter.stages}:
            by_place[place] = by_place.get(place, 0) + elements
    return BYTES_OF["fp32"] * max(by_place.values())


def _elements(plan: Plan, parameter: Parameter, num_states: int) -> int:
    """Of a parameter, its states, and of the rounded parameter beside a master copy."""
    kept, applied = parameter.stored[Table.PARAMS.value], parameter.stored[Table.STATES.value]
    in_pieces = local_elements(parameter.dims, parameter.shape, applied, plan.axis_sizes)
    as_kept = local_elements(parameter.dims, parameter.shape, kept, plan.axis_sizes)
    masters = in_pieces if parameter.has_master else 0
    return as_kept + masters + num_states * in_pieces
