"""What ``explain`` says of a class of the user's own whose tensors are stored in pieces."""

import os
import sys

from trimtab.app.compiling import cluster_of
from trimtab.app.machines import MachineFacts
from trimtab.cost.explanation.document import StorageFacts, StoredTableFacts, TransferFacts
from trimtab.cost.explanation.places import at
from trimtab.plan.layout import BYTES_PER_ELEMENT
from trimtab.plan.module_storage import ROOT, ModuleStorage, StepShape, transfers_of
from trimtab.plan.parameters import TABLES
from trimtab.plan.tables import Table
from trimtab.plan.training import num_states
from trimtab.spec import Job, LoadedJob

_ASSUMPTIONS = (
    "activations, and so the largest memory of a step, are not known: operators of a class of your own are not",
    "a step that is not applied sends no updated parameters; a layer that no gradient passes is gathered once",
    "when a rank starts, the class is built whole, and then cut",
)


def stored_module(loaded: LoadedJob, machine: MachineFacts) -> ModuleStorage:
    """How a job stores its class; torch is loaded for it, and the class looked for in the working folder too.

    Raises: InputError for a class that cannot be found or built without values; StrategyError at the statements that do
        not fit its tensors.
    """
    # Only here, and only for such jobs: everything else answers without torch.
    from trimtab.runtime.stored import storage_of_class

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return storage_of_class(loaded.job, loaded.program, cluster=cluster_of(loaded, machine))


def storage_facts(job: Job, storage: ModuleStorage) -> StorageFacts:
    """What each rank keeps and sends."""
    shares, microbatch = job.fault_tolerance.shares, job.train.microbatch
    assert shares != "auto", "constants are resolved when the job file is read"
    assert microbatch != "auto", "constants are resolved when the job file is read"
    shape = StepShape.of(
        batch=job.train.batch,
        microbatch=microbatch,
        num_parts=storage.num_ranks if shares == "off" else shares,
        num_ranks=storage.num_ranks,
    )
    return StorageFacts(
        num_ranks=storage.num_ranks,
        layers=sum(unit != ROOT for unit in storage.units()),
        tables=tuple(_table(job, storage, table) for table in TABLES),
        gathered_bytes=BYTES_PER_ELEMENT * storage.gathered_elements(),
        transfers=tuple(
            TransferFacts(
                what=found.what, operation=found.operation, times=found.times, sent_bytes=found.sent_bytes
            )
            for found in transfers_of(storage, shape)
        ),
        assumptions=_ASSUMPTIONS,
    )


def _table(job: Job, storage: ModuleStorage, table: Table) -> StoredTableFacts:
    each = BYTES_PER_ELEMENT * (num_states(job.train.optimizer) if table is Table.STATES else 1)
    whole = sum(p.numel for p in storage.parameters if p.is_trained or table is not Table.GRADS)
    line = storage.lines.get(table)
    if line is None and storage.keeps_in_pieces(table):
        line = storage.lines.get(Table.PARAMS)
    return StoredTableFacts(
        table=table,
        held_bytes=each * storage.held_elements(table),
        whole_bytes=each * whole,
        decided_by=at(line) if line is not None else "default",
    )
