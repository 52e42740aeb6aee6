"""What the language can say and this release cannot run."""

from collections.abc import Iterator

from trimtab.spec.errors import Problem
from trimtab.spec.language.presets import name_uses
from trimtab.spec.language.syntax import OffloadStatement, Program, SealStatement, Statement
from trimtab.spec.language.wording import first_problems

_MOVED = ("states", "activations")
"""Tables that can wait in the host's memory."""


def unsupported_by_runtime(program: Program) -> list[Problem]:
    """The statements that this release explains and does not run, each at its place."""
    found = (problem for statement in program.statements for problem in _problems(statement))
    return name_uses(first_problems(found), program)


def _problems(statement: Statement) -> Iterator[Problem]:
    match statement:
        case SealStatement():
            yield Problem(
                span=statement.span,
                message="SEAL is not in this release",
                hint="This release sends in the clear.",
            )
        case OffloadStatement(tables=tables):
            for table in tables:
                if table.text not in _MOVED:
                    yield Problem(
                        span=table.span,
                        message=f"OFFLOAD {table.text} is not in this release",
                        hint="States and activations can wait in the host's memory; STORE cuts what stays on the device.",
                    )
