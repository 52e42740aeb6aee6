"""What the devices of a run cannot do: refused when the plan is made, not when the first step hangs.

| what gloo or a CPU does | so a plan |
|---|---|
| all-gather of unequal sizes fails | cuts storage into equal, padded pieces |
| float8 fails, and later operations stall | sends no fp8 there |
| scaled sums (PREMUL_SUM) fail | sums and takes maxima, nothing else |
| scatter copies raw bytes, wrong for other memory layouts | has no scatter: reduce-scatter, all-gather, all-to-all |
| offloading to host memory has nowhere to go | refuses OFFLOAD where the device is the host |
| a quantizer per tensor fails on a tensor without dims | compresses no such tensor |

Source: torch 2.13 with gloo, measured; the first three raise there, the fourth is silent.
"""

from collections.abc import Iterator

from trimtab.catalog import HOST
from trimtab.plan.bound import Bound
from trimtab.plan.tables import Table
from trimtab.spec import Problem
from trimtab.spec.language import (
    AverageStatement,
    ComputeStatement,
    KeepStatement,
    OffloadStatement,
    Program,
    ReduceStatement,
)


def limit_problems(program: Program, bound: Bound) -> Iterator[Problem]:
    """Every statement that the devices cannot carry out."""
    if any(device.kind == HOST for device in bound.devices):
        for statement in program.statements:
            yield from _host_problems(statement)
    for statement in program.statements:
        if isinstance(statement, ReduceStatement) and statement.compress is not None:
            scalars = [row.name for row in bound.rows[Table.GRADS].values() if not row.shape]
            matched = [name for name in scalars if statement in bound.reducing.get(name, ())]
            if matched:
                yield Problem(
                    span=statement.compress.span,
                    message=f"{matched[0]!r} is a single number: there is nothing to compress",
                    hint="Leave it out with WHERE numel > 1.",
                )


def _host_problems(statement: object) -> Iterator[Problem]:
    if isinstance(statement, OffloadStatement):
        yield Problem(
            span=statement.span,
            message="a rank's device is the host's memory: there is nowhere else to put it",
            hint="Leave OFFLOAD out, or name orchestration.cluster.",
        )
    wire = statement.wire if isinstance(statement, ReduceStatement | AverageStatement) else None
    if isinstance(statement, KeepStatement | ComputeStatement):
        wire = statement.dtype
    if wire is not None and wire.text == "fp8":
        yield Problem(
            span=wire.span,
            message="gloo cannot send fp8, and CPUs do not compute in it",
            hint="Use bf16.",
        )
