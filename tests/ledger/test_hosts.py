"""Times of several hosts on one clock."""

from trimtab.ledger import Event, EventKind, Incarnation, clock_offsets_ns, moved


def spawned(rank: int, incarnation: int) -> Event:
    return Event(
        kind=EventKind.SPAWNED, t_ns=0, fields={"device": rank, "rank": rank, "incarnation": incarnation}
    )


def host(offset_ns: int, *devices: int) -> Event:
    return Event(
        kind=EventKind.HOST, t_ns=0, fields={"host": 1, "devices": list(devices), "offset_ns": offset_ns}
    )


def test_each_process_reads_the_clock_of_its_host() -> None:
    """A host that another agent took over may be another machine: only what it started reads its clock."""
    journal = [spawned(0, 0), host(50, 1), spawned(1, 0), host(70, 1), spawned(1, 1)]
    assert clock_offsets_ns([journal]) == {Incarnation(1, 0): 50, Incarnation(1, 1): 70}


def test_moments_are_moved_and_lengths_are_not() -> None:
    """A wait that grew by the difference of two clocks would be hours long."""
    step = Event(
        kind=EventKind.STEP, t_ns=9, fields={"start_ns": 5, "end_ns": 9, "clocks": {"compute": 4}, "step": 3}
    )
    found = moved(step, 100)
    assert found.t_ns == 109
    assert found.fields == {"start_ns": 105, "end_ns": 109, "clocks": {"compute": 4}, "step": 3}
    assert moved(step, 0) is step
