"""Values as JSON and back: what a journal or a link gives back must be what was handed to it."""

import json

import pytest

from tests.policy.test_wire import MESSAGES
from trimtab.policy import events, wire
from trimtab.policy.codec import CodecError, from_json, to_json
from trimtab.policy.coordinator import EVENT_KINDS, ORDER_KINDS, Conclude

EVENTS = [
    events.Spawned(rank=1, incarnation=2),
    events.Exited(rank=1, incarnation=2, how="signal SIGKILL", is_clean=False, fault_ns=5),
    events.HostJoined(host=1, name="n", address="10.0.0.2", running=((1, 2), (3, 0))),
    events.HostLost(host=1, reason="is cut off", is_leaving=False, fault_ns=5),
    events.StopAsked(),
    *(events.Received(rank=0, incarnation=0, message=message) for message in MESSAGES),
]
ORDERS = [
    events.Kill(rank=1, incarnation=2),
    events.Tell(rank=1, message=MESSAGES[4]),
    Conclude(
        is_failed=True,
        error=None,
        is_input_error=False,
        is_cut_off=True,
        is_stopped=False,
        results={"steps": 3},
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event: events.Event) -> None:
    """A tuple that came back as a list would make another state of the same events."""
    assert from_json(json.loads(json.dumps(to_json(event))), EVENT_KINDS) == event


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_comes_back_as_it_was(order: object) -> None:
    """An agent does what comes back."""
    assert from_json(json.loads(json.dumps(to_json(order))), ORDER_KINDS) == order


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        [],
        {},
        {"is": "Popen"},
        {"is": "Kill"},
        {"is": "Kill", "rank": "1", "incarnation": 0},
        {"is": ["Kill"]},
    ],
)
def test_what_was_not_expected_is_refused(value: object) -> None:
    """What arrives must not choose what is made of it."""
    with pytest.raises(CodecError):
        from_json(value, ORDER_KINDS)


def test_a_message_that_agents_do_not_pass_on_is_refused() -> None:
    """A report holds an event, not an order."""
    with pytest.raises(CodecError):
        from_json(to_json(events.Spawn(rank=0, incarnation=0)), EVENT_KINDS)
    assert wire.Stop() == from_json(to_json(wire.Stop()), ORDER_KINDS)
