"""The coordinator as values: one that reads its journal must be where the one before it was, order by order."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trimtab.policy import events, wire
from trimtab.policy import members as m
from trimtab.policy.coordinator import DECIDED, ITSELF, Coordinator, Line, Moment
from trimtab.policy.quorum import Hosts
from trimtab.terms import OnLoss, Phase

RANKS = 4


def beginning(num_hosts: int = 1) -> m.State:
    """A run of four ranks before anything has happened."""
    everybody = frozenset(range(num_hosts))
    return m.State(
        num_shares=4,
        on_loss=OnLoss.EXACT,
        limits=m.Limits(),
        is_replacing=True,
        incarnations=dict.fromkeys(range(RANKS), -1),
        hosts=Hosts(
            placement=tuple(rank * num_hosts // RANKS for rank in range(RANKS)),
            reachable=frozenset(),
            voters=everybody,
            entered=everybody,
        ),
    )


@dataclass
class Run:
    """A coordinator whose agents do what it orders, and the journal that it writes."""

    coordinator: Coordinator
    journal: list[str] = field(default_factory=list)
    now_s: float = 100.0
    numbers: dict[int, int] = field(default_factory=dict)

    def take(self, event: events.Event, host: int = ITSELF) -> None:
        self.numbers[host] = self.numbers.get(host, 0) + 1
        self.now_s += 0.01
        moment = Moment(now_s=self.now_s, now_ns=int(self.now_s * 1e9), host=host, number=self.numbers[host])
        for line in self.coordinator.take(event, moment).lines:
            if line.kind == DECIDED:
                self.journal.append(json.dumps(line.fields))

    def join(self, host: int = 0, *running: tuple[int, int]) -> None:
        self.take(events.HostJoined(host=host, name=f"agent-{host}", address="::1", running=running))

    def say(self, rank: int, message: wire.Message) -> None:
        incarnation = self.coordinator.state.incarnations[rank]
        self.take(
            events.Received(rank=rank, incarnation=incarnation, message=message),
            self.coordinator.state.hosts.of(rank),
        )

    def start(self, rank: int) -> None:
        incarnation = self.coordinator.state.incarnations[rank] + 1
        self.take(events.Spawned(rank=rank, incarnation=incarnation), self.coordinator.state.hosts.of(rank))
        self.say(rank, wire.Hello(rank=rank, incarnation=incarnation, pid=1, proof="", fingerprint={}))

    def park(self, rank: int, *, left: int, committed: int) -> None:
        self.say(rank, wire.Parked(left_epoch=left, committed=committed, held=(rank,), store_port=7, t_ns=0))

    def die(self, rank: int) -> None:
        incarnation = self.coordinator.state.incarnations[rank]
        exited = events.Exited(
            rank=rank, incarnation=incarnation, how="signal SIGKILL", is_clean=False, fault_ns=1
        )
        self.take(exited, self.coordinator.state.hosts.of(rank))

    def reborn(self, beginning: m.State) -> Coordinator:
        """One that has read the journal."""
        coordinator = Coordinator(beginning)
        for line in self.journal:
            coordinator.replay(json.loads(line))
        return coordinator


def training() -> Run:
    """Four ranks in epoch 1."""
    run = Run(Coordinator(beginning()))
    run.join()
    for rank in range(RANKS):
        run.start(rank)
    for rank in range(RANKS):
        run.park(rank, left=-1, committed=0)
    assert run.coordinator.state.epoch == 1
    return run


def beat(progress: int) -> wire.Beat:
    return wire.Beat(step=5, phase=Phase.COMPUTE, progress=progress, waiting=False, t_ns=0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["die", "beat", "commit", "park", "start", "tick", "trouble", "stop", "join", "lose"]
        ),
        st.integers(0, RANKS - 1),
        st.integers(0, 5),
    ),
    max_size=40,
)


def act(run: Run, what: str, rank: int, number: int) -> None:
    state = run.coordinator.state
    match what:
        case "die":
            run.die(rank)
        case "beat":
            run.say(rank, beat(number))
        case "commit":
            run.say(rank, wire.Committed(epoch=state.epoch, step=number, t_ns=int(run.now_s * 1e9)))
        case "park":
            run.park(rank, left=state.epoch, committed=number)
        case "start":
            run.start(rank)
        case "tick":
            run.now_s += number
            run.take(events.Tick())
        case "trouble":
            run.say(rank, wire.Trouble(epoch=state.epoch, error="reset", t_ns=1))
        case "stop":
            run.take(events.StopAsked(), 0)
        case "join":
            run.join(state.hosts.of(rank))
        case "lose":
            lost = events.HostLost(
                host=state.hosts.of(rank), reason="is cut off", is_leaving=False, fault_ns=1
            )
            if lost.host in run.coordinator.outboxes:
                run.take(lost)


@given(STEPS, st.sampled_from([1, 2, 4]))
@example(
    [("die", 0, 0), ("stop", 0, 0), *[("tick", 0, 5)] * 4], 1
)  # a grace that is half over, and nobody in a step
@settings(max_examples=200)
def test_a_journal_leads_to_the_same_state_and_the_same_orders(
    steps: list[tuple[str, int, int]], num_hosts: int
) -> None:
    """A coordinator that came to another epoch, or forgot an order, would leave ranks waiting or form two histories."""
    run = Run(Coordinator(beginning(num_hosts)))
    for host in range(num_hosts):
        run.join(host)
    for rank in range(RANKS):
        run.start(rank)
    for rank in range(RANKS):
        run.park(rank, left=-1, committed=0)
    for step in steps:
        act(run, *step)
        assert run.coordinator.state.is_over or _fits(run.coordinator.state)
    run.take(
        events.CoordinatorBack()
    )  # writes what was held back; a dead one would have lost only signs of life
    again = run.reborn(beginning(num_hosts))
    assert again.differences == []
    assert again.state == run.coordinator.state
    assert again.conclusion == run.coordinator.conclusion
    for host, outbox in run.coordinator.outboxes.items():
        assert again.outboxes[host].orders == outbox.orders
        assert again.outboxes[host].num_orders == outbox.num_orders


def _fits(state: m.State) -> bool:
    """What must hold after any event: who trains is a member of the epoch, and there was a quorum for it."""
    return not state.is_formed or bool(state.hosts.entered)


def test_signs_of_life_alone_write_nothing() -> None:
    """A journal that grew with every heartbeat would fill the disk of a run that lasts for months."""
    run = training()
    written = len(run.journal)
    for number in range(1000):
        for rank in range(RANKS):
            run.say(rank, beat(number))
            run.say(rank, wire.Committed(epoch=1, step=number, t_ns=0))
        run.take(events.Tick())
    assert len(run.journal) == written
    run.die(2)
    assert len(run.journal) - written <= 3 * RANKS + 1, "of each rank no more than tells the same"


def test_an_order_that_may_not_have_arrived_is_given_again() -> None:
    """Killed after it wrote and before it sent: the ranks would wait for a Form that nobody sends."""
    run = training()
    run.coordinator.outboxes[0].done(10_000)
    run.die(1)
    fences = [order for _, order in run.coordinator.outboxes[0].orders]
    again = run.reborn(beginning()).outboxes[0].orders
    assert fences
    assert [order for _, order in again][-len(fences) :] == fences


def test_a_report_that_arrives_twice_counts_once() -> None:
    """After a reconnection an agent sends again what may have been lost."""
    run = training()
    exited = events.Exited(rank=1, incarnation=0, how="signal SIGKILL", is_clean=False, fault_ns=1)
    moment = Moment(now_s=200.0, now_ns=200, host=0, number=run.numbers[0] + 1)
    assert run.coordinator.take(exited, moment).lines
    losses = run.coordinator.state.losses
    assert run.coordinator.take(exited, moment).lines == ()
    assert run.coordinator.state.losses == losses


def test_what_was_ordered_then_holds_where_it_is_decided_otherwise_today() -> None:
    """A journal of another release must not make agents carry out an order under the number of another one."""
    run = training()
    changed = [json.loads(line) for line in run.journal]
    formed = next(line for line in changed if any("Form" in str(order) for order in line["orders"]))
    formed["orders"] = formed["orders"][:2]
    coordinator = Coordinator(beginning())
    for line in changed:
        coordinator.replay(line)
    assert len(coordinator.differences) == 1
    assert coordinator.outboxes[0].num_orders == run.coordinator.outboxes[0].num_orders - 2


def test_silence_while_nobody_listened_counts_against_nobody() -> None:
    """The first Tick of a coordinator that was away for long must not kill every rank."""
    run = training()
    for rank in range(RANKS):
        run.say(rank, beat(1))
    run.now_s += 1000.0
    run.take(events.CoordinatorBack())
    run.take(events.Tick())
    assert not [order for _, order in run.coordinator.outboxes[0].orders if isinstance(order, events.Kill)]


def test_a_fault_and_its_recovery_stand_in_the_journal_once() -> None:
    """The account and the report read them there."""
    run = training()
    seen: list[Line] = []
    moment = Moment(now_s=200.0, now_ns=200 * 10**9, host=0, number=run.numbers[0] + 1)
    exited = events.Exited(rank=1, incarnation=0, how="signal SIGKILL", is_clean=False, fault_ns=1)
    seen += run.coordinator.take(exited, moment).lines
    assert [line.kind for line in seen][:-1] == ["decision", "fault", "fence"]
    assert seen[-1].kind == DECIDED


def test_ranks_of_a_host_that_was_cut_off_begin_anew() -> None:
    """What still runs there belongs to an epoch that is over: it must end, and a newcomer take its place."""
    run = Run(Coordinator(beginning(2)))
    run.join(0)
    run.join(1)
    for rank in range(RANKS):
        run.start(rank)
    for rank in range(RANKS):
        run.park(rank, left=-1, committed=0)
    run.take(events.HostLost(host=1, reason="is cut off", is_leaving=False, fault_ns=1))
    for rank in (0, 1):
        run.park(rank, left=1, committed=0)
    assert run.coordinator.state.roster == (0, 1)
    run.join(1, (2, 0), (3, 0))
    ordered = [order for _, order in run.coordinator.outboxes[1].orders]
    assert ordered == [
        events.Kill(rank=2, incarnation=0),
        events.Spawn(rank=2, incarnation=1),
        events.Kill(rank=3, incarnation=0),
        events.Spawn(rank=3, incarnation=1),
    ]


@pytest.mark.parametrize("change", [{"what": {"is": "Nobody"}}, {"what": {"is": "Tick", "x": 1}}])
def test_a_line_of_another_version_is_refused(change: dict[str, Any]) -> None:
    """Guessing what a foreign line meant would decide on what never happened."""
    run = training()
    with pytest.raises(Exception, match="no value of this version"):
        Coordinator(beginning()).replay({**json.loads(run.journal[0]), **change})


def test_weights_that_differ_at_the_end_fail_the_run() -> None:
    """The guarantee is broken, and that must be loud."""
    run = training()
    for rank in range(RANKS):
        results: dict[str, float | int | str | None] = {"weights_sha256": f"{rank % 2}"}
        run.say(rank, wire.Finished(step=12, is_stopped=False, results=results))
    conclusion = run.coordinator.conclusion
    assert conclusion is not None
    assert conclusion.error == "replicas ended with different weights: ['0', '1']"
    assert replace(conclusion, error=None).is_failed
