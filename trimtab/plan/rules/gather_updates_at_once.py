"""Updated parameters travel together."""

from collections.abc import Hashable
from dataclasses import replace

from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind
from trimtab.plan.rules.fusing import fuse
from trimtab.plan.traffic import holders


def gather_updates_at_once(plan: Plan) -> Plan:
    """One all-gather of what ranks have updated in pieces, and one average, instead of one for each tensor."""

    def key(operator: Operator) -> Hashable | None:
        kind = _update_key(operator)
        return None if kind is None else (kind, holders(plan, operator.inputs[0]))

    operators = fuse(plan.update.operators, key)
    return replace(plan, update=replace(plan.update, operators=operators))


def _update_key(operator: Operator) -> Hashable | None:
    is_gather = operator.kind is OperatorKind.ALL_GATHER and operator.inputs[0].startswith("new:")
    if operator.sends_one_tensor or not (is_gather or operator.kind is OperatorKind.AVERAGE):
        return None
    return (operator.kind, operator.transfer, operator.every, operator.because.line)
