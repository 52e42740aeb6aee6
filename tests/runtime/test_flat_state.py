"""Flat vectors: a view that overlaps its neighbour, or an odd start, would change bits without an error."""

import torch
from torch import nn

from trimtab.plan import ALIGNMENT
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.optimizers import AdamW, build_optimizer


def make_state() -> tuple[FlatState, nn.Module]:
    module = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.Linear(3, 7, bias=False))
    return FlatState(list(module.named_parameters())), module


def test_every_parameter_starts_aligned_and_none_overlap() -> None:
    """Vectorised kernels must treat an element alike wherever the vector is cut."""
    state, _ = make_state()
    end = 0
    for entry in state.entries:
        assert entry.offset % ALIGNMENT == 0
        assert entry.offset >= end
        end = entry.offset + entry.numel
    assert state.num_elements % ALIGNMENT == 0
    assert state.parameters.data_ptr() % 64 == 0


def test_matrices_decay_and_vectors_do_not() -> None:
    """Weight decay on norms and biases is a known silent fault."""
    state, _ = make_state()
    decayed = {entry.name for entry in state.entries if entry.offset < state.decay_end}
    assert decayed == {"0.weight", "2.weight"}


def test_what_is_frozen_does_not_decay() -> None:
    """A pretrained embedding that is kept as it is would shrink by the rate times the decay in every step."""
    module = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7, bias=False))
    module[0].weight.requires_grad_(False)
    before = module[0].weight.clone(), module[1].weight.clone()
    state = FlatState(list(module.named_parameters()))
    decayed, others = state.groups(state.parameters)
    optimizer = build_optimizer(AdamW(lr=0.1, weight_decay=0.5), decayed=[decayed], undecayed=[others])
    optimizer.step(state.groups(torch.zeros_like(state.parameters)), lr=0.1)
    assert torch.equal(module[0].weight, before[0])
    torch.testing.assert_close(module[1].weight.detach(), before[1] * (1 - 0.1 * 0.5))


def test_the_module_lives_in_the_flat_vector() -> None:
    """An update of the vector must be an update of the model, and gradients must land in the leaf."""
    state, module = make_state()
    state.parameters.fill_(0.5)
    assert all(bool((p == 0.5).all()) for p in module.parameters())
    leaf = torch.zeros(state.num_elements)
    module(torch.ones(2, 5)).sum().backward()
    state.move_gradients_to(leaf)
    once = leaf.clone()
    assert float(once.abs().sum()) > 0
    module(torch.ones(2, 5)).sum().backward()
    torch.testing.assert_close(leaf, 2 * once)


def test_a_parameter_without_a_gradient_gives_zeros() -> None:
    """A leaf is recycled: what an earlier share left in it must not be added again."""
    state, module = make_state()
    leaf = torch.full((state.num_elements,), 7.0)
    state.drop_gradients()
    module[0](torch.ones(2, 5)).sum().backward()
    state.move_gradients_to(leaf)
    views = state.named_views(leaf)
    assert float(views["2.weight"].abs().sum()) == 0
    assert float(views["0.weight"].abs().sum()) > 0


def test_views_of_the_two_groups_are_the_views_of_the_whole() -> None:
    """Optimizer state is kept in two vectors and saved by logical name: a shifted view would swap moments."""
    state, _ = make_state()
    flat = torch.arange(float(state.num_elements))
    whole = state.named_views(flat)
    parts = state.named_group_views(*state.groups(flat))
    assert list(whole) == list(parts)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
