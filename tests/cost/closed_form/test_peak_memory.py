"""Memory by closed forms, against published arithmetic."""

from collections.abc import Callable

import numpy as np
import pytest

from trimtab.cost.closed_form import MEMORY_CONSTANTS, Cases, PeakMemory, expected, peak_memory

CaseMaker = Callable[..., Cases]

EXACT = {"base_gb": 0.0, "bucket_gb": 0.0}
"""Nothing but what a step keeps."""


def held(cases: Cases, **changes: float) -> PeakMemory:
    values = {**expected(MEMORY_CONSTANTS), **{name: np.asarray(value) for name, value in changes.items()}}
    return peak_memory(cases, values)


LLAMA_70B = {
    "layers": 80, "embed": 8192, "heads": 64, "kv_heads": 8, "mlp": 28672, "mlp_inputs": 2, "vocab": 32000,
    "is_tied": 0, "devices": 1, "tensor": 1, "pipeline": 1, "batch": 1,
}  # fmt: skip


def test_the_states_of_70b_take_1_2_terabytes(case: CaseMaker) -> None:
    """18 bytes a parameter of 68.98e9, norms left out: weights alone are 138 GB of it."""
    whole = held(case(**LLAMA_70B, store=0)).state_bytes.item()
    assert whole == pytest.approx(18 * 68.98e9, rel=1e-3)


@pytest.mark.parametrize(
    ("store", "per_parameter"), [(0, 6 + 12), (1, 6 + 12 / 64), (2, 2 + 16 / 64), (3, 18 / 64)]
)
def test_what_is_stored_in_pieces_is_divided(case: CaseMaker, store: int, per_parameter: float) -> None:
    """ZeRO (Rajbhandari et al. 2020, figure 1), with gradients kept in fp32 beside those of the backward pass."""
    cases = case(**{**LLAMA_70B, "devices": 64}, store=store)
    assert held(cases).state_bytes.item() == pytest.approx(per_parameter * 68.98e9, rel=1e-3)


def test_activations_of_a_layer_are_korthikantis(case: CaseMaker) -> None:
    """Equation 2 for GPT-3 on 8 ranks: s b h (10 + 24 / 8 + 5 a s / (h 8)) bytes a layer, 96 layers."""
    cases = case(pipeline=1, devices=8, recompute=0, batch=1, vocab=0)
    bytes_kept = 2048 * 12288 * (10 + 24 / 8 + 5 * 96 * 2048 / (12288 * 8)) * 96
    assert held(cases).first_bytes.item() == pytest.approx(bytes_kept)


def test_fused_attention_leaves_selective_recompute_less_to_save(case: CaseMaker) -> None:
    """Scores are most of what is kept for GPT-3's heads, and nothing of it once attention is fused."""
    unfused, fused = (
        held(
            case(pipeline=1, devices=8, recompute=0, batch=1, vocab=0, is_fused_attention=flag)
        ).first_bytes.item()
        for flag in (0, 1)
    )
    assert unfused / fused == pytest.approx(1 + 10 / 13, rel=1e-6)


def test_the_first_stage_keeps_as_many_microbatches_as_there_are_stages(case: CaseMaker) -> None:
    few, many = (held(case(recompute=0, vocab=0, batch=batch * 16)).first_bytes.item() for batch in (2, 64))
    assert many == pytest.approx(few * 8 / 2)


def test_stages_differ(case: CaseMaker) -> None:
    """The last one holds the logits, the first one the microbatches in flight."""
    cases = case(recompute=0)
    memory = held(cases)
    assert memory.first_bytes > 4 * memory.last_bytes
    wide = held(case(recompute=1, vocab=250880, microbatch=8, batch=128))
    assert wide.last_bytes > wide.first_bytes
    assert wide.largest_bytes > wide.first_rank_bytes


def test_activations_follow_sequence_batch_and_recompute(case: CaseMaker) -> None:
    def kept(**changes: float) -> float:
        return held(case(**changes), **EXACT).first_bytes.item()

    assert kept(microbatch=2) == pytest.approx(2 * kept())
    assert kept(sequence=4096) > 2 * kept()
    assert kept(recompute=0) > 5 * kept(recompute=1)
