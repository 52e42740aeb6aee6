"""One process through the layouts of a run: a position of one plan at a time, and of another when ranks come or go.

When an epoch begins all ranks say what they hold: live pieces, copies of their own and of their wards. The newest state
that exists whole among them is what they go on from. Whoever keeps its position keeps its pieces; the others get theirs
from those that have them. A seat that is left is let go only when everybody has arrived in his new one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.policy.holdings import Ground, Holding, catch_up, newest_ground
from trimtab.policy.wire import Form
from trimtab.runtime.asking import Asking, Computed
from trimtab.runtime.laid_out.contents import Contents
from trimtab.runtime.laid_out.evaluation import LaidOutEvaluator
from trimtab.runtime.laid_out.moving import Key, Move, covers
from trimtab.runtime.laid_out.runner import LaidOutRunner
from trimtab.runtime.laid_out.snapshots import Snapshots, places_of
from trimtab.runtime.laid_out.state import LaidOutState
from trimtab.runtime.process_groups import Group
from trimtab.runtime.run_state import CaughtUp, Parts, StateSource
from trimtab.runtime.step import Requests, StepResult, Work

_COLUMNS = 8
_MOST = 8
"""Holdings that a rank tells of: a seat or two, two copies of its own and two of its ward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A position of a plan, and what it takes to train there.

    Args:
        position: On the plan's mesh.
        state: Its pieces.
        runner: Of its steps.
        evaluator: Of the held-out split, if there is one.
        is_alone: Whether no other position of the layout holds the same pieces.
    """

    position: int
    state: LaidOutState
    runner: LaidOutRunner
    evaluator: LaidOutEvaluator | None
    is_alone: bool

    @property
    def size(self) -> int:
        """Positions of the plan."""
        return self.state.contents.num_positions


class ElasticSeat:
    """The state of the seat of the moment; see ``RunState``.

    Attributes:
        seat: Of the moment.

    Args:
        rank: Of this process in the run.
        first: The seat that it begins with.
        make: A seat in a layout of so many positions, at one of them; its pieces are yet to be filled.
        contents: What the positions of a layout of so many hold.
        snapshots: Takes copies; None if none are taken.
        tell: Told of events.
    """

    def __init__(
        self,
        *,
        rank: int,
        first: Seat,
        make: Callable[[int, int], Seat],
        contents: Callable[[int], Contents],
        snapshots: Snapshots | None,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._rank, self._make, self._contents = rank, make, contents
        self._snapshots, self._tell = snapshots, tell
        self.seat: Seat = first
        self._is_empty = False
        self._moved_to: int | None = None
        self._leaving: list[tuple[Seat, int]] = []
        """Seats that others may still need something of, with the step that they are of."""

    # RunState.

    @property
    def num_updates(self) -> int:
        """See RunState."""
        return self.seat.state.num_updates

    @num_updates.setter
    def num_updates(self, number: int) -> None:
        self.seat.state.num_updates = number

    @property
    def layout(self) -> str:
        """See RunState."""
        return self.seat.state.layout

    def enter(self, group: Group) -> None:
        """See RunState."""
        numbered = group.by_position()
        self.seat.state.enter(numbered)
        if self._snapshots is not None:
            self._snapshots.enter(numbered, group.members, self.seat.state, is_alone=self.seat.is_alone)

    def catch_up(self, group: Group, form: Form, committed: int, saved: Callable[[], int]) -> CaughtUp | None:
        """See RunState."""
        started_s = time.monotonic()
        seats = [*self._leaving]
        if not (self._is_empty or self.seat.state.is_torn):
            seats.insert(0, (self.seat, committed if self._moved_to is None else self._moved_to))
        held = self._told(group, seats)
        held, behind = catch_up(held)
        if self._rank in behind:
            self.seat.state.apply_reduced()
            seats[0] = (self.seat, committed + 1)
        newest = max((holding.step for holding in held if holding.is_live), default=0)
        ground = newest_ground(held, self._covers)
        unchanged = ground is not None and self._is_unchanged(ground, form.active)
        can_go_on = ground is not None and (unchanged or self._can_move(ground))
        if ground is None or not can_go_on or self._is_older(ground, group, saved):
            self._sit_down(form.active)
            return None
        if not unchanged:
            sent = self._move(group, ground, form.active, seats)
            fields = {"to_step": ground.step, "bytes": sent, "seconds": time.monotonic() - started_s}
            self._tell("moved", {**fields, "active": list(form.active), "from": ground.size})
        self._leaving.clear()
        self._moved_to = None
        return CaughtUp(step=ground.step, newest=newest)

    def take_back(self, group: Group, load: Callable[[int | None], int]) -> int:
        """See RunState. Copies may be of what is taken back."""
        if self._snapshots is not None:
            self._snapshots.forget()
        return self.seat.state.take_back(group.by_position(), load)

    def agree(self, group: Group, lead_says: bool) -> bool:
        """See RunState."""
        return self.seat.state.agree(group, lead_says)

    def shapes(self) -> Parts:
        """See RunState."""
        return self.seat.state.shapes()

    def saved_by(self, group: Group) -> Mapping[int, Parts]:
        """See RunState."""
        found = self.seat.state.saved_by(group.by_position())
        return {group.members[position]: parts for position, parts in found.items()}

    def saved(self) -> Parts:
        """See RunState."""
        return self.seat.state.saved()

    def load(self, source: StateSource, *, is_same_layout: bool) -> None:
        """See RunState."""
        self.seat.state.load(source, is_same_layout=is_same_layout)

    def is_finite(self) -> bool:
        """See RunState."""
        return self.seat.state.is_finite()

    def digest(self, group: Group) -> str:
        """See RunState."""
        return self.seat.state.digest(group.by_position())

    def leave(self) -> None:
        """The epoch is over."""
        if self._snapshots is not None:
            self._snapshots.leave()

    # Catching up.

    def _taken(self, ground: Ground, active: Sequence[int], seats: Sequence[tuple[Seat, int]]) -> Seat | None:
        """Where this rank is going to sit: where it sits, if it has what all go on from; None for a spare."""
        if self._rank not in active:
            return None
        size, position = len(active), active.index(self._rank)
        own = [held for held in ground.holdings.get(position, ()) if held.holder == self._rank]
        if ground.size == size and any(held.is_live for held in own):
            return seats[next(held.slot for held in own if held.is_live)][0]
        return self._make(size, position)

    def _told(self, group: Group, seats: Sequence[tuple[Seat, int]]) -> tuple[Holding, ...]:
        """What all ranks hold."""
        own = [
            Holding(
                holder=self._rank,
                slot=slot,
                size=seat.size,
                position=seat.position,
                step=step,
                updates=seat.state.num_updates,
                is_live=True,
                is_ready=seat is self.seat and seat.state.reduced_step == step,
            )
            for slot, (seat, step) in enumerate(seats)
        ]
        if self._snapshots is not None:
            own += self._snapshots.holdings(self._rank, first_slot=len(own))
        word = torch.full((_MOST, _COLUMNS), -1, dtype=torch.int64)
        for row, holding in zip(word, own, strict=False):
            row.copy_(torch.tensor(_row(holding)))
        if group.size == 1:
            return tuple(own)
        found = torch.empty((group.size, _MOST, _COLUMNS), dtype=torch.int64)
        group.all_gather(found.view(-1), word.view(-1))
        return tuple(_holding(row) for row in found.view(-1, _COLUMNS).tolist() if row[0] >= 0)

    def _covers(self, size: int, positions: frozenset[int]) -> bool:
        return covers(self._contents(size), positions)

    def _is_unchanged(self, ground: Ground, active: Sequence[int]) -> bool:
        """Whether everybody sits where he sat, with the state that all go on from."""
        return ground.size == len(active) and all(
            position in ground.holdings
            and ground.holdings[position][0].is_live
            and any(held.holder == rank and held.is_live for held in ground.holdings[position])
            for position, rank in enumerate(active)
        )

    def _can_move(self, ground: Ground) -> bool:
        """Before the first update there are no master copies yet; what compression keeps belongs to one layout."""
        return ground.updates > 0 and not self.seat.state.has_leftovers

    def _is_older(self, ground: Ground, group: Group, saved: Callable[[], int]) -> bool:
        """Whether a checkpoint is newer than the copies that all would go on from; who lives is ahead of any."""
        if ground.is_live:
            return False
        step = torch.tensor([saved() if group.rank == group.members[0] else 0], dtype=torch.int64)
        group.broadcast(step, source=group.members[0])
        return int(step.item()) > ground.step

    def _sit_down(self, active: Sequence[int]) -> None:
        """Take the seat that the epoch gives to this rank; a checkpoint, or the first weights, fill it."""
        self._leaving.clear()
        self._moved_to, self._is_empty = None, self._rank not in active
        if self._is_empty:
            return
        size, position = len(active), active.index(self._rank)
        if (size, position) != (self.seat.size, self.seat.position):
            self.seat = self._make(size, position)

    def _move(
        self, group: Group, ground: Ground, active: Sequence[int], seats: Sequence[tuple[Seat, int]]
    ) -> int:
        """Sit down in a new seat, filled from what all hold; returns the bytes that this rank has sent."""
        taken = self._taken(ground, active, seats)
        copies = [] if self._snapshots is None else list(self._snapshots.copies)
        places = {
            number: places_of(self._contents(copy.size), copy.position) for number, copy in enumerate(copies)
        }

        def read(slot: int, key: Key) -> Tensor:
            if slot < len(seats):
                return seats[slot][0].state.read(key)
            number = slot - len(seats)
            return copies[number].piece(places[number], key)

        move = Move(
            ground=ground,
            source=self._contents(ground.size),
            target=self._contents(len(active)),
            seats=active,
        )
        sent = move.run(group, read, taken.state.write if taken is not None else None)
        self._leaving = [(seat, step) for seat, step in seats if step == ground.step and seat is not taken]
        self._moved_to, self._is_empty = ground.step, taken is None
        if taken is not None:
            taken.state.go_on(ground.updates)
            self.seat = taken
        arrived = torch.ones(1, dtype=torch.int64)
        group.all_reduce(arrived)
        return sent


class ElasticRunner:
    """The steps of the seat of the moment; see ``trainer.Runner``."""

    def __init__(self, elastic: ElasticSeat) -> None:
        self._elastic = elastic

    @property
    def work(self) -> Work:
        """See Runner."""
        return self._runner.work

    @work.setter
    def work(self, work: Work) -> None:
        self._runner.work = work

    def held(self, step: int) -> tuple[int, ...]:
        """See Runner."""
        return self._runner.held(step)

    def enter(self, group: Group, *, step: int, owners: Sequence[int]) -> None:
        """See Runner."""
        self._runner.enter(group, step=step, owners=owners)

    def rewind(self, step: int) -> None:
        """See Runner: nothing is remembered."""

    def forget(self) -> None:
        """See Runner: nothing is kept."""

    def leave(self) -> None:
        """See Runner."""
        self._elastic.leave()
        self._runner.leave()

    def ask(self, step: int, requests: Requests) -> Asking[StepResult]:
        """See Runner."""
        return self._runner.ask(step, requests)

    def answer(self, microbatch: Any) -> Computed:
        """See Runner."""
        return self._runner.answer(microbatch)

    @property
    def _runner(self) -> LaidOutRunner:
        return self._elastic.seat.runner


class ElasticEvaluator:
    """Scores with the seat of the moment; see ``trainer.Scorer``."""

    def __init__(self, elastic: ElasticSeat) -> None:
        self._elastic = elastic

    def score(self, group: Group, step: int) -> tuple[float | None, int]:
        """See Scorer."""
        evaluator = self._elastic.seat.evaluator
        assert evaluator is not None, "who has nothing held out scores nothing"
        return evaluator.score(group.by_position(), step)


def _row(held: Holding) -> list[int]:
    return [
        held.holder, held.slot, held.size, held.position, held.step, held.updates, held.is_live, held.is_ready,
    ]  # fmt: skip


def _holding(row: Sequence[int]) -> Holding:
    holder, slot, size, position, step, updates, is_live, is_ready = row
    return Holding(
        holder=holder,
        slot=slot,
        size=size,
        position=position,
        step=step,
        updates=updates,
        is_live=bool(is_live),
        is_ready=bool(is_ready),
    )
