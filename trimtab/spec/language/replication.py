"""Whether ranks hold the same tensors and differ in their samples only."""

from trimtab.spec.language.syntax import MeshStatement, Program, ReduceStatement, SplitStatement, Statement

_ROUTES = ("native", "tree", "default")


def is_replicated(program: Program) -> bool:
    """Whether a program splits the batch and nothing else, and sums gradients whole, by the routes native and tree."""
    return all(_is_replicated(statement) for statement in program.statements)


def _is_replicated(statement: Statement) -> bool:
    match statement:
        case MeshStatement(axes=axes):
            return all(axis.within is None for axis in axes)
        case SplitStatement(dims=dims, table=table, where=where, on=on):
            return all(dim.text == "batch" for dim in dims) and (table, where, on) == (None, None, None)
        case ReduceStatement(
            using=using, bucket_bytes=bucket, where=where, compress=compress, wire=wire, on=on
        ):
            route = using.name.text if using is not None else "default"
            return route in _ROUTES and (bucket, where, compress, wire, on) == (None,) * 5
        case _:
            return False
