"""What the tests of migrations share: settings read as a user would have them read, and jobs read back.

The files in megatron/ hold the settings of public trainings, each with its repository and path in the first line.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.app.migrating import network_fields
from trimtab.catalog import network, network_names
from trimtab.plan.layout import network_of
from trimtab.spec import LoadedJob, load_job
from trimtab.spec.migration import Exportable, Migration, Setting, Source, importer_for, render_job

NETWORKS = {name: network_fields(network(name)) for name in network_names()}

FACTS = Path(__file__).with_name("megatron")
REFUSED = ("gpt-neox-20b.yaml", "nemo-t5-11b.yaml", "t5-220m.sh")
"""Configurations of trainings that are none of Trimtab's, or none of Megatron-LM's."""

CONFIGURATIONS = tuple(
    path.name
    for path in sorted(FACTS.iterdir())
    if path.is_file() and path.suffix != ".py" and path.name not in REFUSED
)

_FLAGS = {
    # The recipe in code holds the shape; the file changes it only.
    "bridge-llama32-1b.yaml": "--num-layers 16 --hidden-size 2048 --num-attention-heads 32 --num-query-groups 8 "
    "--ffn-hidden-size 8192 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--rotary-base 500000 --vocab-size 128256 --hidden-dropout 0 --attention-dropout 0",
    # Variables that another script sets for each system.
    "gpt3-175b-mlperf.sh": "--global-batch-size 1536 --lr 2e-5 --min-lr 2e-6",
}
"""Flags that a user has to add to a file."""

_DEVICES = {"deepseek-v3-1024-h100.yaml": 1024, "gpt3-175b-deepspeed.sh": 8, "bridge-llama32-1b.yaml": 8}
"""Devices where the file counts none and the degrees need fewer than the training had."""


def migrated(name: str) -> Migration:
    """The migration of a configuration, with the flags and devices that its user has to add."""
    source = Source(
        text=(FACTS / name).read_text(encoding="utf-8"),
        name=name,
        flags=tuple(_FLAGS.get(name, "").split()),
        devices=_DEVICES.get(name),
        networks=NETWORKS,
    )
    return importer_for("megatron")(source)


def loaded(migration: Migration) -> LoadedJob:
    """The job of a migration, read back by our own loader."""
    return load_job(render_job(migration), source=f"{migration.job['run']}.yaml", read=lambda path: "")


def exportable(job: LoadedJob) -> Exportable:
    """A loaded job with what only the catalog knows of it."""
    found = network_of(job.job)
    return Exportable(loaded=job, name="job.yaml", network=network_fields(found) if found else {})


def fates(migration: Migration) -> dict[str, Setting]:
    """The settings of a migration by flag; of one that was given twice the last."""
    return {setting.flag: setting for setting in migration.settings}


SHAPE = (
    "--num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128"
)
"""The least that a network needs."""

Migrate = Callable[..., Migration]


@pytest.fixture(scope="session")
def migrate() -> Migrate:
    """Read settings of Megatron-LM: flags as text on top of a small network, or a whole file."""

    def read(
        flags: str = "", *, text: str = "", name: str = "run.sh", devices: int | None = None
    ) -> Migration:
        given = f"{flags if text else f'{SHAPE} {flags}'}".split()
        source = Source(text=text, name=name, flags=tuple(given), devices=devices, networks=NETWORKS)
        return importer_for("megatron")(source)

    return read
