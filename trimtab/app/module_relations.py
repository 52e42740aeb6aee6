"""The tables of a class of the user's own: what torch tells of its tensors, before there is a plan."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.plan.relations.tensors import LANGUAGE_COLUMNS
from trimtab.plan.tables import Row, Table
from trimtab.plan.training import num_states
from trimtab.spec import LoadedJob
from trimtab.terms import Column, ColumnType, Relation, Schema


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One row of a class, and how the names of its axes are known.

    Args:
        row: As formulas see it.
        known_by: ``annotated`` or ``inferred``.
        reason: What the names follow from.
    """

    row: Row
    known_by: str
    reason: str


_COLUMNS: tuple[Column[Found], ...] = (
    *LANGUAGE_COLUMNS,
    Column(
        "dims_known_by",
        ColumnType.TEXT,
        "`annotated` by the class, or `inferred`",
        lambda found: found.known_by,
    ),
    Column(
        "dims_reason", ColumnType.TEXT, "what the names of the dims follow from", lambda found: found.reason
    ),
)
MODULE_SCHEMAS: tuple[Schema[Found], ...] = (
    Schema(name="params", meaning="a parameter of the class, tied ones once", columns=_COLUMNS),
    Schema(name="grads", meaning="the gradient of a parameter that is trained", columns=_COLUMNS),
    Schema(name="states", meaning="what the optimizer keeps of one", columns=_COLUMNS),
    Schema(name="activations", meaning="what a submodule gives back for one microbatch", columns=_COLUMNS),
    Schema(name="layers", meaning="a layer", columns=_COLUMNS),
    Schema(name="experts", meaning="an expert of a layer", columns=_COLUMNS),
)


def module_relations(loaded: LoadedJob) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
    """The tables of a job's own class, and what they leave out, in sentences.

    Torch is loaded for it: only it can tell the shapes. The class is looked for in the working folder too.

    Raises: InputError if the class cannot be found, or built without values.
    """
    # Only here, and only for such jobs: everything else answers without torch.
    from trimtab.runtime.module_rows import rows_of_module

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    job = loaded.job
    assert job.train.microbatch != "auto", "constants are resolved when the job file is read"
    tables = rows_of_module(
        str(job.model.module),
        arguments=job.model.args,
        batch=job.train.microbatch,
        sequence=job.data.sequence,
        num_states=num_states(job.train.optimizer),
        compute=job.train.compute.value,
    )
    found = [
        Found(row=sourced.row, known_by=sourced.provenance.value, reason=sourced.reason)
        for sourced in tables.rows
    ]
    return tuple(_relation(schema, found) for schema in MODULE_SCHEMAS), tables.notes


def _relation(schema: Schema[Found], found: Iterable[Found]) -> Relation:
    table = Table(schema.name)
    mine = [row for row in found if row.row.table is table]
    return schema.filled(lambda: mine)
