"""What torch keeps for the backward pass of the decoder, beside what a plan says that it keeps.

The plan counts the tensors that gradients need. Eager torch keeps more: under autocast the residual stream stays in
fp32; rotary positions and SwiGLU keep what is between their steps.
"""

import pytest
import torch

from tests.plan.conftest import plan_of
from trimtab.catalog import network
from trimtab.cost.counts import counts_of
from trimtab.cost.memory import MemoryCounter, Moment
from trimtab.runtime.decoder import Decoder, loss_sum
from trimtab.runtime.random_keys import KeyedRandom

__all__ = ["plan_of"]


def kept_by_torch(model: str, *, is_bf16: bool) -> int:
    """Bytes of every storage that autograd saves for one microbatch, parameters left out."""
    chosen = network(model, dropout=0.0)
    decoder = Decoder(chosen, KeyedRandom())
    decoder.initialize(0)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.arange(2 * 128).reshape(2, 128) % chosen.vocab
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
            logits = decoder(tokens)
        loss_sum(lambda _: logits, tokens, tokens)
    return sum(kept.values())


@pytest.mark.parametrize(
    ("model", "compute", "low", "high"),
    [
        ("gpt-3m", "fp32", 0.99, 1.01),
        ("gpt-3m", "bf16", 1.2, 1.4),
        ("llama-3m", "fp32", 1.1, 1.3),
        ("llama-3m", "bf16", 1.35, 1.55),
    ],
)
def test_torch_keeps_what_the_plan_says_and_no_more_than_is_told(
    model: str, compute: str, low: float, high: float, plan_of
) -> None:
    """``explain`` names these ratios: a verdict that a plan fits must be read with them."""
    plan = plan_of("", model=model, devices=1, batch=2, microbatch=2, compute=compute, dropout=0.0)
    forward = MemoryCounter(plan, counts_of(plan), num_leaves=1).of(0).moments[Moment.FORWARD]
    ratio = kept_by_torch(model, is_bf16=compute == "bf16") / (forward.activations + forward.gathered)
    assert low < ratio < high
