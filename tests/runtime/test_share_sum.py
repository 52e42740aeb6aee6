"""The fixed tree, with every rank in one process: who owns what must not change a bit of the sum."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimtab.plan import leaf_capacity, piece_elements
from trimtab.policy import shares_of
from trimtab.runtime.process_groups import Group, Interrupt, Rendezvous, connect_store
from trimtab.runtime.share_sum import ShareSum

CPU = torch.device("cpu")


def leaves_of(num_shares: int, length: int, capacity: int) -> list[Tensor]:
    """Gradients whose sum depends on the order of addition."""
    generator = torch.Generator().manual_seed(num_shares)
    scales = torch.logspace(-4, 4, num_shares)
    leaves = torch.zeros(num_shares, capacity)
    leaves[:, :length] = torch.randn(num_shares, length, generator=generator) * scales[:, None]
    return list(leaves)


def sum_alone(leaves: list[Tensor], length: int) -> Tensor:
    group = Group(members=(0,), rank=0, epoch=1, store=None, kind="cpu", interrupt=Interrupt())
    total = ShareSum(
        num_shares=len(leaves), length=length, capacity=leaves[0].numel(), group=group, device=CPU
    )
    piece = total.reduce(dict(enumerate(leaves)), [0] * len(leaves), lambda: None)
    return total.gather(piece, lambda: None)[:length].clone()


def tree_by_hand(values: list[Tensor]) -> Tensor:
    """Neighbours pairwise, the odd one moves up."""
    while len(values) > 1:
        pairs = [values[i] + values[i + 1] for i in range(0, len(values) - 1, 2)]
        values = pairs + ([values[-1]] if len(values) % 2 else [])
    return values[0]


@pytest.mark.parametrize("num_shares", [1, 2, 3, 4, 5, 7, 8])
def test_one_rank_adds_in_the_fixed_tree(num_shares: int) -> None:
    """The reference that every other layout must equal."""
    leaves = leaves_of(num_shares, 100, 128)
    expected = tree_by_hand([leaf[:100] for leaf in leaves])
    assert torch.equal(sum_alone(leaves, 100), expected)
    if num_shares > 3:
        assert not torch.equal(torch.stack(leaves).sum(0)[:100], expected), (
            "these leaves can tell orders apart"
        )


def test_leaves_are_not_written() -> None:
    """They are the backup gradients: after a loss they are added again."""
    leaves = leaves_of(4, 100, 128)
    before = [leaf.clone() for leaf in leaves]
    sum_alone(leaves, 100)
    assert all(torch.equal(a, b) for a, b in zip(leaves, before, strict=True))


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_any_ownership_over_real_groups_gives_the_same_bits(data: st.DataObject) -> None:
    """Ranks as threads, gloo for real; contiguous or not, one share each, many, or none."""
    num_shares = data.draw(st.integers(3, 8))
    size = data.draw(st.integers(2, 3))
    owners = data.draw(st.lists(st.integers(0, size - 1), min_size=num_shares, max_size=num_shares))
    length = 100
    capacity = leaf_capacity(length, size)
    leaves = leaves_of(num_shares, length, capacity)
    rendezvous = Rendezvous()
    totals: dict[int, Tensor] = {}

    def rank_main(rank: int) -> None:
        store = rendezvous.store if rank == 0 else connect_store("127.0.0.1", rendezvous.port)
        members = tuple(range(size))
        group = Group(members=members, rank=rank, epoch=1, store=store, kind="cpu", interrupt=Interrupt())
        total = ShareSum(num_shares=num_shares, length=length, capacity=capacity, group=group, device=CPU)
        piece = total.reduce({s: leaves[s] for s in shares_of(rank, owners)}, owners, lambda: None)
        totals[rank] = total.gather(piece, lambda: None)[:length].clone()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    expected = sum_alone(leaves, length)
    assert all(torch.equal(totals[rank], expected) for rank in range(size))


@given(st.integers(1, 5000), st.integers(1, 16))
def test_pieces_cover_the_length_and_stay_aligned(length: int, pieces: int) -> None:
    """A piece at an odd element would take other vector kernels."""
    each = piece_elements(length, pieces)
    assert each % 16 == 0
    assert each * pieces >= length
    assert leaf_capacity(length, pieces) >= each * pieces
