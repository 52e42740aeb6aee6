"""Which rule holds when a rank is lost: what the job asks for, as far as its layout can give it."""

from collections.abc import Mapping

from trimtab.app.errors import JobReadError
from trimtab.cost.copies import COPIES_HELD, copy_bytes
from trimtab.cost.explanation.document import CopyFacts, OnLossFacts
from trimtab.cost.explanation.places import at
from trimtab.plan.explanation import Survival, survival
from trimtab.plan.layout import trains_as_replicas
from trimtab.plan.physical import Plan
from trimtab.plan.resizing import has_second_copy
from trimtab.plan.training import num_states
from trimtab.spec import Engine, LoadedJob
from trimtab.spec.constants import rule_of
from trimtab.spec.language import StoreStatement, is_replicated
from trimtab.terms import OnLoss

GUARANTEES: Mapping[OnLoss, str] = {
    OnLoss.EXACT: "survivors keep the share gradients they have and compute only the lost ones: the same bits "
    "as a run that never failed",
    OnLoss.REDO: "the step is computed again under the new ownership: the same bits, at most one step repeated",
    OnLoss.ROLLBACK: "all return to the newest state that still exists whole, in memory or in a checkpoint, and "
    "replay: the same bits, the steps since are repeated",
    OnLoss.SAME_BATCH: "the same samples and weights, added in the backend's order: equal up to the order of addition",
    OnLoss.RESCALE: "lost shares are left out, the mean is over the living tokens: unbiased, a changed batch",
}
"""What each rule promises."""

_POSSIBLE: Mapping[OnLoss, tuple[OnLoss, ...]] = {
    OnLoss.EXACT: (OnLoss.EXACT, OnLoss.REDO, OnLoss.ROLLBACK, OnLoss.SAME_BATCH, OnLoss.RESCALE),
    OnLoss.REDO: (OnLoss.REDO, OnLoss.ROLLBACK, OnLoss.SAME_BATCH, OnLoss.RESCALE),
    OnLoss.SAME_BATCH: (OnLoss.SAME_BATCH, OnLoss.ROLLBACK, OnLoss.RESCALE),
    OnLoss.ROLLBACK: (OnLoss.ROLLBACK,),
}
"""By the strongest rule that a layout allows, all that it allows."""

_KEY = "fault_tolerance.on_loss"


def rule_on_loss(loaded: LoadedJob, plan: Plan | None) -> OnLossFacts:
    """The rule that holds, and why no stronger one.

    Args:
        loaded: The job; its ``auto`` stands for the strongest rule that the layout and the engine allow.
        plan: Its plan; None for a class of the user's own.

    Raises: JobReadError at the line that asks for more than the layout can give.
    """
    asked, origin = loaded.job.fault_tolerance.on_loss, loaded.origins[_KEY]
    by_default = rule_of(loaded.job, is_replicated=True)
    if plan is None:
        found = _survival_of_class(loaded)
    elif plan.mesh.num_devices == 1:
        # Nobody is left to break the promise to.
        reason = "a lone rank has no peers: what is lost is computed again when it is back"
        found = Survival(rule=by_default, reason=reason)
    else:
        found = survival(plan)
        if found.rule is OnLoss.EXACT and not trains_as_replicas(loaded.job, loaded.program):
            reason = f"{found.reason.partition(':')[0]}; a plan keeps no gradients of single shares"
            found = Survival(rule=OnLoss.REDO, reason=reason)
    if asked is not OnLoss.AUTO:
        if asked is not found.rule:
            _refuse_too_strong(loaded, asked, found)
        rule = OnLoss(asked)
    elif loaded.job.orchestration.engine is Engine.TORCHRUN:
        rule = OnLoss.ROLLBACK
        found = Survival(rule=found.rule, reason="torchrun ends every rank when one dies")
    else:
        rule = found.rule
    return OnLossFacts(
        rule=rule,
        strongest=found.rule,
        reason=found.reason,
        guarantee=GUARANTEES[rule],
        decided_by=f"auto ({origin})" if asked is OnLoss.AUTO else origin,
        limited_by=at(found.line) if found.line else "",
        copies=_copies(loaded, plan),
    )


def _copies(loaded: LoadedJob, plan: Plan | None) -> CopyFacts | None:
    """Of plans whose ranks hold pieces; ``auto`` takes them where no other rank holds the same."""
    every = loaded.job.fault_tolerance.snapshots
    if (
        plan is None
        or every == "off"
        or plan.mesh.num_devices == 1
        or trains_as_replicas(loaded.job, loaded.program)
    ):
        return None
    if every == "auto" and has_second_copy(plan):
        return None
    one = copy_bytes(plan, num_states=num_states(loaded.job.train.optimizer))
    return CopyFacts(
        every=every,
        copy_bytes=one,
        held_bytes=COPIES_HELD * one,
        decided_by=loaded.origins["fault_tolerance.snapshots"],
    )


def _survival_of_class(loaded: LoadedJob) -> Survival:
    if is_replicated(loaded.program):
        reason = "every rank holds the whole state of a class of the user's own"
        return Survival(rule=rule_of(loaded.job, is_replicated=True), reason=reason)
    stores = [statement for statement in loaded.program.statements if isinstance(statement, StoreStatement)]
    if not stores:
        reason = "MESH says where ranks stand, and a lost one is replaced there"
        return Survival(rule=OnLoss.ROLLBACK, reason=reason)
    reason = "tensors are stored in pieces, and no rank holds those of another"
    return Survival(rule=OnLoss.ROLLBACK, reason=reason, line=stores[0].span)


def _refuse_too_strong(loaded: LoadedJob, asked: OnLoss, found: Survival) -> None:
    if asked in _POSSIBLE[found.rule]:
        return
    allowed = ", ".join(rule.value for rule in _POSSIBLE[found.rule])
    lines = [f"{loaded.origins[_KEY]}  on_loss {asked} is more than this layout can give: {found.reason}"]
    if found.line is not None:
        lines.append(f"{at(found.line)}  this is the line that rules it out")
    lines.append(f"  Use one of {allowed}, or auto.")
    raise JobReadError("\n".join(lines))
