"""Can closed forms say that devices do more than they can?"""

from collections.abc import Callable

import numpy as np
import pytest

from trimtab.catalog import accelerator, accelerator_names
from trimtab.cost.closed_form import TIME_CONSTANTS, Cases, layer_times, step_times
from trimtab.cost.stage_times import best_flops_per_s

CaseMaker = Callable[..., Cases]

LONGER_IS_BETTER = frozenset(
    {"product_share", "attention_share", "tensor_bandwidth", "expert_bandwidth", "data_bandwidth"}
)
"""Constants whose highest value makes a step shortest; of all others the lowest does."""

KINDS = [
    name
    for name in accelerator_names()
    if accelerator(name).bf16_flops_per_s and accelerator(name).memory_bytes_per_s
]


def shortest() -> dict[str, np.ndarray]:
    """Every constant as good as physics allows."""
    return {
        constant.name: np.asarray(constant.high if constant.name in LONGER_IS_BETTER else constant.low)
        for constant in TIME_CONSTANTS
    }


def useful_flops(cases: Cases) -> float:
    """Of a step, by the convention of kernels: half of the scores, nothing computed again, no lookup of embeddings."""
    matrices = cases.embed * (2 * cases.heads + 2 * cases.kv_heads) * cases.head_size
    matrices = matrices + cases.embed * cases.mlp * (1 + cases.mlp_inputs)
    scores = 2 * cases.sequence * cases.heads * cases.head_size / 2
    per_token = 2 * (cases.layers * (matrices + scores) + cases.embed * cases.vocab)
    return float(3 * per_token * cases.batch * cases.sequence)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sequence", [2048, 16384, 131072])
def test_no_constants_make_a_device_faster_than_its_peak(case: CaseMaker, kind: str, sequence: int) -> None:
    """S-PLN-06: at 16k the full convention counted 1.21 of the peak; by that of kernels it is never above 1."""
    device = accelerator(kind)
    best = best_flops_per_s(device, "bf16")
    assert best is not None
    assert device.bf16_flops_per_s is not None
    assert device.memory_bytes_per_s is not None
    cases = case(
        sequence=sequence, batch=64, recompute=0, devices=1, tensor=1, pipeline=1, store=0, is_fused_attention=1,
        product_flops_per_s=best, attention_flops_per_s=best, memory_bytes_per_s=device.memory_bytes_per_s,
        multiprocessors=device.multiprocessors or 128,
    )  # fmt: skip
    values = shortest()
    seconds = step_times(cases, layer_times(cases, values), values).total_s.item()
    utilisation = useful_flops(cases) / (seconds * device.bf16_flops_per_s)
    assert 0.3 < utilisation < 1.0
