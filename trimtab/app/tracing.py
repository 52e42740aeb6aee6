"""What ``explain --trace`` adds: the program of the plan, run without numbers and counted."""

import gc

from trimtab.app.output import say
from trimtab.cost.explanation.tracing import TraceFacts
from trimtab.plan.physical import Plan
from trimtab.spec import LoadedJob
from trimtab.terms import InputError


def traced(loaded: LoadedJob, plan: Plan | None) -> TraceFacts:
    """One step of a job's plan, traced, beside what the plan says.

    Raises: InputError for a class of the user's own, and for a network that a plan may have and the runtime cannot
        compute.
    """
    if plan is None:
        raise InputError(
            f"explain --trace: {loaded.job.model.module} is not planned, so there is no program to trace; "
            "name a network of the catalog with model.preset"
        )
    from trimtab.runtime.lowering.tracing import judged, rank_classes, rules_of, trace

    gc.enable()  # Graphs of autograd are cycles.
    classes = rank_classes(plan)
    say(
        f"trace: one step of {plan.network.name} on {len(classes)} of {plan.mesh.num_devices} ranks, without numbers"
    )
    return judged(plan, trace(plan, rules_of(loaded.job), classes))
