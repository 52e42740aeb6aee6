"""A plan in fp32 with nothing left out of its sums.

It is the same program, so that what differs from one device is a mistake and no rounding. Masks of dropout are
those of the run: they follow from keys.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from trimtab.plan.physical import Plan, Update
from trimtab.plan.program import Block, Operator, Transfer, Value
from trimtab.plan.traffic import traffic_of

_FLOATS = ("bf16", "fp16", "fp8")


def exact(plan: Plan) -> Plan:
    """The plan with every type fp32, every sum whole; routes, buckets, masks and layouts stay."""
    parameters = {
        name: replace(parameter, dtypes=dict.fromkeys(parameter.dtypes, "fp32"), num_residuals=0)
        for name, parameter in plan.parameters.items()
    }
    update = Update(
        values=_values(plan.update.values),
        operators=_operators(plan.update.operators),
        results=plan.update.results,
    )
    found = replace(
        plan,
        parameters=parameters,
        blocks=tuple(_block(block) for block in plan.blocks),
        update=update,
        traffic=(),
    )
    return replace(found, traffic=traffic_of(found))


def set_aside(plan: Plan) -> tuple[str, ...]:
    """What ``exact`` leaves out, each in a few words."""
    transfers = [transfer for _, transfer in _transfers(plan)]
    compressed = {transfer.compress for transfer in transfers} - {"none"}
    wires = {transfer.wire for transfer in transfers if transfer.wire in _FLOATS}
    computed = {
        value.dtype for block in plan.blocks for value in block.values.values() if value.dtype in _FLOATS
    }
    kept = {
        dtype
        for parameter in plan.parameters.values()
        for dtype in parameter.dtypes.values()
        if dtype in _FLOATS
    }
    return (
        *(f"COMPRESS {name}" for name in sorted(compressed)),
        *(f"{name} on the wire" for name in sorted(wires)),
        *(f"COMPUTE IN {name}" for name in sorted(computed)),
        *(f"KEEP IN {name}" for name in sorted(kept)),
    )


def _transfers(plan: Plan) -> Iterator[tuple[Operator, Transfer]]:
    programs = [(*block.gathers, *block.forward, *block.recompute, *block.backward) for block in plan.blocks]
    for operators in (*programs, plan.update.operators):
        for operator in operators:
            if operator.transfer is not None:
                yield operator, operator.transfer
                yield from ((operator, transfer) for _, transfer in operator.variants)


def _block(block: Block) -> Block:
    return replace(
        block,
        values=_values(block.values),
        gathers=_operators(block.gathers),
        forward=_operators(block.forward),
        recompute=_operators(block.recompute),
        backward=_operators(block.backward),
    )


def _values(values: Mapping[str, Value]) -> dict[str, Value]:
    return {
        name: replace(value, dtype="fp32") if value.dtype in _FLOATS else value
        for name, value in values.items()
    }


def _operators(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    return tuple(
        replace(
            operator,
            transfer=_whole(operator.transfer) if operator.transfer else None,
            variants=tuple((groups, _whole(transfer)) for groups, transfer in operator.variants),
        )
        for operator in operators
    )


def _whole(transfer: Transfer) -> Transfer:
    return replace(transfer, wire="fp32", compress="none", compress_argument=None)
