"""What do the formulas of the strategy language say?"""

from trimtab.spec.language.meaning import (
    Layout,
    Mesh,
    Route,
    check_names,
    check_program,
    resolve_layout,
    resolve_mesh,
)
from trimtab.spec.language.parser import parse_located, parse_strategy
from trimtab.spec.language.printer import print_program
from trimtab.spec.language.syntax import (
    AxisSize,
    MeshStatement,
    Name,
    Program,
    ReduceStatement,
    SplitStatement,
    Statement,
)

__all__ = [
    "AxisSize",
    "Layout",
    "Mesh",
    "MeshStatement",
    "Name",
    "Program",
    "ReduceStatement",
    "Route",
    "SplitStatement",
    "Statement",
    "check_names",
    "check_program",
    "parse_located",
    "parse_strategy",
    "print_program",
    "resolve_layout",
    "resolve_mesh",
]
