"""What carries pieces between the ranks of one epoch, with its waits on the clock."""

import torch
from torch import Tensor

from trimtab.runtime.laid_out import Timed
from trimtab.runtime.process_groups import Group


class Carrier:
    """Collectives of one epoch over all its ranks. A rank alone sends nothing.

    Args:
        group: All ranks.
        timed: Is told of waits.
    """

    def __init__(self, group: Group, timed: Timed) -> None:
        self.group, self._timed = group, timed

    @property
    def place(self) -> int:
        """Of this rank among the members."""
        return self.group.members.index(self.group.rank)

    def gather(self, row: Tensor) -> Tensor:
        """The rows of all ranks, [ranks, elements]."""
        if self.group.size == 1:
            return row.view(1, -1)
        rows = torch.empty((self.group.size, row.numel()), dtype=row.dtype, device=row.device)
        with self._timed.waiting("all_gather", self.group.members):
            self.group.all_gather(rows.view(-1), row)
        return rows

    def swap(self, rows: Tensor) -> Tensor:
        """Row i goes to rank i; what comes back is from rank i in row i."""
        if self.group.size == 1:
            return rows
        found, length = torch.empty_like(rows), rows.shape[1]
        with self._timed.waiting("all_to_all", self.group.members):
            self.group.all_to_all(
                found.view(-1),
                rows.view(-1),
                output_splits=[length] * self.group.size,
                input_splits=[length] * self.group.size,
            )
        return found

    def collect(self, piece: Tensor) -> Tensor | None:
        """The pieces of all ranks on the lead, [ranks, elements]; None on the others."""
        group, length = self.group, piece.numel()
        if group.size == 1:
            return piece.view(1, -1)
        is_lead = self.place == 0
        found = torch.empty((group.size if is_lead else 0, length), dtype=piece.dtype, device=piece.device)
        with self._timed.waiting("all_to_all", group.members):
            group.all_to_all(
                found.view(-1),
                piece.contiguous(),
                output_splits=[length if is_lead else 0] * group.size,
                input_splits=[length, *[0] * (group.size - 1)],
            )
        return found if is_lead else None

    def add_up(self, numbers: Tensor) -> None:
        """Sum over the ranks, in place."""
        with self._timed.waiting("all_reduce", self.group.members):
            self.group.all_reduce(numbers)
