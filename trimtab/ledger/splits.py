"""From what a rank's clocks measure to the ledger's classes: communication by comparison, compute by FLOPs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from trimtab.ledger.events import Lap
from trimtab.terms import Clock, LedgerClass

_SAME_NAME = {clock: LedgerClass(clock.value) for clock in Clock if clock not in (Clock.COMPUTE, Clock.COMM)}
_NS_PER_S = 10**9

Collective = tuple[int, int, int, str, int]
"""One collective, the same on every rank that took part in it: step, epoch, repeat of the step, name, and which
one of this name in the step, from 0. A plain tuple, because a long run has millions."""


def shortest_waits(laps: Iterable[Lap]) -> dict[Collective, int]:
    """How long the last to arrive waited in each collective that left a record on two ranks or more, ns.

    That is the transfer, because for it all were present; whatever another rank waited longer is skew. It
    needs no synchronised clocks.

    Args:
        laps: Of all ranks in one attempt, in any order.
    """
    shortest: dict[Collective, int] = {}
    alone = set()
    for lap in laps:
        for collective, wait_ns in _collectives(lap):
            if collective in shortest:
                alone.discard(collective)
                shortest[collective] = min(shortest[collective], wait_ns)
            else:
                alone.add(collective)
                shortest[collective] = wait_ns
    for collective in alone:
        del shortest[collective]
    return shortest


def split_lap(
    lap: Lap,
    measured: Mapping[Clock, int],
    *,
    shortest: Mapping[Collective, int],
    peak_flops_per_s: float | None,
) -> Counter[LedgerClass]:
    """The classes of the time that a rank's clocks measured in one lap; they add up to it exactly.

    useful is the model FLOPs of positions with a target over the peak, padding that of the other positions,
    both inside the measured compute time; without a declared peak all of it is compute_gap.
    comm_transfer is the sum of the shortest waits over ranks, inside the measured comm time; the rest, with
    collectives that were interrupted or left no other record, is comm_skew.
    """
    compute_ns = measured.get(Clock.COMPUTE, 0)
    ideal_ns = 0
    if peak_flops_per_s:
        ideal_ns = min(compute_ns, _own_flops(lap) * _NS_PER_S // round(peak_flops_per_s))
    padding_ns = ideal_ns * (lap.tokens - lap.targets) // lap.tokens if lap.tokens > lap.targets else 0
    transfer_ns = sum(shortest.get(collective, 0) for collective, _ in _collectives(lap))
    return _split(
        measured,
        useful_ns=ideal_ns - padding_ns,
        padding_ns=padding_ns,
        transfer_ns=min(transfer_ns, measured.get(Clock.COMM, 0)),
    )


def split_rest(measured: Mapping[Clock, int]) -> Counter[LedgerClass]:
    """The classes of measured time that no step tells about: compute without known FLOPs, comm without peers."""
    return _split(measured, useful_ns=0, padding_ns=0, transfer_ns=0)


def _collectives(lap: Lap) -> Iterator[tuple[Collective, int]]:
    seen: dict[str, int] = {}
    for name, wait_ns in lap.waits:
        occurrence = seen.get(name, 0)
        seen[name] = occurrence + 1
        yield (lap.step, lap.epoch, lap.repeat, name, occurrence), wait_ns


def _own_flops(lap: Lap) -> int:
    """Without the shares of a lost peer, which are equal in size and whose time is on another clock."""
    if not lap.num_recovered:
        return lap.flops
    return lap.flops * (len(lap.shares) - lap.num_recovered) // len(lap.shares)


def _split(
    measured: Mapping[Clock, int], *, useful_ns: int, padding_ns: int, transfer_ns: int
) -> Counter[LedgerClass]:
    classes = Counter({_SAME_NAME[clock]: ns for clock, ns in measured.items() if clock in _SAME_NAME})
    classes[LedgerClass.USEFUL] = useful_ns
    classes[LedgerClass.PADDING] = padding_ns
    classes[LedgerClass.COMPUTE_GAP] = measured.get(Clock.COMPUTE, 0) - useful_ns - padding_ns
    classes[LedgerClass.COMM_TRANSFER] = transfer_ns
    classes[LedgerClass.COMM_SKEW] = measured.get(Clock.COMM, 0) - transfer_ns
    return classes
