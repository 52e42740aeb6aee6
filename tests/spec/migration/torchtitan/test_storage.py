"""FSDP."""

import pytest

from tests.spec.migration.answers import fate, formulas
from trimtab.spec.migration import Fate


def stored(migration):
    return [line for line in formulas(migration) if line.startswith(("STORE", "OFFLOAD", "KEEP", "REDUCE"))]


@pytest.mark.parametrize(
    ("policy", "pipeline", "tables"),
    [
        ("always", 1, "params, grads, states"),
        ("default", 1, "params, grads, states"),
        ("never", 1, "grads, states"),
        ("always", 2, "params, grads, states"),
        ("default", 2, "grads, states"),
    ],
)
def test_what_stays_gathered_is_not_stored_in_pieces(convert, policy, pipeline, tables):
    """With a pipeline the default gathers once a step, not once a microbatch."""
    text = f'[parallelism]\nfsdp_reshard_after_forward = "{policy}"\npipeline_parallel_degree = {pipeline}'
    assert stored(convert(text)) == [f"STORE {tables} OVER dp"]


def test_offload_and_types(convert):
    """CPU offload takes parameters, gradients and states."""
    text = '[training]\nenable_cpu_offload = true\ndtype = "bfloat16"\nmixed_precision_reduce = "bfloat16"'
    assert stored(convert(text))[1:] == [
        "REDUCE grads OVER dp IN bf16",
        "OFFLOAD params, grads, states TO host",
        "KEEP params, grads, states IN bf16",
    ]


def test_products_in_fp32(convert):
    """bf16 is the default there, not here."""
    migration = convert('[training]\nmixed_precision_param = "float32"')
    assert migration.job["train"]["compute"] == "fp32"
    assert fate(migration, "training.mixed_precision_param") is Fate.CARRIED
