"""The kinds of events, what each must hold, and everything that a run wrote, as one value."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from trimtab.ledger.clocks import ClockReading
from trimtab.ledger.errors import JournalError
from trimtab.ledger.journal import Event
from trimtab.terms import Clock


class EventKind(StrEnum):
    """What an event is about. Times are monotonic nanoseconds of the machine that the writer runs on.

    A reader ignores kinds and fields that it does not know.
    """

    # Written by the agent, agent-<attempt>.jsonl.
    RUN = "run"
    """First in its journal: run, attempt (from 1), devices [id], price_usd_per_hour and peak_flops_per_s: one
    number for every device, or {device id: number}, or null if not known; boot: an id of the machine's boot,
    because times of two boots cannot be compared (default "")."""
    ALLOCATED = "allocated"
    """device: from now on it is paid for."""
    RELEASED = "released"
    """device: it is not paid for any more."""
    HOST = "host"
    """host, name of its agent's process, address, devices [id] of it; offset_ns: what must be added to times of its monotonic clock, in the
    journals and clock files of its ranks. Times in this journal are of the coordinator's clock."""
    COORDINATOR = "coordinator"
    """epoch, pid: another coordinator goes on from here, in this epoch."""
    DECIDED = "decided"
    """What happened and what was ordered then: what another coordinator goes on from. The account leaves it out."""
    SPAWNED = "spawned"
    """device, rank, incarnation, pid. t_ns is taken before the fork, so that the process is never older."""
    HELLO = "hello"
    """rank, incarnation: the process has reported to the agent."""
    FAULT = "fault"
    """rank, step, cause, t_fault_ns (the injector's time, else the last sign of life), t_declared_ns."""
    FENCE = "fence"
    """epoch: messages of older epochs are refused from now on."""
    FORMED = "formed"
    """epoch, members [rank]: the living have a process group again."""
    ROLLBACK = "rollback"
    """to_step: the state is that of after to_step commits; what was done since is lost. An attempt that resumes
    from a checkpoint need not say it: its first commit does."""
    MOVED = "moved"
    """rank, to_step, from (positions of the layout that it was in), active [rank by position], bytes (that this rank
    sent), seconds: pieces of the state went to other positions."""
    RECOVERED = "recovered"
    """step: the first step committed after a fault."""
    STACKS = "stacks"
    """logs {rank: path}: these ranks were told to write the stack of every thread, for one of them is ended."""
    EXITED = "exited"
    """rank, incarnation, code, signal: the process was reaped."""
    FINISHED = "finished"
    """state (a RunState), weights_sha256 and error (each may be null): the attempt's end."""

    # Written by each rank, rank-<rank>-<incarnation>.jsonl.
    STEP = "step"
    """step, epoch, start_ns, end_ns; clocks {clock: ns} since the rank's previous step or aborted event, the
    first since its clocks started (``ClockFile.lap``); comm [[name, wait_ns]] of each collective that
    completed, in order, the same name for the same collective on every rank; shares [computed here], reused
    [kept from an earlier attempt], recovered [those of shares that were a lost peer's]; tokens (computed positions), targets (those that count for the loss),
    sent_bytes (payload; 0 in journals of earlier releases) and flops (model FLOPs of all computed positions; no recompute)."""
    MEMORY = "memory"
    """Once, when the last step is committed: device (its kind) and peak_bytes, the most that the rank's process has held
    on it: tensors by the allocator's count, on a CPU resident memory with everything else."""
    ABORTED = "aborted"
    """As step: an attempt at a step that this rank gave up. What of it is lost follows from what is computed
    again."""
    SHARE = "share"
    """step, share: the gradients of one share are complete."""
    COMMIT = "commit"
    """By the lead rank: step, loss, grad_norm, lr, tokens, targets. Step n is the n-th update, from 1. The lead of the next
    epoch tells the last one again, with is_late, for the one before may have died before it could."""
    EVALUATION = "evaluation"
    """By the lead rank: step, loss, targets."""
    SPIKE = "spike"
    """By the lead rank: step, reason, suspect [steps of checkpoints], pinned (a step, or null)."""
    SLOW = "slow"
    """By the lead rank: step, rank, ratio: its seconds a share over the median of all ranks."""
    BALANCED = "balanced"
    """By the lead rank: step, owners [rank by share] from this step on, reason."""
    PROBE = "probe"
    """By the lead rank: step, shares that were computed twice, why, differing [shares whose bits differ]."""
    COMPARED = "compared"
    """By the lead rank: step, is_equal: whether all replicas held the same bits before it."""
    CADENCE = "cadence"
    """By the lead rank: step, reason: the interval between saves has changed."""
    DIGEST = "digest"
    """step, epoch, weights_sha256: of the weights after a step, where the job asks for it."""
    CHECKPOINT = "checkpoint"
    """By the lead rank: step (committed when it was taken), state: saved, failed or skipped. One that is saved has bytes
    and unix_ns, the wall clock when it was known to be durable: what is kept between two attempts, or over a boot,
    cannot be told by monotonic time."""
    PRUNED = "pruned"
    """By the lead rank: step, unix_ns: a checkpoint that was saved is gone."""


