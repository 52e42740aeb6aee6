"""What the language can say and a model of the user's own cannot be given: a class, or one inside a training loop.

Trimtab does not know the operators of such a model: it runs them whole, on every rank, each on other samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.spec.errors import Problem
from trimtab.spec.language.presets import name_uses
from trimtab.spec.language.syntax import (
    MeshStatement,
    Program,
    ReduceStatement,
    SplitStatement,
    Statement,
    StoreStatement,
)
from trimtab.spec.language.wording import first_problems
from trimtab.terms import Span

_ROUTES = ("native", "tree", "default")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Owner:
    """Whose model it is.

    Args:
        name: What errors call it.
        given: What it can be given.
        is_stored: Whether its tensors can be stored in pieces.
    """

    name: str
    given: str
    is_stored: bool

    def problem(self, span: Span, what: str, reason: str) -> Problem:
        """What cannot be given, and what can."""
        return Problem(span=span, message=f"{what} cannot be given to {self.name}: {reason}", hint=self.given)


_SCRIPT = _Owner(
    name="a script",
    given="A script is given replicas and shares: MESH, SPLIT batch, REDUCE grads USING tree.",
    is_stored=False,
)
_CLASS = _Owner(
    name="a class of your own",
    given="It is given replicas, shares and storage: MESH, SPLIT batch, REDUCE grads USING tree, STORE.",
    is_stored=True,
)


def unsupported_beside_script(program: Program) -> list[Problem]:
    """The statements and clauses that no script can be given, each at its place, with the reason."""
    return _all_unsupported(program, _SCRIPT)


def unsupported_beside_class(program: Program) -> list[Problem]:
    """The same of a ``module:Class``: its tensors can be stored in pieces, and its operators cannot be split."""
    return _all_unsupported(program, _CLASS)


def _all_unsupported(program: Program, owner: _Owner) -> list[Problem]:
    found = (problem for statement in program.statements for problem in _unsupported(statement, owner))
    return name_uses(first_problems(found), program)


def _unsupported(statement: Statement, owner: _Owner) -> Iterator[Problem]:
    match statement:
        case MeshStatement():
            return
        case SplitStatement():
            yield from _unsupported_split(statement, owner)
        case ReduceStatement():
            yield from _unsupported_reduction(statement, owner)
        case StoreStatement() if owner.is_stored:
            return
        case _:
            verb = type(statement).__name__.removesuffix("Statement").upper()
            reason = (
                "its operators are not known"
                if owner.is_stored
                else "the tensors of its model are whole on every rank, and not looked into"
            )
            yield owner.problem(statement.span, verb, reason)


def _unsupported_split(statement: SplitStatement, owner: _Owner) -> Iterator[Problem]:
    for dim in statement.dims:
        if dim.text != "batch":
            yield owner.problem(dim.span, f"SPLIT {dim.text}", "the operators of its model are not known")
    for clause, element in (("OF", statement.table), ("WHERE", statement.where), ("ON", statement.on)):
        if element is not None:
            yield owner.problem(element.span, f"SPLIT ... {clause}", "every rank computes the whole model")


def _unsupported_reduction(statement: ReduceStatement, owner: _Owner) -> Iterator[Problem]:
    using = statement.using
    if using is not None and using.name.text not in _ROUTES:
        yield owner.problem(
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
            yield owner.problem(span, f"REDUCE ... {clause}", "its gradients are summed whole, in fp32")
