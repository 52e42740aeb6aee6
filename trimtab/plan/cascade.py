"""How the REDUCE lines that match a row add up: for each property the last that names it decides."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trimtab.plan.bound import Axis, Decision, Reduction
from trimtab.plan.devices import Device
from trimtab.plan.meshes import groups
from trimtab.spec import Mesh
from trimtab.spec.language import Call, Expression, ReduceStatement, compile_predicate

ByGroups = Mapping[tuple[int, ...], Reduction]
"""For process groups of one axis, by index, how they sum."""


def fold_reductions(
    statements: Sequence[ReduceStatement], mesh: Mesh, devices: Sequence[Device]
) -> dict[Axis, ByGroups]:
    """By axis how gradients are summed that these lines match; groups of devices that ON tells apart, apart."""
    found: dict[Axis, ByGroups] = {}
    for axis in dict.fromkeys(axis.text for statement in statements for axis in statement.axes):
        named = [statement for statement in statements if axis in {name.text for name in statement.axes}]
        by_result: dict[Reduction, list[int]] = {}
        for index, group in enumerate(groups(mesh, [axis])):
            reduction = Reduction()
            for statement in named:
                if statement.on is None or _all_satisfy(group, statement.on, devices):
                    reduction = _override(reduction, statement)
            by_result.setdefault(reduction, []).append(index)
        found[axis] = {tuple(indices): reduction for reduction, indices in by_result.items()}
    return found


def deciding_statements(
    reductions: Iterable[Reduction], statements: Sequence[ReduceStatement]
) -> list[ReduceStatement]:
    """Those of the lines that something was decided by; one that only says OVER decides that there is a sum."""
    by_span = {statement.span: statement for statement in statements}
    lines = {
        decision.line
        for reduction in reductions
        for decision in (reduction.route, reduction.bucket_bytes, reduction.compress, reduction.wire)
        if decision.line is not None
    }
    deciding = [by_span[line] for line in lines] or [statements[-1]]
    return deciding + [statement for statement in statements if _says_only_over(statement)]


def first_number(call: Call | None) -> float | None:
    """The fraction of a top-k, the rank of a PowerSGD."""
    return float(call.arguments[0].value) if call is not None and call.arguments else None


def _all_satisfy(group: Iterable[int], condition: Expression, devices: Sequence[Device]) -> bool:
    holds = compile_predicate(condition)
    return all(holds(devices[rank].value) is True for rank in group)


def _says_only_over(statement: ReduceStatement) -> bool:
    return not (statement.using or statement.bucket_bytes or statement.compress or statement.wire)


def _override(reduction: Reduction, statement: ReduceStatement) -> Reduction:
    """What a later statement changes: the properties that it names, and no others."""
    line = statement.span
    reduction = replace(reduction, over=Decision(True, line))
    if statement.using is not None:
        name = statement.using.name.text
        levels = tuple(str(argument.value) for argument in statement.using.arguments)
        reduction = replace(
            reduction, route=Decision("native" if name == "default" else name, line), levels=levels
        )
    if statement.bucket_bytes is not None:
        reduction = replace(reduction, bucket_bytes=Decision(statement.bucket_bytes, line))
    if statement.compress is not None:
        reduction = replace(
            reduction,
            compress=Decision(statement.compress.name.text, line),
            compress_argument=first_number(statement.compress),
        )
    if statement.wire is not None:
        reduction = replace(reduction, wire=Decision(statement.wire.text, line))
    return reduction
