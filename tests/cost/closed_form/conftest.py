"""Plans as numbers."""

from collections.abc import Callable

import pytest

from trimtab.cost.closed_form import Cases

GPT3 = {
    "layers": 96, "embed": 12288, "heads": 96, "kv_heads": 96, "head_size": 128, "mlp": 49152, "mlp_inputs": 1,
    "vocab": 51200, "is_tied": 1, "experts": 0, "top_k": 0, "shared_mlp": 0,
    "sequence": 2048, "batch": 1536, "microbatch": 1,
    "devices": 1024, "tensor": 8, "pipeline": 8, "virtual": 1, "fill": 1, "keeps_all": 0, "ends_together": 0, "flushes": 1,
    "context": 1, "expert": 1, "whole_experts": 0, "store": 1,
    "recompute": 1, "recompute_scores": 0, "sequence_parallel": 0, "is_asynchronous": 0,
    "product_flops_per_s": 271.2e12, "attention_flops_per_s": 271.2e12, "memory_bytes_per_s": 2e12,
    "multiprocessors": 108, "island_devices": 8, "island_bytes_per_s": 300e9, "site_bytes_per_s": 25e9,
    "is_fused_attention": 0, "is_fine_scaled": 0, "weight_bytes": 2, "gradient_bytes": 4, "state_bytes": 12,
    "exchanged_bytes": 2, "keeps_gathered": 0,
}  # fmt: skip
"""GPT-3 175B on 1,024 A100 as in Narayanan et al. 2021, section 5.1."""


@pytest.fixture
def case() -> Callable[..., Cases]:
    """GPT-3, with fields changed."""
    return lambda **changes: Cases.of({**GPT3, **changes})