class Incarnation(NamedTuple):
    """One process of a rank. A rank that is started again gets a new number, over all attempts of a run."""

    rank: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecords:
    """Everything that a run wrote: what account, series and report read."""

    agents: Sequence[Sequence[Event]]
    """The agent's journal of each attempt, oldest attempt first."""
    ranks: Mapping[Incarnation, Sequence[Event]]
    """The journal of each process."""
    clocks: Mapping[Incarnation, ClockReading]
    """The clock file of each process that started its clocks."""
    has_ended: bool = False
    """Whether nobody is at work in the run: if its last attempt has said no end, it was cut off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """A step of one rank, or an attempt at one, as its ``step`` or ``aborted`` event tells it."""

    step: int
    epoch: int
    start_ns: int
    end_ns: int
    clocks: Mapping[Clock, int]
    waits: Sequence[tuple[str, int]]
    """Name and ns of each completed collective."""
    shares: Sequence[int]
    """Computed, whether finished as its own or for a lost peer."""
    num_recovered: int
    """How many of these for a lost peer: their time is on the clock ``degraded``."""
    tokens: int
    targets: int
    sent_bytes: int
    """Payload that the rank sent."""
    flops: int
    is_aborted: bool
    repeat: int
    """How often the process had done this step in this epoch before: a rollback does steps again."""


def laps_of(events: Sequence[Event]) -> list[Lap]:
    """The laps in one process's journal, oldest first.

    Raises: JournalError if a step lacks one of its times, has one below zero, or names an unknown clock.
    """
    laps = []
    done = Counter[tuple[int, int]]()
    for event in events:
        if event.kind in (EventKind.STEP, EventKind.ABORTED):
            step = event.integer("step"), event.integer("epoch")
            laps.append(_lap_of(event, repeat=done[step]))
            done[step] += 1
    return laps


def _lap_of(event: Event, *, repeat: int) -> Lap:
    fields = event.fields
    try:
        clocks = {Clock(name): int(ns) for name, ns in fields["clocks"].items()}
        waits = [(str(name), int(ns)) for name, ns in fields.get("comm", ())]
        shares = [int(share) for share in fields.get("shares", ())]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(event) from error
    num_recovered = len(fields.get("recovered", ()))
    if min((*clocks.values(), *(ns for _, ns in waits)), default=0) < 0 or num_recovered > len(shares):
        raise _malformed(event)
    return Lap(
        step=event.integer("step"),
        epoch=event.integer("epoch"),
        start_ns=event.integer("start_ns"),
        end_ns=event.integer("end_ns"),
        clocks=clocks,
        waits=waits,
        shares=shares,
        num_recovered=num_recovered,
        tokens=int(fields.get("tokens", 0)),
        targets=int(fields.get("targets", 0)),
        sent_bytes=int(fields.get("sent_bytes", 0)),
        flops=int(fields.get("flops", 0)),
        is_aborted=event.kind == EventKind.ABORTED,
        repeat=repeat,
    )


def _malformed(event: Event) -> JournalError:
    return JournalError(
        f"event {event.kind!r} at t_ns {event.t_ns}: clocks {event.fields.get('clocks')!r}, comm "
        f"{event.fields.get('comm')!r} and shares {event.fields.get('shares')!r} must be {{clock: ns}}, "
        f"[[name, ns]] and [number], no time below zero and no more recovered shares than shares"
    )
