"""What a run trains, as its loop and its checkpoints see it: weights, optimizer states and how ranks agree on them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.ledger import weights_digest
from trimtab.policy.wire import Form
from trimtab.runtime.errors import RankError
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.optimizers import Optimizer
from trimtab.runtime.process_groups import Group
from trimtab.runtime.weights.reading import Weights


class StateSource(Protocol):
    """A saved state, as those read it who go on from it."""

    def part(self, name: str) -> Weights:
        """The logical tensors of one part (``parameters``, ``exp_avg``, …)."""


Parts = Mapping[str, Mapping[str, Tensor]]
"""Logical tensors, fp32: by part (``parameters``, ``exp_avg``, …) and by parameter."""


_LEFTOVER = "leftover_"
RESIDUALS, FACTORS = f"{_LEFTOVER}residuals", f"{_LEFTOVER}factors"
"""What compression keeps between steps, by rank: what was not sent yet, and what PowerSGD goes on with."""


def is_leftover(part: str) -> bool:
    """Whether a part of a state means something in the layout only that made it."""
    return part.startswith(_LEFTOVER)


@dataclass(frozen=True, kw_only=True, slots=True)
class CaughtUp:
    """What all ranks of a new epoch go on from.

    Args:
        step: Committed steps.
        newest: Those of whoever has most; steps from ``step`` on that somebody had committed are computed again.
    """

    step: int
    newest: int


def fit_together(group: Group, *, is_torn: bool, committed: int) -> CaughtUp | None:
    """The step that the pieces of all ranks are of; None if somebody was interrupted in an update, or is behind."""
    found = torch.tensor([int(is_torn), committed, -committed], dtype=torch.int64)
    group.all_reduce(found, operation="max")
    somebody_torn, newest, oldest = found.tolist()
    if somebody_torn or newest != -oldest:
        return None
    return CaughtUp(step=int(newest), newest=int(newest))


def go_back_together(group: Group, load: Callable[[int | None], int], begin: Callable[[], None]) -> int:
    """Every rank reads its pieces of the checkpoint that the lead finds, or begins anew if there is none.

    Args:
        group: All ranks.
        load: Loads the checkpoint of a step, or the newest, into this rank; gives its step, 0 if there is none.
        begin: Makes the first weights again.

    Returns: The step.
    """
    lead = group.members[0]
    to_step = torch.tensor([load(None) if group.rank == lead else 0], dtype=torch.int64)
    group.broadcast(to_step, source=lead)
    step = int(to_step.item())
    if step and group.rank != lead:
        load(step)
    if not step:
        begin()
    return step


def as_lead_says(group: Group, lead_says: bool) -> bool:
    """What the first rank says."""
    word = torch.tensor([int(lead_says)], dtype=torch.int64)
    group.broadcast(word, source=group.members[0])
    return bool(word.item())


class RunState(Protocol):
    """Weights and optimizer states of one rank, whole or in pieces."""

    num_updates: int
    """Optimizer steps applied so far, as bias correction counts them."""

    @property
    def layout(self) -> str:
        """Whose the parts are for which ``is_leftover`` holds; empty where there are none."""

    def enter(self, group: Group) -> None:
        """An epoch of these ranks begins; they have caught up, or are going to go back."""

    def catch_up(self, group: Group, form: Form, committed: int, saved: Callable[[], int]) -> CaughtUp | None:
        """Bring all ranks of a new epoch to one state.

        Args:
            group: All of them, spares too.
            form: Of the epoch.
            committed: Steps that are in this rank's state.
            saved: The step of the newest complete checkpoint, 0 if there is none; the first rank is asked.

        Returns: What it is; None if only a checkpoint can, and all that take part must go back to one.
        """

    def take_back(self, group: Group, load: Callable[[int | None], int]) -> int:
        """All ranks go back to the newest checkpoint, or to the beginning if there is none.

        Args:
            group: All ranks.
            load: Loads the checkpoint of a step, or the newest, into this rank; gives its step, 0 if there is none.

        Returns: The step.
        """

    def agree(self, group: Group, lead_says: bool) -> bool:
        """What the lead says, for ranks that must do together what it decides."""

    def shapes(self) -> Parts:
        """All logical tensors, for names and shapes only."""

    def saved_by(self, group: Group) -> Mapping[int, Parts]:
        """Which rank saves what, the lead among them: names and shapes, each element of the state once.

        Boxes of tensors, where several ranks save, are named as ``checkpoint.pieces`` names them.
        """

    def saved(self) -> Parts:
        """What this rank saves: the tensors themselves, of the names and shapes of ``saved_by``."""

    def load(self, source: StateSource, *, is_same_layout: bool) -> None:
        """Take over this rank's part of a state that has exactly the names and shapes of ``shapes``.

        One whole tensor is in memory at a time, or the piece of one that this rank holds.

        Args:
            source: Of the state.
            is_same_layout: Whether it is of this ``layout``; else what is left over is not in it, and starts anew.
        """

    def is_finite(self) -> bool:
        """Whether the weights that this rank has hold neither nan nor inf."""

    def digest(self, group: Group) -> str:
        """SHA-256 of the master weights, over logical tensors in order of name; the same on every rank."""


class ReplicatedState:
    """Every rank has all of it, as flat vectors; see RunState.

    Args:
        state: Weights.
        optimizer: Its states.
        initial: Makes the first weights again, by name; None if nobody here can.
    """

    layout = ""

    def __init__(
        self,
        state: FlatState,
        optimizer: Optimizer,
        initial: Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> None:
        self._state, self._optimizer, self._initial = state, optimizer, initial

    @property
    def num_updates(self) -> int:
        """See RunState."""
        return self._optimizer.num_steps

    @num_updates.setter
    def num_updates(self, number: int) -> None:
        self._optimizer.num_steps = number

    def enter(self, group: Group) -> None:
        """See RunState; nothing is to be done."""

    def catch_up(self, group: Group, form: Form, committed: int, saved: Callable[[], int]) -> CaughtUp:
        """See RunState. Everybody takes the state of the rank that is ahead; who has it gets the same bits back."""
        if form.is_healing:
            self._share(group, source=form.source)
        return CaughtUp(step=form.step, newest=form.step)

    def take_back(self, group: Group, load: Callable[[int | None], int]) -> int:
        """See RunState; the lead loads and gives it to all."""
        lead = group.members[0]
        to_step = torch.zeros(1, dtype=torch.int64)
        if group.rank == lead:
            to_step[0] = load(None)
            if not to_step.item():
                self._reset()
        group.broadcast(to_step, source=lead)
        self._share(group, source=lead)
        return int(to_step.item())

    def agree(self, group: Group, lead_says: bool) -> bool:
        """See RunState; the lead does alone what it decides."""
        return lead_says

    def shapes(self) -> Parts:
        """See RunState."""
        return self._parts()

    def saved_by(self, group: Group) -> Mapping[int, Parts]:
        """See RunState; the lead saves all."""
        return {group.members[0]: self._parts()}

    def saved(self) -> Parts:
        """See RunState."""
        return self._parts()

    def load(self, source: StateSource, *, is_same_layout: bool = True) -> None:
        """See RunState; nothing is left over here."""
        for part, tensors in self._parts().items():
            weights = source.part(part)
            for name, tensor in tensors.items():
                tensor.copy_(weights.read(name))

    def is_finite(self) -> bool:
        """See RunState."""
        return bool(torch.isfinite(self._state.parameters.sum()))

    def digest(self, group: Group) -> str:
        """See RunState."""
        return digest_of(self._state.named_views(self._state.parameters))

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        state = self._state
        parts = {"parameters": state.named_views(state.parameters)}
        for name, (decayed, others) in self._optimizer.state_tensors().items():
            parts[name] = state.named_group_views(decayed, others)
        return parts

    def _share(self, group: Group, *, source: int) -> None:
        states = [part for parts in self._optimizer.state_tensors().values() for part in parts]
        num_updates = torch.tensor([self._optimizer.num_steps])
        for tensor in (num_updates, self._state.parameters, *states):
            group.broadcast(tensor, source=source)
        self._optimizer.num_steps = int(num_updates.item())

    def _reset(self) -> None:
        if self._initial is None:
            raise RankError(
                "there is no checkpoint to go back to, and the first weights are known to the script only; set "
                "fault_tolerance.checkpoint.every to fewer steps"
            )
        views = self._state.named_views(self._state.parameters)
        for name, tensor in self._initial().items():
            views[name].copy_(tensor.detach())
        for parts in self._optimizer.state_tensors().values():
            for part in parts:
                part.zero_()
        self._optimizer.num_steps = 0


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of logical tensors in order of name."""
    return weights_digest(hashable(name, tensor) for name, tensor in weights.items())


def hashable(name: str, tensor: Tensor) -> tuple[str, tuple[int, ...], memoryview]:
    """A logical tensor as ``WeightsDigest.add`` takes it."""
    elements: Any = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return name, tuple(tensor.shape), memoryview(elements).cast("B")
