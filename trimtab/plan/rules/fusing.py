"""Collectives of several tensors made one, and operators put back in order."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from trimtab.plan.program import Operator


def fuse(
    operators: Sequence[Operator],
    key: Callable[[Operator], Hashable | None],
    *,
    size: Callable[[Operator], int] | None = None,
) -> tuple[Operator, ...]:
    """Operators with one key as one operator with all their inputs.

    Only operators with as many fusable ones before them are fused: no group then waits for itself.

    Args:
        operators: In an order that respects who makes what.
        key: Operators with equal keys may be fused; None for those that stay alone.
        size: Bytes of an operator, for those whose transfer has a bucket size: a bucket is closed before it
            would grow beyond it.

    Returns: The operators in an order that respects who makes what.
    """
    operators = tuple(operators)
    depths = _depths(operators, key)
    open_groups: dict[Hashable, list[Operator]] = {}
    groups: list[list[Operator]] = []
    filled: dict[int, int] = {}
    for operator in operators:
        kind: Hashable | None = key(operator)
        if kind is None:
            groups.append([operator])
            continue
        kind = (kind, depths[id(operator)])
        group = open_groups.get(kind)
        limit = operator.transfer.bucket_bytes if operator.transfer else None
        grown = filled.get(id(group), 0) + (size(operator) if size else 0)
        if group is None or (limit is not None and size is not None and grown > limit):
            group = open_groups[kind] = []
            groups.append(group)
            grown = size(operator) if size else 0
        group.append(operator)
        filled[id(group)] = grown
    return in_order([_joined(group) for group in groups])


def _depths(operators: Sequence[Operator], key: Callable[[Operator], Hashable | None]) -> Mapping[int, int]:
    """For each operator, by identity, the fusable ones on the longest way to it."""
    made: dict[str, int] = {}
    found = {}
    for operator in operators:
        depth = max((made.get(name, 0) for name in operator.inputs), default=0)
        found[id(operator)] = depth
        after = depth + (key(operator) is not None)
        made |= dict.fromkeys(operator.outputs, after)
    return found


def in_order(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """The operators so that each comes after those that make its inputs, otherwise as they stand."""
    waiting = list(operators)
    makers: Mapping[str, Operator] = {name: operator for operator in waiting for name in operator.outputs}
    done: dict[int, Operator] = {}
    begun: set[int] = set()

    def emit(operator: Operator) -> None:
        if id(operator) in done:
            return
        assert id(operator) not in begun, f"{operator.outputs[0]} is made of itself"
        begun.add(id(operator))
        for name in operator.inputs:
            if name in makers:
                emit(makers[name])
        done[id(operator)] = operator

    for operator in waiting:
        emit(operator)
    return tuple(done.values())


def _joined(group: Sequence[Operator]) -> Operator:
    first = group[0]
    if len(group) == 1:
        return first
    return replace(
        first,
        inputs=tuple(name for operator in group for name in operator.inputs),
        outputs=tuple(name for operator in group for name in operator.outputs),
    )
