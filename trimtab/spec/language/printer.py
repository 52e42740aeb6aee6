"""A syntax tree back as text."""

from trimtab.spec.language.syntax import (
    MeshStatement,
    Name,
    Program,
    ReduceStatement,
    SplitStatement,
    Statement,
)


def print_program(program: Program) -> str:
    """The program in canonical form, one statement a line; parsing it gives an equal program."""
    return "".join(f"{print_statement(statement)}\n" for statement in program.statements)


def print_statement(statement: Statement) -> str:
    """One statement in canonical form, without a line end."""
    match statement:
        case MeshStatement():
            sizes = (f"{axis.axis.text} {'*' if axis.size is None else axis.size}" for axis in statement.axes)
            return f"MESH {', '.join(sizes)}"
        case SplitStatement():
            return f"SPLIT {_names(statement.dims)} OVER {_names(statement.axes)}"
        case ReduceStatement():
            route = f" USING {statement.using.name.text}" if statement.using else ""
            return f"REDUCE {statement.table.text} OVER {_names(statement.axes)}{route}"
        case _:
            raise NotImplementedError(statement)


def _names(names: tuple[Name, ...]) -> str:
    return ", ".join(name.text for name in names)
