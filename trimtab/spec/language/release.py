"""What the language can say and this release cannot run."""

from trimtab.spec.errors import Problem
from trimtab.spec.language.presets import name_uses
from trimtab.spec.language.syntax import OffloadStatement, Program, SealStatement
from trimtab.spec.language.wording import first_problems

_HINTS = {
    OffloadStatement: ("OFFLOAD", "This release keeps everything on the device."),
    SealStatement: ("SEAL", "This release sends in the clear."),
}


def unsupported_by_runtime(program: Program) -> list[Problem]:
    """The statements that this release explains and does not run, each at its place."""
    found = (
        Problem(
            span=statement.span, message=f"{_HINTS[kind][0]} is not in this release", hint=_HINTS[kind][1]
        )
        for statement in program.statements
        for kind in _HINTS
        if isinstance(statement, kind)
    )
    return name_uses(first_problems(found), program)
