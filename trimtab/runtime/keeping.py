"""Keeps a run's state: decides at every step border whether to save, stages, and says what became of it.

Of a state that every rank has only the lead rank of an epoch saves. Of a state in pieces every rank saves its own, and the
lead makes one checkpoint of them. Whoever becomes lead after a loss starts a saver of its own and goes on from what is on
disk.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from trimtab.ledger.checkpoint_folders import folder_name, unfinished_name, writer_of
from trimtab.policy import (
    NextSave,
    Retention,
    SaveObservations,
    best_step,
    expected_save_s,
    next_save,
    prior_mttf_s,
)
from trimtab.runtime.checkpoint.contents import Contents, open_contents
from trimtab.runtime.checkpoint.events import Failed, Pruned, Saved, Skipped, WriterLost
from trimtab.runtime.checkpoint.keyring import Keyring
from trimtab.runtime.checkpoint.loader import CheckpointState, shapes_of
from trimtab.runtime.checkpoint.marks import read_marks
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.saver import Company, Fault, Saver
from trimtab.runtime.checkpoint.store import await_sight, find_checkpoints, newest_complete, set_aside
from trimtab.runtime.errors import RankError
from trimtab.runtime.faults import Faults
from trimtab.runtime.process_groups import Group
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.run_state import Parts, RunState, is_leftover
from trimtab.runtime.watch import Watch
from trimtab.spec import IN_WRITER, FaultKind
from trimtab.terms import Clock, Phase

_PART_OF_LOST_S = 2.0
"""How long a save in pieces may still take when one that took part is lost; training waits meanwhile."""
_TOLD_CHANGE = 0.5
"""Part of the interval between saves by which it must change to be told: step times fluctuate."""
_SPEED_WEIGHT = 0.2
"""Weight of the newest step in the mean step time."""

_ANEW = (
    "{name} was saved under another strategy or on other ranks: what COMPRESS had left over there, to be sent later, is "
    "dropped, and starts anew; weights and optimizer states go on"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepingRules:
    """Constants of the run that saving depends on.

    Args:
        every: Steps between two saves, ``adaptive`` or ``off``.
        keep: Newest checkpoints that stay.
        keep_every: Those of steps that it divides stay for good.
        identity: What a checkpoint must have in common with the run that loads it.
        reserve: A checkpoint of so many steps before the newest one stays, too, to go back to from a spike; None: none does.
        prior_mttf_s: Time between losses that need a checkpoint, assumed before there was one.
        root: Where the run's checkpoints are.
        keys: What checkpoints are signed with.
    """

    every: int | Literal["adaptive", "off"]
    keep: int
    keeps_best: bool
    keep_every: int | None
    batch: int
    seed: int
    root: Path | ObjectPath
    keys: Keyring
    identity: dict[str, str] = field(default_factory=dict)
    reserve: int | None = None
    prior_mttf_s: float = field(default_factory=lambda: prior_mttf_s(1, survives_in_the_step=False))


class Keeper:
    """Saves and loads a run's state, on one rank.

    Args:
        folder: Of the run.
        is_first: Whether this is the first rank of the run, who says what each of them does alike.
        tell: Told of every event, with its kind and fields.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rules: KeepingRules,
        is_first: bool,
        state: RunState,
        recorder: Recorder,
        faults: Faults,
        watch: Watch,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._folder, self._rules, self._is_first, self._state = folder, rules, is_first, state
        self._recorder, self._faults, self._watch, self._tell = recorder, faults, watch, tell
        self._saver: Saver | None = None
        self._group: Group | None = None
        self._saved_by: Mapping[int, Parts] = {}
        self._last_saved = 0
        self._step_s = 0.0
        self._stall_s = self._drain_s = 0.0
        self._started_s = self._bordered_s = time.monotonic()
        self._losses_s: list[float] = []
        self._told_interval = 0
        self._scores: dict[int, float] = {}
        self._pinned: set[int] = set()

    def load(self, step: int | None = None) -> int:
        """Take over the checkpoint of a step, or the newest complete one; returns its step, 0 if there is none.

        Raises: RankError if it belongs to other data or another model, naming what differs; CheckpointError if the one
            of that step is not there, not whole, or not signed by this run.
        """
        folder = None if step is None else self._rules.root / folder_name(step)
        if step is None:
            newest = newest_complete(self._rules.root, self._rules.keys, self._suspect())
            folder = newest.folder
            for warning in newest.warnings:
                self._tell("warning", {"text": warning})
        if folder is None:
            return 0
        if step is not None:
            await_sight(folder, self._rules.keys, on_wait=self._watch.move)
        with open_contents(folder, self._rules.keys) as contents:
            for warning in contents.warnings if self._is_first else ():
                self._tell("warning", {"text": warning})
            self._check_identity(contents, folder.name)
            is_same_layout = contents.extra.get("layout", "") == self._state.layout
            contents.check_shapes(
                shapes_of(self._state.shapes()), passed_over=None if is_same_layout else is_leftover
            )
            if not is_same_layout and self._is_first:
                self._tell("warning", {"text": _ANEW.format(name=folder.name)})
            self._state.load(CheckpointState(contents), is_same_layout=is_same_layout)
            self._state.num_updates = int(contents.extra["optimizer_steps"])
            self._scores = {int(step): loss for step, loss in contents.extra.get("scores", {}).items()}
            self._pinned |= set(contents.extra.get("pinned", ()))
            self._last_saved = contents.step
        return self._last_saved

    def part_from_the_lost(self, members: Sequence[int]) -> None:
        """Before an epoch of these ranks: wait for no part of a save that may have died with its rank."""
        if self._group is None or self._saver is None or {*self._group.members} <= {*members}:
            return
        if self._is_in_company:
            for event in (*self._saver.drain(_PART_OF_LOST_S), *self._saver.close(wait=False)):
                self._say(event)
            self._saver = None

    def enter(self, group: Group, *, num_losses: int) -> None:
        """An epoch begins; since the one before ``num_losses`` ranks were lost that only a checkpoint can make good."""
        self._group = group
        saved_by = self._state.saved_by(group)
        if self._saver is not None and _names(saved_by) != _names(self._saved_by):
            self._drain()
            self._saver.close()
            self._saver = None
        self._saved_by = saved_by
        self._losses_s += [time.monotonic()] * num_losses
        self._bordered_s = time.monotonic()

    def note_evaluation(self, finished: int, loss: float | None) -> None:
        """Remember a score, by which the best checkpoint is kept."""
        if loss is not None:
            self._scores[finished] = loss

    def at_border(self, finished: int, *, is_urgent: bool = False) -> None:
        """A step is committed: hear what became of earlier saves, and save if it is time.

        Args:
            finished: Steps committed so far.
            is_urgent: Save now whatever the cadence says.
        """
        now_s = time.monotonic()
        took_s, self._bordered_s = now_s - self._bordered_s, now_s
        self._step_s = took_s if not self._step_s else self._step_s + _SPEED_WEIGHT * (took_s - self._step_s)
        self._hear()
        if self._rules.every == "off" or not self._agree(is_urgent or self._is_due(finished)):
            return
        self._save(finished)
        self._last_saved = finished
        self._watch.enter(Phase.CHECKPOINT, finished)
        self._faults.at_phase(Phase.CHECKPOINT, finished)

    def pin(self, step: int) -> None:
        """Keep the checkpoint of this step whatever newer ones there are. On all ranks, for any may become the lead."""
        self._pinned.add(step)

    def has_one_until(self, step: int) -> bool:
        """Whether there is a complete checkpoint of this step or an earlier one; the save under way is waited for."""
        self.wait()
        return any(found <= step for found in self.complete_steps())

    def warn(self, text: str) -> None:
        """Tell something that somebody should look at, once for all ranks."""
        if self._is_lead:
            self._tell("warning", {"text": text})

    def set_aside_after(self, step: int) -> None:
        """Let no checkpoint of a later step count: what it holds may be spoilt. Nothing is deleted. On the lead."""
        if self._saver is not None:
            self._drain()
            self._saver.close()
            self._saver = None
        later = [found for found in self.complete_steps() if found > step]
        for spoilt in later:
            set_aside(self._rules.root, spoilt)
        self._scores = {known: loss for known, loss in self._scores.items() if known <= step}
        self._last_saved = 0
        if later:
            text = f"checkpoints of steps {', '.join(map(str, later))} were set aside: they may be spoilt"
            self._tell("warning", {"text": text})

    def wait(self) -> None:
        """Wait for the save under way, if this rank has one."""
        if self._saver is not None:
            with self._recorder.within(Clock.CHECKPOINT_STALL):
                self._drain()

    def save_and_wait(self, finished: int) -> None:
        """The last save of an attempt: it is durable, or known to have failed, when this returns."""
        if self._rules.every == "off":
            return
        with self._recorder.within(Clock.CHECKPOINT_STALL):
            self._drain()
            if self._agree(self._is_lead and finished not in self._own_saver().complete):
                self._save(finished)
                self._drain()

    def newest_saved(self) -> int:
        """The step of the newest complete checkpoint; 0 if there is none, or the place does not answer.

        On any rank, inside an epoch or not.
        """
        try:
            return max(self.complete_steps(), default=0)
        except OSError:
            return 0

    def complete_steps(self) -> list[int]:
        """Steps of the complete checkpoints."""
        return [found.step for found in find_checkpoints(self._rules.root) if found.is_complete]

    def _is_due(self, finished: int) -> bool:
        expected = expected_save_s(self._state_bytes())
        observed = SaveObservations(
            last_saved=self._last_saved,
            step_s=max(self._step_s, 1e-6),
            stall_s=self._stall_s or expected[0],
            drain_s=self._drain_s or expected[1],
            running_s=time.monotonic() - self._started_s,
            failure_ages_s=[time.monotonic() - lost_s for lost_s in self._losses_s],
            prior_mttf_s=self._rules.prior_mttf_s,
        )
        due = next_save(self._rules.every, observed, finished=finished)
        self._say_cadence(finished, due)
        is_due = due.step is not None and finished >= due.step
        if is_due and self._is_lead:
            self._recorder.event("save_due", step=finished, reason=due.reason)
        return is_due

    def _say_cadence(self, finished: int, due: NextSave) -> None:
        """Why saves are so far apart, whenever that has changed by more than noise does."""
        interval = 0 if due.step is None else due.step - self._last_saved
        if self._is_lead and abs(interval - self._told_interval) > _TOLD_CHANGE * self._told_interval:
            self._told_interval = interval
            self._tell("cadence", {"step": finished, "reason": due.reason})

    @property
    def _is_lead(self) -> bool:
        assert self._group is not None, "saves happen inside an epoch"
        return self._group.members[0] == self._group.rank

    def _agree(self, lead_says: bool) -> bool:
        assert self._group is not None, "saves happen inside an epoch"
        return self._state.agree(self._group, lead_says)

    def _save(self, finished: int) -> None:
        assert self._group is not None, "saves happen inside an epoch"
        is_writer = self._group.rank in self._saved_by
        if not self._is_in_company and not is_writer:
            return
        started_s = time.monotonic()
        with self._recorder.within(Clock.CHECKPOINT_STALL):
            is_finite = self._state.is_finite()
            into = self._opened(finished, is_finite) if self._is_in_company else None
            if is_writer and (into is not None or not self._is_in_company):
                self._stage(finished, is_finite, into)
            self._faults.in_timer(Clock.CHECKPOINT_STALL, finished)
        self._stall_s = time.monotonic() - started_s
        self._hear()

    def _stage(self, finished: int, is_finite: bool, into: str | None) -> None:
        saver = self._own_saver()
        best = best_step(self._scores_on_disk(saver, finished)) if self._rules.keeps_best else None
        saver.stage(
            finished,
            self._state.saved(),
            self._extra(finished),
            retention=self._retention(best, saver.complete, finished),
            finite=is_finite,
            fault=self._fault(finished),
            into=into,
        )

    def _staying(self, complete: Collection[int], finished: int) -> frozenset[int]:
        """What stays beside the newest ones: what is pinned, and all from one on that could be gone back to from a spike."""
        if self._rules.reserve is None:
            return frozenset(self._pinned)
        old = max((step for step in complete if step <= finished - self._rules.reserve), default=0)
        return frozenset(self._pinned | {step for step in complete if step >= old})

    def _retention(self, best: int | None, complete: frozenset[int], finished: int) -> Retention:
        """What stays after the next save; all of it, while nobody can tell what is pinned."""
        rule = Retention(newest=self._rules.keep, every=self._rules.keep_every, best=best)
        try:
            marks = read_marks(self._folder)
        except (OSError, ValueError) as error:
            self._tell("warning", {"text": f"no checkpoint is removed: {error}"})
            return replace(rule, pinned=complete)
        return replace(
            rule, pinned=marks.pinned | self._staying(complete, finished), suspect=frozenset(marks.suspect)
        )

    def _suspect(self) -> Mapping[int, str]:
        try:
            return read_marks(self._folder).suspect
        except (OSError, ValueError) as error:
            self._tell("warning", {"text": f"no checkpoint is passed over as suspect: {error}"})
            return {}

    def _opened(self, finished: int, is_finite: bool) -> str | None:
        """All agree that they can save, and on the folder that the lead has made; None if somebody cannot."""
        assert self._group is not None, "saves happen inside an epoch"
        own = self._own_saver() if self._group.rank in self._saved_by else None
        name = own.open(finished) if own is not None and self._is_lead else None
        pid, space = (writer_of(name) or (0, "0")) if name else (0, "0")
        is_busy = own is not None and own.saving is not None
        word = torch.tensor([pid, int(space, 16), not is_finite, is_busy], dtype=torch.int64)
        self._group.all_reduce(word, operation="max")
        opened_by, opened_in, somewhere_bad, somewhere_busy = word.tolist()
        if not opened_by:
            return None
        if somewhere_bad or somewhere_busy:
            if own is not None and name:
                reason = (
                    "holds values that are not finite" if somewhere_bad else "is still writing the one before"
                )
                own.give_up(finished, name, f"a rank {reason}")
            return None
        return unfinished_name(finished, opened_by, f"{opened_in:08x}")

    @property
    def _is_in_company(self) -> bool:
        """Whether several ranks save."""
        return len(self._saved_by) > 1

    def _scores_on_disk(self, saver: Saver, finished: int) -> dict[int, float]:
        there = saver.complete | {finished}
        return {step: loss for step, loss in self._scores.items() if step in there}

    def _fault(self, finished: int) -> Fault | None:
        if self._faults.of_writer(FaultKind.DISK_FULL, finished):
            return Fault.DISK_FULL
        if self._faults.of_writer(FaultKind.TORN_CHECKPOINT, finished):
            return Fault.TORN
        if self._faults.in_writer(IN_WRITER, finished):
            return Fault.SLOW
        return None

    def _own_saver(self) -> Saver:
        """Of this rank, which saves something."""
        assert self._group is not None, "saves happen inside an epoch"
        if self._saver is None:
            others = {rank: parts for rank, parts in self._saved_by.items() if rank != self._group.rank}
            company = Company(
                rank=self._group.rank, is_lead=self._is_lead, others=others if self._is_lead else {}
            )
            own = self._saved_by[self._group.rank]
            self._saver = Saver(
                self._rules.root,
                own,
                company if others else None,
                keys=self._rules.keys,
                run_folder=self._folder,
            )
            self._last_saved = max((*self._saver.complete, self._last_saved))
        return self._saver

    def _hear(self) -> None:
        if self._saver is not None:
            for event in self._saver.poll():
                self._say(event)

    def _drain(self) -> None:
        if self._saver is not None:
            for event in self._saver.drain():
                self._say(event)

    def _say(self, event: object) -> None:
        is_part = self._is_in_company and not self._is_lead
        match event:
            case Saved() | Skipped() if is_part:
                pass  # the lead says it of all
            case Failed() if is_part:
                text = f"{folder_name(event.step)}: a part of it could not be written: {event.reason}"
                self._tell("warning", {"text": text})
            case Saved():
                self._drain_s = event.seconds
                fields = {
                    "step": event.step,
                    "state": "saved",
                    "seconds": event.seconds,
                    "bytes": event.size_bytes,
                    "unix_ns": time.time_ns(),
                }
                self._tell("checkpoint", fields)
            case Failed():
                self._tell("checkpoint", {"step": event.step, "state": "failed", "reason": event.reason})
            case Skipped():
                self._tell("checkpoint", {"step": event.step, "state": "skipped", "reason": event.reason})
            case Pruned():
                self._tell("pruned", {"step": event.step, "unix_ns": time.time_ns()})
            case WriterLost():
                self._tell("warning", {"text": event.reason})
            case _:
                self._tell("warning", {"text": str(event)})

    def _check_identity(self, contents: Contents, name: str) -> None:
        found = contents.extra.get("identity", {})
        wrong = [
            f"{key}: {found.get(key)} there, {value} here"
            for key, value in self._rules.identity.items()
            if found.get(key) != value
        ]
        if wrong:
            raise RankError(f"{name} belongs to another run: {'; '.join(wrong)}")

    def _extra(self, finished: int) -> dict[str, Any]:
        return {
            "optimizer_steps": self._state.num_updates,
            "seed": self._rules.seed,
            "next_sample": finished * self._rules.batch,
            "identity": self._rules.identity,
            "layout": self._state.layout,
            "pinned": sorted(self._pinned),
            "scores": {str(step): loss for step, loss in self._scores.items()},
            "saved_ns": time.monotonic_ns(),
        }

    def _state_bytes(self) -> int:
        """That the rank with the most saves."""
        return max(
            sum(4 * tensor.numel() for tensors in parts.values() for tensor in tensors.values())
            for parts in self._saved_by.values()
        )


def _names(saved_by: Mapping[int, Parts]) -> Mapping[int, Mapping[str, frozenset[str]]]:
    """Who saves what."""
    return {
        rank: {part: frozenset(tensors) for part, tensors in parts.items()}
        for rank, parts in saved_by.items()
    }
