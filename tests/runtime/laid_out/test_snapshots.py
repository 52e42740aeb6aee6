"""Is a copy in memory that has changed since it was taken passed over?"""

import torch

from trimtab.runtime.laid_out.snapshots import Copy, Snapshots, checksum_of


def copy(step: int) -> Copy:
    flat = torch.arange(64, dtype=torch.float32) + step
    return Copy(size=2, position=1, step=step, updates=step, flat=flat, checksum=checksum_of(flat))


def test_a_copy_with_one_flipped_bit_is_not_offered() -> None:
    """Weights from it would be wrong, and nobody would know; what is older and sound is still a way back."""
    snapshots = Snapshots(2, domain_of=lambda rank: 0)
    older, newer = copy(4), copy(6)
    snapshots.keep(older)
    snapshots.keep(newer)
    assert [held.step for held in snapshots.holdings(0, first_slot=1)] == [4, 6]
    newer.flat.view(torch.int32)[5] ^= 1
    (held,) = snapshots.holdings(0, first_slot=1)
    assert (held.step, held.slot) == (4, 1)


def test_two_copies_of_a_ward_are_kept() -> None:
    """The newer one may not be everywhere yet."""
    snapshots = Snapshots(2, domain_of=lambda rank: 0)
    for step in (2, 4, 6):
        snapshots.keep(copy(step))
    assert [found.step for found in snapshots.copies] == [4, 6]
