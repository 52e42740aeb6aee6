"""What do the words mean?"""

from trimtab.terms.addresses import read_address
from trimtab.terms.choices import ComputeType, OnLoss, Phase, RunState, WeightType
from trimtab.terms.errors import ExitCode, InfeasibleError, InputError, RunError, TrimtabError
from trimtab.terms.ledger_classes import Clock, Layer, LedgerClass
from trimtab.terms.names import nearest_name
from trimtab.terms.relations import Cell, Column, ColumnType, Relation, Schema, unique_names
from trimtab.terms.spans import Span, caret_under
from trimtab.terms.units import format_bytes, format_seconds, parse_bytes, parse_seconds

__all__ = [
    "Cell",
    "Clock",
    "Column",
    "ColumnType",
    "ComputeType",
    "ExitCode",
    "InfeasibleError",
    "InputError",
    "Layer",
    "LedgerClass",
    "OnLoss",
    "Phase",
    "Relation",
    "RunError",
    "RunState",
    "Schema",
    "Span",
    "TrimtabError",
    "WeightType",
    "caret_under",
    "format_bytes",
    "format_seconds",
    "nearest_name",
    "parse_bytes",
    "parse_seconds",
    "read_address",
    "unique_names",
]
