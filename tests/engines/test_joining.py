"""Who may be a host of a run: a real coordinator, and agents that the tests play."""

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.conftest import Trimtab
from tests.engines.conformance import launch
from tests.engines.driving import wait_for
from trimtab.engines.local.coordinator import own_versions
from trimtab.engines.local.coordinator_process import CoordinatorProcess
from trimtab.engines.local.uplink import Caller, Uplink
from trimtab.ledger import read_events
from trimtab.policy import events, host_wire, wire
from trimtab.terms import read_address

pytestmark = pytest.mark.process

TOKEN = "0123456789abcdef" * 4


@dataclass(kw_only=True)
class Place:
    """A coordinator of a run on two hosts."""

    folder: Path
    address: tuple[str, int]

    def reasons(self) -> list[str]:
        """Why connections were refused."""
        path = self.folder / "journal" / "agent-1.jsonl"
        written = read_events(path.read_bytes()) if path.exists() else []
        return [event.fields["reason"] for event in written if event.kind == "refused"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A coordinator whose first host is named first."""
    selector = selectors.DefaultSelector()
    made = replace(launch(tmp_path), hosts=2, devices=2)
    coordinator = CoordinatorProcess(made, selector, token=TOKEN, first="first", has_ended=lambda how: None)
    coordinator.start()
    try:
        yield Place(folder=tmp_path, address=coordinator.address)
    finally:
        coordinator.close()
        selector.close()


@contextlib.contextmanager
def agent(
    place: Place, name: str, *, token: str = TOKEN, versions: dict[str, str] | None = None
) -> Iterator[Uplink]:
    """An agent without ranks."""
    welcomes: list[host_wire.Welcome] = []
    selector = selectors.DefaultSelector()
    caller = Caller(
        name=name,
        token=token,
        versions=versions or own_versions(),
        running=tuple,
        carry_out=lambda order: None,
        on_welcome=welcomes.append,
    )
    uplink = Uplink(place.address, selector, caller, beat_s=0.1)
    uplink.welcomes, uplink.pump = welcomes, lambda: pump(uplink, selector)  # type: ignore[attr-defined]
    try:
        yield uplink
    finally:
        uplink.close()
        selector.close()


def pump(uplink: Uplink, selector: selectors.BaseSelector) -> None:
    uplink.turn()
    for key, _ in selector.select(0.02):
        key.data()


def until(uplink: Uplink, attribute: str, limit_s: float = 20.0) -> None:
    """Serve the link until something about it holds."""
    deadline_s = time.monotonic() + limit_s
    while not getattr(uplink, attribute):
        assert time.monotonic() < deadline_s, f"{attribute}: {uplink.problem}"
        uplink.pump()  # type: ignore[attr-defined]


def test_hosts_are_numbered_as_they_join_and_known_when_they_return(place: Place) -> None:
    """A host that came back under another number would be given another's ranks."""
    with agent(place, "first") as first, agent(place, "second") as second:
        for uplink in (second, first):
            until(uplink, "is_connected")
        second.drop("the link broke")
        until(second, "is_connected")
        assert [each.host for each in first.welcomes] == [0]  # type: ignore[attr-defined]
        assert [each.host for each in second.welcomes] == [1, 1]  # type: ignore[attr-defined]


def test_reports_arrive_once_and_in_order_over_any_number_of_connections(place: Place) -> None:
    """A report that is lost is a death that nobody hears of; one that counts twice is a death too many."""
    with agent(place, "first") as first:
        for rank in range(2):
            first.report(events.Spawned(rank=rank, incarnation=0))
            if first.is_connected:
                first.drop("the link broke")
            until(first, "is_connected")
        until(first, "is_heard")
    written = read_events((place.folder / "journal" / "agent-1.jsonl").read_bytes())
    spawned = [
        event.fields["what"]["rank"]
        for event in written
        if event.kind == "decided" and event.fields["what"]["is"] == "Spawned"
    ]
    assert spawned == [0, 1]


def test_another_version_is_refused_with_a_table(place: Place) -> None:
    """S-FT-13: it would fail later, deep in a message that the other version does not know."""
    with agent(place, "second", versions={"trimtab": "0.0.1", "python": own_versions()["python"]}) as other:
        until(other, "refusal")
        assert other.refusal is not None
        assert f"trimtab: 0.0.1 at 127.0.0.1, {own_versions()['trimtab']} here" in other.refusal
        assert "python" not in other.refusal


def test_an_agent_that_does_not_know_the_token_is_told_nothing(place: Place) -> None:
    """Whoever joins is sent the run's settings and may change its weights."""
    with agent(place, "second", token="f" * 64) as stranger:

        def is_refused() -> bool:
            stranger.pump()  # type: ignore[attr-defined]
            return any("does not know this run's token" in reason for reason in place.reasons())

        wait_for(is_refused, 20)
        assert stranger.welcomes == []  # type: ignore[attr-defined]
        assert stranger.refusal is None, "it may try again with the right one"


def test_a_coordinator_that_does_not_know_the_token_is_not_obeyed() -> None:
    """An agent starts what it is told to: whoever listens at the address must prove itself."""
    carried: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        selector = selectors.DefaultSelector()
        caller = Caller(token=TOKEN, versions={}, running=tuple, carry_out=carried.append)
        uplink = Uplink(listener.getsockname(), selector, caller, beat_s=0.1)
        uplink.turn()
        impostor, _ = listener.accept()
        with impostor:
            impostor.sendall(wire.encode(host_wire.Challenge(nonce="n")))
            welcome = host_wire.Welcome(
                host=1, proof="0" * 64, reports=0, launch={}, lease_s=1.0, patience_s=1.0
            )
            order = host_wire.Order(number=1, action={"is": "Spawn", "rank": 0, "incarnation": 0})
            impostor.sendall(wire.encode(welcome) + wire.encode(order))
            deadline_s = time.monotonic() + 10
            while "does not know" not in uplink.problem and time.monotonic() < deadline_s:
                for key, _ in selector.select(0.05):
                    key.data()
        assert uplink.problem == "whoever listens there does not know this run's token"
        assert not carried
        assert not uplink.is_connected
        uplink.close()
        selector.close()


def test_no_more_hosts_than_the_run_has(place: Place) -> None:
    """One too many must wait until a place is free, and not push another host out."""
    with agent(place, "first") as first, agent(place, "second") as second, agent(place, "third") as third:
        for uplink in (first, second):
            until(uplink, "is_connected")

        def has_waited() -> bool:
            for uplink in (first, second, third):
                uplink.pump()  # type: ignore[attr-defined]
            return any("every host of the run is there" in reason for reason in place.reasons())

        wait_for(has_waited, 20)
        assert third.welcomes == []  # type: ignore[attr-defined]
        assert second.is_connected


def test_a_port_that_is_taken_is_named(trimtab: Trimtab) -> None:
    """S-FT-10: the second of two runs at one address must say so, and not join the first one's ranks."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = trimtab(
            "run", "tiny.yaml", "--set", "run=taken", "--set", "orchestration.hosts=2",
            "--set", f"orchestration.listen=127.0.0.1:{port}", check=1,
        )  # fmt: skip
    assert f"cannot listen at 127.0.0.1:{port}" in refused.stderr
    assert "Port 0 takes a free one" in refused.stderr


def test_an_agent_that_finds_nobody_says_what_is_wrong(trimtab: Trimtab, workplace: Path) -> None:
    """A misspelt address is found at once, and not after a minute of trying."""
    refused = trimtab("agent", "--join", "eth0", "--token-file", "none", check=2)
    assert "it takes ADDRESS:PORT" in refused.stderr
    assert read_address("eth0") is None
