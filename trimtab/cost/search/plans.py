"""A layout as a plan: its formulas, compiled."""

from trimtab.catalog import Cluster
from trimtab.cost.search.formulas import formulas_of
from trimtab.cost.search.space import Layout, Question
from trimtab.plan.compiling import compile_program
from trimtab.plan.physical import Plan
from trimtab.plan.training import Training
from trimtab.spec import parse_strategy, resolve_mesh


def plan_of(question: Question, layout: Layout, cluster: Cluster, *, shares: int | None) -> Plan:
    """The plan that the formulas of a layout mean.

    Args:
        question: That the layout answers.
        layout: One of its space, or one that a user named.
        cluster: To train on.
        shares: Parts of the batch with a fixed order; None for the backend's own order.

    Raises: StrategyError, at the formula, for what cannot be compiled.
    """
    program = parse_strategy(formulas_of(question, layout), source="plan")
    training = Training(
        network=question.network,
        batch=question.batch,
        microbatch=layout.microbatch,
        sequence=question.sequence,
        shares=shares,
        compute=question.compute,
        num_states=question.num_states,
        clips=question.clips,
    )
    return compile_program(
        program, training, mesh=resolve_mesh(program, devices=layout.devices), cluster=cluster
    )
