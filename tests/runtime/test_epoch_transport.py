"""Does a lowered plan's traffic arrive through the groups of an epoch, and can it be left when the epoch is over?"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from trimtab.runtime.epoch_transport import EpochTransport, LeftError
from trimtab.runtime.errors import CollectiveError
from trimtab.runtime.lowering.lanes import Lane
from trimtab.runtime.process_groups import Group, Interrupt, Rendezvous, connect_store

SIZE = 3
ALL, PAIR = (0, 1, 2), (0, 2)


class EpochOver(Exception):  # noqa: N818 - as a fence, it is no error
    """The epoch is over."""


class Rank:
    """One rank of an epoch, in a thread of its own."""

    def __init__(self, rank: int, store: object) -> None:
        self.rank, self.interrupt, self.is_fenced = rank, Interrupt(), False
        self.interrupt.on_wake(self._check)

        group = Group(members=ALL, rank=rank, epoch=1, store=store, kind="cpu", interrupt=self.interrupt)
        self.tally = group.tally
        self.transport = EpochTransport(group)

    def fence(self) -> None:
        self.is_fenced = True
        self.interrupt.notify()

    def _check(self) -> None:
        if self.is_fenced:
            raise EpochOver


@pytest.fixture
def together() -> Callable[[Callable[[Rank], object]], list[object]]:
    """Runs a function on every rank of one epoch at once; gives what they return, in order."""
    rendezvous = Rendezvous()

    def run(act: Callable[[Rank], object]) -> list[object]:
        def life(number: int) -> object:
            rank = Rank(number, connect_store("127.0.0.1", rendezvous.port))
            try:
                return act(rank)
            finally:
                rank.transport.drop()

        with ThreadPoolExecutor(SIZE) as pool:
            return list(pool.map(life, range(SIZE)))

    return run


def test_collectives_of_all_and_of_some(together):
    """Sum, maximum, pieces of a sum, pieces together, uneven exchange; in a group of two the third takes no part."""

    def act(rank: Rank) -> object:
        own, carried = rank.rank, rank.transport
        carried.open_groups([PAIR])
        total, largest = torch.full((2,), float(own)), torch.full((2,), float(own))
        carried.all_reduce(ALL, total, "sum")
        carried.all_reduce(ALL, largest, "max")
        piece = torch.empty(2)
        carried.reduce_scatter(ALL, piece, torch.arange(6.0) + own, "sum")
        rows = torch.empty(SIZE)
        carried.all_gather(ALL, rows, torch.tensor([float(own)]))
        pair = []
        if own in PAIR:
            # Rank 0 has one element for itself and two for rank 2; rank 2 has three and none.
            sent, received = ([1, 2], [1, 3]) if own == 0 else ([3, 0], [2, 0])
            found = torch.empty(sum(received))
            carried.all_to_all(PAIR, found, torch.arange(3.0) + 10 * own, (received, sent))
            pair = found.tolist()
        return total.tolist(), largest.tolist(), piece.tolist(), rows.tolist(), pair

    found = together(act)
    assert [each[0] for each in found] == [[3.0, 3.0]] * SIZE
    assert [each[1] for each in found] == [[2.0, 2.0]] * SIZE
    assert [each[2] for each in found] == [[3.0, 6.0], [9.0, 12.0], [15.0, 18.0]]
    assert [each[3] for each in found] == [[0.0, 1.0, 2.0]] * SIZE
    assert [each[4] for each in found] == [[0.0, 20.0, 21.0, 22.0], [], [1.0, 2.0]]


def test_messages_find_their_tag(together):
    """Two messages between the same ranks, received in the other order."""

    def act(rank: Rank) -> object:
        carried = rank.transport
        if rank.rank == 0:
            for sending in [carried.send(1, torch.full((4,), float(tag)), tag) for tag in (5, 6)]:
                sending.wait()
        if rank.rank == 1:
            found = torch.empty(2, 4)
            for message in [carried.receive(0, found[place], tag) for place, tag in ((0, 6), (1, 5))]:
                message.wait()
            return found[:, 0].tolist()
        return None

    assert together(act)[1] == [6.0, 5.0]


def test_a_fence_ends_a_wait_for_a_message_that_never_comes(together):
    """gloo would wait for half an hour."""
    over = threading.Event()

    def act(rank: Rank) -> object:
        if rank.rank:
            over.wait(30)  # Alive, and sends nothing.
            return None
        threading.Timer(0.2, rank.fence).start()
        try:
            with pytest.raises(EpochOver):
                rank.transport.receive(1, torch.empty(4), 1).wait()
        finally:
            over.set()
        return "left"

    assert together(act)[0] == "left"


def test_a_peer_that_goes_breaks_the_wait(together):
    """Its sockets close; the error is one that the run knows."""

    def act(rank: Rank) -> object:
        if rank.rank == 1:
            return None
        if rank.rank == 0:
            with pytest.raises((CollectiveError, RuntimeError)) as caught:
                rank.transport.receive(1, torch.empty(4), 1).wait()
            return str(caught.value)
        return None

    assert together(act)[0]


def test_a_thread_beside_the_main_one_has_groups_of_its_own(together):
    """Sums and messages of both run at once, in other orders on other ranks; bytes of both count."""

    def act(rank: Rank) -> object:
        carried, lane = rank.transport, Lane(f"beside-{rank.rank}")
        carried.open_beside([ALL, PAIR])
        beside = carried.beside(ALL)
        hidden, shown = torch.full((4,), float(rank.rank)), torch.full((4,), 10.0 * rank.rank)
        works = []
        if (
            rank.rank == 1
        ):  # It comes to the sum beside the computation when all others wait in the other one.
            carried.all_reduce(ALL, shown, "sum")
        works.append(lane.start(lambda: beside.all_reduce(ALL, hidden, "sum")))
        if rank.rank != 1:
            carried.all_reduce(ALL, shown, "sum")
        message = torch.zeros(3)
        if rank.rank in PAIR:
            between, other = carried.beside(PAIR), 2 - rank.rank
            own = torch.full((3,), float(rank.rank))

            def swap() -> None:
                sent = between.send(other, own, 0)
                between.receive(other, message, 0).wait()
                sent.wait()

            works.append(lane.start(swap))
        for members, work in zip((ALL, PAIR), works, strict=False):
            carried.join(members, work)
            work.result()
        return hidden.tolist(), shown.tolist(), message.tolist(), rank.tally.taken()

    found = together(act)
    assert [each[0] for each in found] == [[3.0] * 4] * SIZE
    assert [each[1] for each in found] == [[30.0] * 4] * SIZE
    assert [each[2] for each in found] == [[2.0] * 3, [0.0] * 3, [0.0] * 3]
    ring = 2 * (2 * 2) * (2 * 4)  # Two sums; in each two rounds of two messages, of two elements.
    assert [each[3] for each in found] == [ring + 12, ring, ring + 12]


def test_a_fence_ends_a_sum_beside_the_main_thread(together):
    """A peer died in the middle of it: the rank goes on with the survivors, and no thread waits for the dead one."""
    over = threading.Event()

    def act(rank: Rank) -> object:
        rank.transport.open_beside([ALL])
        if rank.rank:
            over.wait(30)  # Alive, and sums nothing.
            return None
        lane, beside = Lane("beside-fenced"), rank.transport.beside(ALL)
        (thread,) = [lane.start(threading.current_thread).result(10)]
        pieces = [torch.ones(4), torch.ones(2)]
        work = lane.start(lambda: beside.all_reduce(ALL, pieces[0], "sum"))
        behind = lane.start(lambda: beside.reduce_scatter(ALL, pieces[1], torch.ones(6), "sum"))
        threading.Timer(0.2, rank.fence).start()
        try:
            with pytest.raises(EpochOver):
                rank.transport.join(ALL, work)
            rank.transport.drop()
            with pytest.raises(LeftError):
                work.result(10)
            assert isinstance(behind.exception(10), Exception)
            lane.end()
            thread.join(10)
        finally:
            over.set()
        return thread.is_alive()

    assert together(act)[0] is False
