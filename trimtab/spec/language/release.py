"""What the language can say and this release cannot run."""

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


def unsupported_by_runtime(program: Program) -> list[Problem]:
    """The statements and clauses that this release explains and does not run, each at its place.

    It runs replicated data parallelism: MESH, SPLIT batch, REDUCE grads by the routes native and tree.
    """
    found = (problem for statement in program.statements for problem in _unsupported(statement))
    return name_uses(first_problems(found), program)


def _unsupported(statement: Statement) -> Iterator[Problem]:
    match statement:
        case MeshStatement(axes=axes):
            for axis in axes:
                if axis.within is not None:
                    yield _problem(axis.within.span, "MESH ... WITHIN", "This release runs on one node.")
        case SplitStatement():
            yield from _unsupported_split(statement)
        case ReduceStatement():
            yield from _unsupported_reduction(statement)
        case _:
            verb = type(statement).__name__.removesuffix("Statement").upper()
            yield _problem(statement.span, verb, "This release runs MESH, SPLIT and REDUCE.")


def _unsupported_split(statement: SplitStatement) -> Iterator[Problem]:
    hint = "This release splits the batch: SPLIT batch OVER axis."
    for dim in statement.dims:
        if dim.text != "batch":
            yield _problem(dim.span, f"SPLIT {dim.text}", hint)
    for clause, element in (("OF", statement.table), ("WHERE", statement.where), ("ON", statement.on)):
        if element is not None:
            yield _problem(element.span, f"SPLIT ... {clause}", hint)


def _unsupported_reduction(statement: ReduceStatement) -> Iterator[Problem]:
    hint = f"This release sums by the routes {', '.join(_ROUTES)}: REDUCE grads OVER axis USING tree."
    using = statement.using
    if using is not None and using.name.text not in _ROUTES:
        yield _problem(using.span, f"REDUCE grads USING {using.name.text}", hint)
    if statement.bucket_bytes is not None:
        yield _problem(statement.span, "REDUCE ... BUCKET", hint)
    elements = {
        "WHERE": statement.where,
        "COMPRESS": statement.compress,
        "IN": statement.wire,
        "ON": statement.on,
    }
    for clause, element in elements.items():
        if element is not None:
            yield _problem(element.span, f"REDUCE ... {clause}", hint)


def _problem(span: Span, what: str, hint: str) -> Problem:
    return Problem(span=span, message=f"{what} is not in this release", hint=hint)
