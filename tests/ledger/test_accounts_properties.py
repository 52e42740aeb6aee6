"""Random runs: crashes in every state, devices that join and leave, agents that die, orphans that work on."""

import json
from dataclasses import dataclass, replace
from itertools import zip_longest

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.ledger.accounts import ENTRIES, Label, account
from trimtab.ledger.journal import Event
from trimtab.ledger.rendering import render_report
from trimtab.ledger.report import run_report
from trimtab.terms import Clock, Layer, LedgerClass

RANKS = range(3)
DEEDS = (
    "allocate", "allocate", "spawn", "spawn", "start", "start", "switch", "switch", "switch", "step", "step",
    "abort", "fault", "exit", "kill", "release", "formed", "rollback", "agent dies", "orphan",
)  # fmt: skip

deed = st.tuples(
    st.sampled_from(DEEDS),
    st.sampled_from(RANKS),
    st.integers(0, 1000),
    st.sampled_from(Clock),
    st.booleans(),
)
# Lists grow to twice their least size on average: without the long ones most runs would end before they begin.
deeds = st.lists(deed, max_size=20) | st.lists(deed, min_size=40, max_size=120)


@dataclass
class Span:
    """A time for which a device was held, as far as anybody could know."""

    rank: int
    start_ns: int
    end_ns: int


