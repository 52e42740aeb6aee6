"""What the ledger's tests share: a run whose records are written by hand."""

import pytest
from hypothesis import settings

from trimtab.ledger.clocks import CLOCK_FILE_BYTES, ClockFile, read_clocks
from trimtab.ledger.events import Incarnation, RunRecords
from trimtab.ledger.journal import encode_event, read_events
from trimtab.terms import Clock

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
