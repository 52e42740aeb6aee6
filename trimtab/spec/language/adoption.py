"""What the language can say and a training loop of the user's own cannot be given.

Trimtab does not know the operators of such a model: it runs them whole, on every rank, each on other samples.
"""

from collections.abc import Iterator

from trimtab.spec.errors import Problem
from trimtab.spec.language.presets import name_uses
from trimtab.spec.language.syntax import (
    MeshStatement,
    Program,
    ReduceStatement,
    SplitStatement,
    Statement,
)
from trimtab.spec.language.wording import first_problems
from trimtab.terms import Span

_ROUTES = ("native", "tree", "default")
_HINT = "A script is given replicas and shares: MESH, SPLIT batch, REDUCE grads USING tree."


def unsupported_beside_script(program: Program) -> list[Problem]:
    """The statements and clauses that no script can be given, each at its place, with the reason."""
    found = (problem for statement in program.statements for problem in _unsupported(statement))
    return name_uses(first_problems(found), program)


def _unsupported(statement: Statement) -> Iterator[Problem]:
    match statement:
        case MeshStatement():
            return
        case SplitStatement():
            yield from _unsupported_split(statement)
        case ReduceStatement():
            yield from _unsupported_reduction(statement)
        case _:
            verb = type(statement).__name__.removesuffix("Statement").upper()
            yield _problem(
                statement.span, verb, "the tensors of its model are whole on every rank, and not looked into"
            )


def _unsupported_split(statement: SplitStatement) -> Iterator[Problem]:
    for dim in statement.dims:
        if dim.text != "batch":
            yield _problem(dim.span, f"SPLIT {dim.text}", "the operators of its model are not known")
    for clause, element in (("OF", statement.table), ("WHERE", statement.where), ("ON", statement.on)):
        if element is not None:
            yield _problem(element.span, f"SPLIT ... {clause}", "every rank computes the whole model")


def _unsupported_reduction(statement: ReduceStatement) -> Iterator[Problem]:
    using = statement.using
    if using is not None and using.name.text not in _ROUTES:
        yield _problem(
            using.span, f"REDUCE grads USING {using.name.text}", "shares are summed in the fixed tree"
        )
    clauses = {
        "BUCKET": statement.span if statement.bucket_bytes is not None else None,
        "WHERE": statement.where.span if statement.where else None,
        "COMPRESS": statement.compress.span if statement.compress else None,
        "IN": statement.wire.span if statement.wire else None,
        "ON": statement.on.span if statement.on else None,
    }
    for clause, span in clauses.items():
        if span is not None:
            yield _problem(span, f"REDUCE ... {clause}", "all gradients are summed as one vector in fp32")


def _problem(span: Span, what: str, reason: str) -> Problem:
    return Problem(span=span, message=f"{what} cannot be given to a script: {reason}", hint=_HINT)