class Chaos:
    """Carries out deeds that the state allows, and keeps its own account of when devices were held."""

    def __init__(self, book):
        self.book = book
        self.held = {}
        self.processes = {}
        self.orphans = []
        self.spans = []
        self.said_ns = 0
        self.switched_ns = {}
        self.last_step = 0
        self.new_agent()

    def new_agent(self):
        for rank, start_ns in self.held.items():
            span = Span(rank, start_ns, max(self.said_ns, self.switched_ns.get(rank, 0)))
            self.spans.append(span)
            if self.processes.get(rank) == "started":
                self.orphans.append((self.book.clocks[rank], span))
        self.held, self.processes, self.switched_ns = {}, {}, {}
        self.book.attempt([f"d{rank}" for rank in RANKS])
        self.said_ns = self.book.now

    def do(self, deed, rank, ns, clock, flag):
        self.book.now += ns
        state = self.processes.get(rank)
        match deed:
            case "allocate" if rank not in self.held:
                self.held[rank] = self.book.now
                self.say("allocated", device=f"d{rank}")
            case "spawn" if rank in self.held and state is None:
                self.processes[rank] = "spawned"
                self.book.spawn(rank)
                self.said_ns = self.book.now
            case "start" if state == "spawned":
                self.processes[rank] = "started"
                self.book.start(rank, clock)
                self.switched_ns[rank] = self.book.now
            case "switch" if state == "started":
                self.book.switch(rank, clock)
                self.switched_ns[rank] = self.book.now
            case "step" | "abort" if state == "started":
                self.last_step += flag
                self.book.step(
                    rank,
                    self.last_step,
                    kind="step" if deed == "step" else "aborted",
                    flops=ns * 10,
                    tokens=4,
                    targets=ns % 5,
                    comm=[["a", ns], ["b", ns // 2]],
                    shares=[ns % 3, 3] if flag else [ns % 3],
                    recovered=[3] if flag else [],
                )
                self.switched_ns[rank] = self.book.now
            case "fault" if state is not None:
                self.book.fault(rank, self.last_step, fault_ns=max(0, self.book.now - ns * 2))
                self.said_ns = self.book.now
            case "exit" | "kill" if state is not None:
                self.processes.pop(rank)
                self.book.exit(rank, code=0 if deed == "exit" else None, signal=None if deed == "exit" else 9)
                self.said_ns = self.book.now
            case "release" if rank in self.held and state is None:
                self.say("released", device=f"d{rank}")
                self.spans.append(Span(rank, self.held.pop(rank), self.book.now))
            case "formed":
                self.say("formed", epoch=ns, members=sorted(self.processes))
            case "rollback":
                self.say("rollback", to_step=max(0, self.last_step - ns % 4))
            case "agent dies":
                self.new_agent()
            case "orphan" if self.orphans:
                orphan, span = self.orphans[ns % len(self.orphans)]
                orphan.switch(clock, self.book.now)
                span.end_ns = self.book.now

    def held_ns(self):
        """What should be paid for: each device once, and by its newest holder."""
        self.new_agent()
        total_ns = 0
        for rank in RANKS:
            # Spans stand in the order of attempts: of two that began in the same ns, the newer attempt's is later.
            spans = sorted((span for span in self.spans if span.rank == rank), key=lambda span: span.start_ns)
            starts = [span.start_ns for span in spans[1:]]
            for span, next_ns in zip_longest(spans, starts, fillvalue=self.book.now):
                total_ns += max(span.start_ns, min(span.end_ns, next_ns)) - span.start_ns
        return total_ns

    def say(self, kind, **fields):
        self.book.say(kind, **fields)
        self.said_ns = self.book.now


def live(book, story):
    chaos = Chaos(book)
    for deed in story:
        chaos.do(*deed)
    return chaos, book.records()


@settings(max_examples=200)
@given(story=deeds)
def test_every_nanosecond_is_in_one_class(new_book, story):
    """Whatever happens to a run, its bill adds up, no line is below zero and no device is paid for twice."""
    chaos, records = live(new_book(peak_flops_per_s=1e9), story)
    result = account(records)
    assert sum(result.entries().values()) == sum(result.layers().values()) == result.allocated_ns
    for device in result.devices:
        assert min(device.amounts.values(), default=0) >= 0
        assert sum(device.entry_ns(entry) for entry in ENTRIES) == device.allocated_ns
    assert result.allocated_ns == chaos.held_ns()


@given(story=deeds, order=st.randoms(use_true_random=False))
def test_the_order_in_which_ranks_are_merged_does_not_matter(new_book, story, order):
    """Journals are listed by a file system in any order; the bill must not depend on it."""
    _, records = live(new_book(peak_flops_per_s=1e9), story)
    journals, readings = list(records.ranks.items()), list(records.clocks.items())
    order.shuffle(journals)
    order.shuffle(readings)
    assert account(replace(records, ranks=dict(journals), clocks=dict(readings))) == account(records)


@given(story=deeds, to_step=st.integers(0, 20))
def test_a_rollback_moves_time_between_labels_and_creates_none(new_book, story, to_step):
    """Calling work lost later must change neither what was done nor what was paid, class by class."""
    _, records = live(new_book(peak_flops_per_s=1e9), story)
    *earlier, last = records.agents
    # In a later attempt that holds nothing, so that it is no sign of life of the last agent. One to a step that nobody
    # has come to takes nothing back; without any, what agents that died had not saved counts as lost.
    before, after = (
        account(
            replace(
                records,
                agents=[*earlier, last, [Event(kind="rollback", t_ns=10**9, fields={"to_step": step})]],
            )
        )
        for step in (10**6, to_step)
    )
    assert account(records).classes() == before.classes()
    assert after.classes() == before.classes()
    assert after.entries()[Label.LOST_WORK] >= before.entries()[Label.LOST_WORK]
    stability = [entry for entry in LedgerClass if entry.layer is Layer.STABILITY]
    assert [after.entries()[entry] for entry in stability] == [before.entries()[entry] for entry in stability]


@given(story=deeds, cut=st.integers(0, 10_000))
def test_a_journal_that_lost_its_end_still_gives_an_account(new_book, story, cut):
    """The rank's journal may end before its clock file does: the clock file decides."""
    _, records = live(new_book(peak_flops_per_s=1e9), story)
    ranks = {key: journal[: cut % (len(journal) + 1)] for key, journal in records.ranks.items()}
    assert account(replace(records, ranks=ranks)).allocated_ns == account(records).allocated_ns


@given(story=deeds)
def test_every_run_has_a_report(new_book, story):
    """However a run ended, its report is strict JSON and readable text."""
    _, records = live(new_book(price_usd_per_hour=2.0), story)
    report = run_report(records, directory="r")
    json.dumps(report.document(), allow_nan=False)
    assert "all device time" in render_report(report)
