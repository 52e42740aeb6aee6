"""Copies of a rank's pieces in memory: its own, and those of the rank whose buddy it is.

A copy is taken at a step border in one pass over the memory, and sent while the next steps compute. Two of each are kept:
the newer one may be on its way. The next one is begun only when all ranks have said that the one before has arrived, so
that one step always exists of which every rank has its own copy and its ward's.
"""

import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from trimtab.policy.holdings import Holding, buddies
from trimtab.runtime.laid_out.contents import Contents
from trimtab.runtime.laid_out.state import LaidOutState
from trimtab.runtime.process_groups import Group

_CHUNK_ELEMENTS = 1 << 20
"""Sent at once, 4 MiB: what is left behind with an epoch that ends."""

WITHIN_S = 60.0
"""The most work that ``auto`` puts at risk: a copy is begun when half of it has passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """The pieces of one position at one step.

    Args:
        size: Positions of the layout.
        position: Whose pieces they are.
        step: Committed steps that are in them.
        updates: Of them, those that were applied.
        flat: All pieces one after the other, fp32.
        checksum: CRC-32 of its bytes.
    """

    size: int
    position: int
    step: int
    updates: int
    flat: Tensor
    checksum: int

    def piece(self, places: Mapping[tuple[str, str], slice], key: tuple[str, str]) -> Tensor:
        """One of the pieces, flat."""
        return self.flat[places[key]]

    @property
    def is_sound(self) -> bool:
        """Whether its bytes are those that it was taken with; else the memory that held it is not to be trusted."""
        return checksum_of(self.flat) == self.checksum


def places_of(contents: Contents, position: int) -> Mapping[tuple[str, str], slice]:
    """Where in a copy each piece of a position stands."""
    found, start = {}, 0
    for held in contents.kept:
        if contents.has(held, position):
            length = contents.extent(held, position).flat.length
            found[held.key] = slice(start, start + length)
            start += length
    return found


@dataclass(kw_only=True, slots=True)
class _Pair:
    """Two copies of one kind, the older one first."""

    copies: list[Copy] = field(default_factory=list)

    def add(self, copy: Copy) -> None:
        self.copies = [*self.copies, copy][-2:]


class Snapshots:
    """Takes copies of one rank's state and keeps those of its ward.

    Args:
        every: Steps between two copies; ``auto`` for as many as make up half a minute.
        domain_of: What fails together with a rank: its node.
    """

    def __init__(self, every: int | Literal["auto"], *, domain_of: Callable[[int], int]) -> None:
        self._every, self._domain_of = every, domain_of
        self._own, self._wards = _Pair(), _Pair()
        self._group: Group | None = None
        self._exchange: _Exchange | None = None
        self._state: LaidOutState | None = None
        self._taken_at, self._taken_s = -1, time.monotonic()
        self._buddy = self._ward = 0

    @property
    def copies(self) -> Sequence[Copy]:
        """All that this rank has, its own first."""
        return (*self._own.copies, *self._wards.copies)

    def holdings(self, holder: int, *, first_slot: int) -> list[Holding]:
        """What a rank could give of them: of those whose bytes have not changed."""
        return [
            Holding(
                holder=holder,
                slot=first_slot + number,
                size=copy.size,
                position=copy.position,
                step=copy.step,
                updates=copy.updates,
                is_live=False,
            )
            for number, copy in enumerate(self.copies)
            if copy.is_sound
        ]

    def keep(self, arrived: Copy) -> None:
        """Keep a copy of the ward's, and the one before it."""
        self._wards.add(arrived)

    def enter(self, group: Group, members: Sequence[int], state: LaidOutState, *, is_alone: bool) -> None:
        """An epoch begins.

        Args:
            group: The ranks that take part, numbered by position.
            members: Who they are.
            state: Of this rank, in the layout of the epoch.
            is_alone: Whether no other rank holds the same pieces; only then ``auto`` takes copies.
        """
        self._state, self._group = state, None
        if group.size < 2 or (self._every == "auto" and not is_alone):
            return
        pairs = buddies(members, {rank: self._domain_of(rank) for rank in members})
        own = members[group.rank]
        self._buddy = members.index(pairs[own])
        self._ward = members.index(next(rank for rank, buddy in pairs.items() if buddy == own))
        self._group = group.split(group.members, "buddies-")
        self._taken_at = -1

    def forget(self) -> None:
        """All go back to something older: what has been copied since may be what they go back from."""
        self._own, self._wards = _Pair(), _Pair()

    def leave(self) -> None:
        """The epoch is over: a copy that is on its way is lost, those that have arrived stay."""
        self._hear()
        if self._exchange is not None:
            self._exchange.is_given_up = True
            self._exchange = None
        if self._group is not None:
            self._group.drop()
            self._group = None

    @property
    def is_pending(self) -> bool:
        """Whether a copy is on its way to this rank or from it."""
        self._hear()
        return self._exchange is not None

    def wants(self, finished: int) -> bool:
        """Whether it is time for a copy; the first rank's word counts."""
        if self._group is None:
            return False
        if self._taken_at < 0:
            return True
        if self._every == "auto":
            return time.monotonic() - self._taken_s > WITHIN_S / 2
        return finished - self._taken_at >= self._every

    def take(self, finished: int) -> None:
        """Copy the own pieces and send them to the buddy; all ranks do it at the same border, when nothing is pending.

        Args:
            finished: Steps committed so far.
        """
        assert self._group is not None, "copies are taken inside an epoch of several"
        assert self._state is not None, "copies are taken inside an epoch"
        assert self._exchange is None, "one copy at a time is on its way"
        state, contents = self._state, self._state.contents
        position, size = self._group.rank, contents.num_positions
        places = places_of(contents, position)
        flat = self._spare(self._own, _length(places))
        for key, place in places.items():
            flat[place].copy_(state.write(key))
        ward = self._spare(self._wards, _length(places_of(contents, self._ward)))
        self._taken_at, self._taken_s = finished, time.monotonic()
        self._exchange = _Exchange(
            group=self._group,
            buddy=self._buddy,
            own=Copy(
                size=size,
                position=position,
                step=finished,
                updates=state.num_updates,
                flat=flat,
                checksum=0,
            ),
            ward_position=self._ward,
            ward=ward,
        )
        self._exchange.start()

    def _spare(self, pair: _Pair, length: int) -> Tensor:
        """Memory for a copy, that of the older one if it fits."""
        if len(pair.copies) == 2 and pair.copies[0].flat.numel() == length:
            oldest, newest = pair.copies
            pair.copies = [newest]
            return oldest.flat
        return torch.empty(length)

    def _hear(self) -> None:
        done = self._exchange
        if done is None or not done.is_done.is_set():
            return
        self._exchange = None
        self._own.add(done.own)
        if done.arrived is not None:
            self.keep(done.arrived)


