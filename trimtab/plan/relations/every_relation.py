"""All relations of a plan, declared and filled."""

from typing import Any

from trimtab.plan.physical import Plan
from trimtab.plan.relations.collectives import COLLECTIVES, TRAFFIC, collective_relations
from trimtab.plan.relations.decisions import DECISIONS, STATEMENTS, decision_relations
from trimtab.plan.relations.flows import Flows
from trimtab.plan.relations.lines import statement_numbers
from trimtab.plan.relations.pieces import Pieces
from trimtab.plan.relations.ranks import AXES, rank_relations, ranks_schema
from trimtab.plan.relations.stages import EXPERTS, LAYERS, STAGES, stage_relations
from trimtab.plan.relations.tensors import ACTIVATIONS, GRADS, PARAMS, STATES, tensor_relations
from trimtab.spec import Mesh, Program
from trimtab.terms import Relation, Schema

PLAN_SCHEMAS: tuple[Schema[Any], ...] = (
    PARAMS,
    GRADS,
    STATES,
    ACTIVATIONS,
    LAYERS,
    EXPERTS,
    STAGES,
    COLLECTIVES,
    TRAFFIC,
    ranks_schema(Mesh(axes=(("<axis>", 1),))),
    AXES,
    DECISIONS,
    STATEMENTS,
)
"""What every plan has, in order; ``ranks`` has a column for each axis of the plan's mesh."""


def plan_relations(plan: Plan, program: Program) -> tuple[Relation, ...]:
    """Every relation of a plan; their rows are made when they are asked for.

    Args:
        plan: Compiled.
        program: What it was compiled from.
    """
    pieces, flows, numbers = Pieces(plan), Flows(plan), statement_numbers(program)
    return (
        *tensor_relations(plan, pieces),
        *stage_relations(plan, pieces),
        *collective_relations(plan, flows, numbers),
        *rank_relations(plan, program, pieces, flows),
        *decision_relations(plan, program, numbers),
    )
