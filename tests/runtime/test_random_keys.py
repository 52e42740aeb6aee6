import subprocess
import sys

import pytest
import torch
from torch import nn

from trimtab.runtime.random_keys import EMBEDDING_LAYER, KeyedDropout, KeyedRandom, RandomKey

KEY = {"seed": 1, "step": 2, "share": 3, "microbatch": 4, "layer": 5, "call": 6}


def masks(keyed: KeyedRandom, *, share: int, calls: int = 2) -> list[torch.Tensor]:
    dropout = KeyedDropout(0.3, 0, keyed)
    keyed.start_microbatch(seed=7, step=1, share=share, microbatch=0)
    return [dropout(torch.ones(1000)) for _ in range(calls)]


def test_a_key_is_the_same_number_in_every_process():
    """A key that depended on the process (Python's hash) would end same bits across ranks."""
    script = f"from trimtab.runtime.random_keys import RandomKey; print(RandomKey(**{KEY}).to_int())"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(child.stdout) == RandomKey(**KEY).to_int() == 3772256438029436540
    assert RandomKey(**KEY).to_int() < 2**63


@pytest.mark.parametrize("field", KEY)
def test_every_field_of_a_key_counts(field):
    """A field left out of the hash would give two pieces of work the same mask."""
    assert RandomKey(**KEY).to_int() != RandomKey(**{**KEY, field: KEY[field] + 1}).to_int()


def test_masks_repeat_for_a_microbatch_and_differ_between_shares_and_calls():
    """Recomputing a lost share must drop the same elements; other shares must not copy it."""
    keyed = KeyedRandom()
    first, second = masks(keyed, share=0)
    other, _ = masks(keyed, share=1)
    torch.rand(5)
    again, _ = masks(keyed, share=0)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, second)


def test_a_layers_draws_do_not_depend_on_other_layers():
    """A pipeline stage holds some layers only: its masks must be those of the whole model."""
    keyed = KeyedRandom()
    late = KeyedDropout(0.5, 3, keyed)
    keyed.start_microbatch(seed=0, step=0, share=0, microbatch=0)
    KeyedDropout(0.5, EMBEDDING_LAYER, keyed)(torch.ones(100))
    with_others = late(torch.ones(100))
    keyed.start_microbatch(seed=0, step=0, share=0, microbatch=0)
    assert torch.equal(with_others, late(torch.ones(100)))


def test_a_module_that_knows_no_keys_repeats_too():
    """nn.Dropout in a user's model would make a replayed microbatch differ."""
    keyed, dropout = KeyedRandom(), nn.Dropout(0.5)
    keyed.start_microbatch(seed=0, step=0, share=0, microbatch=0)
    first = dropout(torch.ones(100))
    torch.rand(3)
    keyed.start_microbatch(seed=0, step=0, share=0, microbatch=0)
    assert torch.equal(first, dropout(torch.ones(100)))


def test_dropout_scales_what_it_keeps_and_passes_its_mask_to_the_gradient():
    """An unscaled or undropped gradient trains a different model."""
    keyed = KeyedRandom()
    keyed.start_microbatch(seed=0, step=0, share=0, microbatch=0)
    x = torch.ones(100_000, requires_grad=True)
    y = KeyedDropout(0.2, 0, keyed)(x)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad)
    assert set(y.tolist()) == {0.0, 1.25}
    assert y.detach().mean().item() == pytest.approx(1.0, abs=0.01)


def test_dropout_is_the_identity_in_evaluation_and_at_zero():
    """Evaluation with dropout on reports a loss that is too high."""
    keyed, x = KeyedRandom(), torch.ones(10)
    assert KeyedDropout(0.5, 0, keyed).eval()(x) is x
    assert KeyedDropout(0.0, 0, keyed)(x) is x