class _Exchange:
    """A copy on its way to the buddy, and the ward's on its way here; a thread of its own carries both."""

    def __init__(self, *, group: Group, buddy: int, own: Copy, ward_position: int, ward: Tensor) -> None:
        self.own: Copy = own
        self.arrived: Copy | None = None
        self.is_done = threading.Event()
        self.is_given_up = False
        self._group, self._buddy, self._from = group, buddy, ward_position
        self._ward = ward

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, daemon=True, name="snapshot").start()

    def _run(self) -> None:
        # A peer that is gone ends the epoch; nobody waits for this thread.
        with contextlib.suppress(RuntimeError):
            self._carry()
            self.is_done.set()

    def _carry(self) -> None:
        own = self.own
        self.own = own = Copy(
            size=own.size,
            position=own.position,
            step=own.step,
            updates=own.updates,
            flat=own.flat,
            checksum=checksum_of(own.flat),
        )
        told = torch.tensor([own.step, own.updates, own.checksum], dtype=torch.int64)
        heard = torch.empty_like(told)
        self._swap(told, heard)
        for start in range(0, max(own.flat.numel(), self._ward.numel()), _CHUNK_ELEMENTS):
            if self.is_given_up:
                return
            ends = slice(start, start + _CHUNK_ELEMENTS)
            arriving = torch.empty_like(self._ward[ends])
            self._swap(own.flat[ends], arriving)
            self._ward[ends].copy_(arriving)
        step, updates, checksum = heard.tolist()
        arrived = Copy(
            size=own.size,
            position=self._from,
            step=step,
            updates=updates,
            flat=self._ward,
            checksum=checksum,
        )
        if arrived.is_sound:  # Else it is worth nothing, and no reason to stop.
            self.arrived = arrived

    def _swap(self, told: Tensor, heard: Tensor) -> None:
        works: list[Any] = []
        if told.numel():
            works.append(self._group.send(told, self._buddy, 0))
        if heard.numel():
            works.append(self._group.receive(heard, self._from, 0))
        for work in works:
            work.wait()


def _length(places: Mapping[tuple[str, str], slice]) -> int:
    return max((place.stop for place in places.values()), default=0)


def checksum_of(flat: Tensor) -> int:
    """CRC-32 of the bytes of a copy."""
    elements: Any = flat.numpy()
    return zlib.crc32(memoryview(elements).cast("B")) if flat.numel() else 0
