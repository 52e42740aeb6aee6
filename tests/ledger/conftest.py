"""What the ledger's tests share: a run whose records are written by hand."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from trimtab.ledger.clocks import CLOCK_FILE_BYTES, ClockFile, read_clocks
from trimtab.ledger.events import Incarnation, RunRecords
from trimtab.ledger.journal import encode_event, read_events
from trimtab.terms import Clock

MS = 10**6

# A busy machine is no reason for a property to fail.
settings.register_profile("ledger", deadline=None)
settings.load_profile("ledger")


class RunBook:
    """Writes what agent and ranks would write, at times that the test sets.

    One device per rank by default: device ``d<rank>``. ``now`` is in ns and only the test moves it.
    """

    def __init__(self, **run):
        self.now = 0
        self._run = {"run": "quickstart", "price_usd_per_hour": None, "peak_flops_per_s": None, **run}
        self.clocks = {}
        self._agents = []
        self._journals = {}
        self._buffers = {}
        self._incarnations = {}

    def attempt(self, devices, **changes):
        """A new agent starts."""
        fields = {**self._run, "attempt": len(self._agents) + 1, "devices": devices, **changes}
        self._agents.append([encode_event("run", self.now, **fields)])

    def say(self, kind, *, attempt=-1, **fields):
        """An event of the agent."""
        self._agents[attempt].append(encode_event(kind, self.now, **fields))

    def spawn(self, rank, device=None):
        """A new process of a rank, its clocks not yet running."""
        number = self._incarnations[rank] = self._incarnations.get(rank, -1) + 1
        self._journals[rank, number] = []
        self.clocks.pop(rank, None)
        device = f"d{rank}" if device is None else device
        self.say("spawned", device=device, rank=rank, incarnation=number, pid=1000 + number)

    def start(self, rank, clock=Clock.RESTART):
        """The process starts its clocks."""
        buffer = self._buffers[rank, self._incarnations[rank]] = bytearray(CLOCK_FILE_BYTES)
        self.clocks[rank] = ClockFile(buffer, clock=clock, now_ns=self.now)

    def switch(self, rank, clock):
        self.clocks[rank].switch(clock, self.now)

    def tell(self, rank, kind, **fields):
        """An event of a rank."""
        self._journals[rank, self._incarnations[rank]].append(encode_event(kind, self.now, **fields))

    def step(self, rank, step, *, kind="step", **fields):
        """The rank ends a step: all time since its last lap belongs to it."""
        clocks = self.clocks[rank].lap(self.now)
        fields = {"epoch": 0, "start_ns": self.now - sum(clocks.values()), "tokens": 0, "flops": 0, **fields}
        self.tell(rank, kind, step=step, end_ns=self.now, clocks=clocks, **fields)

    def spend(self, ranks, clock, ns):
        """Some ranks do one thing for a while."""
        for rank in ranks:
            self.switch(rank, clock)
        self.now += ns

    def fault(self, rank, step, *, fault_ns, cause="killed"):
        self.say("fault", rank=rank, step=step, cause=cause, t_fault_ns=fault_ns, t_declared_ns=self.now)

    def exit(self, rank, code=0, signal=None):
        self.say("exited", rank=rank, incarnation=self._incarnations[rank], code=code, signal=signal)

    def begin(self, ranks, **run):
        """An attempt whose ranks are allocated, spawned and computing, in no time."""
        self.attempt([f"d{rank}" for rank in ranks], **run)
        for rank in ranks:
            self.say("allocated", device=f"d{rank}")
            self.spawn(rank)
            self.start(rank, Clock.COMPUTE)

    def end(self, ranks, **finished):
        """An attempt whose ranks exit and whose devices are released, in no time."""
        for rank in ranks:
            self.exit(rank)
        self.say("finished", **{"state": "done", "weights_sha256": None, "error": None, **finished})
        for rank in ranks:
            self.say("released", device=f"d{rank}")

    def records(self):
        readings = {key: read_clocks(buffer) for key, buffer in self._buffers.items()}
        return RunRecords(
            agents=[read_events(lines) for lines in self._agents],
            ranks={Incarnation(*key): read_events(lines) for key, lines in self._journals.items()},
            clocks={Incarnation(*key): reading for key, reading in readings.items() if reading},
        )


@pytest.fixture
def book():
    """A run in the making, without price or peak."""
    return RunBook()


@pytest.fixture(scope="session")
def new_book():
    """Makes run books, for tests that need several or other settings."""
    return RunBook


@pytest.fixture
def matches_golden():
    """Compares a text with a file of tests/golden/ledger; TRIMTAB_REGENERATE=1 writes the file instead."""

    def check(name, text):
        path = Path(__file__).parents[1] / "golden" / "ledger" / name
        if os.environ.get("TRIMTAB_REGENERATE") == "1":
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def eventful(new_book):
    """A run of 6 steps on three devices: a loader that is late, a rank that is killed, a crash, a resume."""
    return eventful_run(
        new_book(price_usd_per_hour={"d0": 1200.0, "d1": 1200.0, "d2": 600.0}, peak_flops_per_s=1e9)
    )


def eventful_run(book):
    ranks = [0, 1, 2]
    book.attempt(["d0", "d1", "d2"])
    for rank in ranks:
        book.say("allocated", device=f"d{rank}")
        book.now += 20 * MS
        book.spawn(rank)
    book.now += 200 * MS
    for rank in ranks:
        book.start(rank)
    book.now += 400 * MS
    for step in (1, 2, 3):
        train(book, ranks, step)
    book.spend(ranks, Clock.CHECKPOINT_STALL, 30 * MS)
    book.spend(ranks, Clock.COMPUTE, 40 * MS)
    killed_ns = book.now
    book.spend([0, 1], Clock.COMM, 100 * MS)
    book.exit(2, code=None, signal=9)
    book.fault(2, 4, fault_ns=killed_ns)
    book.spend([0, 1], Clock.RESTART, 50 * MS)
    book.say("formed", epoch=1, members=[0, 1])
    train(book, [0, 1], 4, epoch=1)
    train(book, [0, 1], 5, epoch=1)
    book.now += 70 * MS
    book.exit(0, code=1)
    book.exit(1, code=1)
    book.fault(0, 6, fault_ns=book.now - 20 * MS, cause="out of memory")
    book.say("finished", state="failed", weights_sha256=None, error="rank 0: out of memory")
    for rank in ranks:
        book.say("released", device=f"d{rank}")
    book.now += 5000 * MS
    book.begin([0, 1])
    book.say("rollback", to_step=3)
    for step in (4, 5, 6):
        train(book, [0, 1], step)
    book.spend([0, 1], Clock.EVALUATION, 60 * MS)
    book.tell(0, "evaluation", step=6, loss=1.25, targets=1024)
    book.end([0, 1], weights_sha256="ab" * 32)
    return book


def train(book, ranks, step, *, epoch=0):
    """A step in which the loader of the last rank is 20 ms late."""
    book.spend(ranks, Clock.INPUT_WAIT, 2 * MS)
    book.spend(ranks[:-1], Clock.COMPUTE, 20 * MS)
    book.spend([ranks[-1]], Clock.COMPUTE, 60 * MS)
    book.spend(ranks[:-1], Clock.COMM, 20 * MS)
    book.spend(ranks, Clock.COMM, 8 * MS)
    for rank in ranks:
        wait_ns = (8 if rank == ranks[-1] else 28) * MS
        book.step(rank, step, epoch=epoch, comm=[["grads", wait_ns]], flops=30 * MS, tokens=512, targets=384)
    book.tell(0, "commit", step=step, loss=2.0 - step / 10, grad_norm=0.5, lr=1e-3, tokens=512, targets=384)
