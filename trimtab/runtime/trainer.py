"""One rank's run: epochs of steps, evaluations and saves, through losses and newcomers, to the end."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from trimtab.policy.spikes import SpikeRules, decide_spike
from trimtab.policy.wire import Accused, Committed, Finished, Form, Note, Parked, Trouble
from trimtab.runtime.agent_link import Dismissed, Fenced, Link
from trimtab.runtime.asking import Asking, Computed, answered
from trimtab.runtime.devices import peak_memory_bytes
from trimtab.runtime.errors import CollectiveError, CorruptionError, RankError
from trimtab.runtime.faults import Faults
from trimtab.runtime.keeping import Keeper
from trimtab.runtime.process_groups import Group, Rendezvous
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.run_state import CaughtUp, RunState, as_lead_says
from trimtab.runtime.step import Requests, StepResult, Work
from trimtab.runtime.watch import Watch
from trimtab.spec import OnNonfinite
from trimtab.terms import Clock, Phase


class _BorderReached(Exception):  # noqa: N818 - it is no error: all agreed to park here
    """Every rank parks at this step border, for newcomers wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerRules:
    """Constants of the run that the loop depends on.

    Args:
        on_nonfinite: What to do with a step whose loss or gradient is not finite.
        rolls_back_on_loss: After a loss all take the newest checkpoint, instead of finishing the step.
        spikes: What is done about a step that is far from those before.
        compare_every: Steps between two comparisons of the replicas; 0: never.
        digest_every: Steps between two hashes of the weights that go into the journal; 0: none.
        unigram_entropy: Of the held-out targets, in nats; what a model that ignores context can reach.
        evaluate_every: Steps between evaluations; 0: only at the end.
        tokens_per_step: None if only the targets of a step are known.
    """

    num_steps: int
    evaluate_every: int
    tokens_per_step: int | None
    flops_per_token: float
    device_kind: str
    on_nonfinite: OnNonfinite
    rolls_back_on_loss: bool = False
    spikes: SpikeRules = field(default_factory=SpikeRules)
    compare_every: int = 0
    digest_every: int = 0
    unigram_entropy: float | None = None


class Runner(Protocol):
    """Runs steps on one rank, inside an epoch."""

    work: Work
    """Done in the present step."""

    def held(self, step: int) -> tuple[int, ...]:
        """The shares of a step whose gradients this rank keeps."""

    def enter(self, group: Group, *, step: int, owners: Sequence[int]) -> None:
        """Take part in an epoch that begins with a step, in which these own its shares."""

    def rewind(self, step: int) -> None:
        """The state is that of before a step again: what was seen of this step and later ones is over."""

    def forget(self) -> None:
        """Keep no gradients of the present step."""

    def leave(self) -> None:
        """Let go of the epoch."""

    def ask(self, step: int, requests: Requests) -> Asking[StepResult]:
        """Compute, reduce, guard and commit one step, handing microbatches to whoever drives, who sends what they gave.

        Raises: Fenced, CollectiveError (nothing is committed), or what the user's model raises.
        """

    def answer(self, microbatch: Any) -> Computed:
        """The gradients of one microbatch that ``ask`` has handed out."""


class Scorer(Protocol):
    """Scores the held-out split."""

    def score(self, group: Group, step: int) -> tuple[float | None, int]:
        """Mean loss per target in nats, and the number of targets; None if there are none, or it was given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBegins:
    """What a trainer hands to whoever drives it before it tries a step; a step that is tried again begins again."""

    step: int


class Trainer:
    """Trains on one rank under an agent. Call ``run`` once, or drive ``ask``.

    Attributes:
        result: Of the newest step that this rank has: it committed it, or took the state of a rank that did.
    """

    def __init__(
        self,
        *,
        rules: TrainerRules,
        rank: int,
        committed: int,
        link: Link,
        watch: Watch,
        runner: Runner,
        evaluator: Scorer | None,
        state: RunState,
        keeper: Keeper,
        recorder: Recorder,
        faults: Faults,
    ) -> None:
        self._rules, self._rank, self._link, self._watch = rules, rank, link, watch
        self._runner, self._evaluator = runner, evaluator
        self._state = state
        self._keeper, self._recorder, self._faults = keeper, recorder, faults
        self._committed = committed
        self.result: StepResult | None = None
        self._recorded = -1
        self._evaluated_at = -1
        self._epoch = -1
        self._step_started_ns = time.monotonic_ns()
        self._members: tuple[int, ...] = ()
        self._groups: list[Group] = []
        self._rolled_back: set[int] = set()
        self._left_out: set[int] = set()
        self._undecided = -1
        self._sound: int | None = None
        self._stop_agreed = False
        self._loss: float | None = None
        self._eval_loss: float | None = None

    def run(self) -> None:
        """Train until the agent dismisses this rank."""
        answered(self.ask(), self._answer)

    def _answer(self, question: Any) -> Computed | None:  # a microbatch, as the runner's loader makes them
        return None if isinstance(question, StepBegins) else self._runner.answer(question)

    def ask(self) -> Asking[None]:
        """``run``, with the beginning of each step and its microbatches handed to whoever drives."""
        with contextlib.suppress(Dismissed):
            while True:
                rendezvous = Rendezvous()
                self._park(rendezvous)
                form = self._link.next_form()
                self._epoch = form.epoch
                try:
                    yield from self._train_epoch_until_fenced(form, rendezvous)
                except (Fenced, _BorderReached) as interruption:
                    self._leave(interruption)

    def _train_epoch_until_fenced(self, form: Form, rendezvous: Rendezvous) -> Asking[None]:
        """When a collective breaks, wait for the fence: it says what happened, and when."""
        try:
            yield from self._train_epoch(form, rendezvous)
        except CorruptionError as error:
            self._after_corruption(error, form.epoch)
        except CollectiveError as error:
            self._link.send(Trouble(epoch=form.epoch, error=str(error), t_ns=time.monotonic_ns()))
        else:
            return
        with self._watch.waiting():
            self._link.wait_for_end()

    def _after_corruption(self, error: CorruptionError, epoch: int) -> None:
        """Name who is wrong, or try again if nobody knows; and forget what may have been spoilt by then.

        Raises: RankError if the same step gives other bits again, and nobody can be named.
        """
        now_ns, step = time.monotonic_ns(), error.step
        if error.is_state:
            self._sound = max(0, step - self._rules.compare_every)
        if error.verdict.liar is not None:
            reason = f"{error} (step {step})"
            self._link.send(
                Accused(epoch=epoch, rank=error.verdict.liar, step=step, reason=reason, t_ns=now_ns)
            )
            return
        if self._undecided == step:
            raise RankError(f"step {step} gives other bits whenever it is computed: {error}")
        self._undecided = step
        self._runner.forget()
        self._link.send(Trouble(epoch=epoch, error=str(error), t_ns=now_ns))

    def _park(self, rendezvous: Rendezvous) -> None:
        self._link.send(
            Parked(
                left_epoch=self._epoch,
                committed=self._committed,
                held=self._runner.held(self._committed),
                store_port=rendezvous.port,
                store_host=self._link.own_address,
                t_ns=time.monotonic_ns(),
            )
        )

    def _leave(self, interruption: Exception) -> None:
        """Out of the epoch; the time since the fault in which this rank only waited was detection."""
        if isinstance(interruption, Fenced):
            self._recorder.split_wait(Clock.DETECT, at_ns=interruption.fence.fault_ns)
        self._recorder.switch(Clock.RESTART)
        now_ns = time.monotonic_ns()
        self._record_work("aborted", self._committed, self._epoch, self._step_started_ns, now_ns)
        self._recorder.event("left", step=self._committed, reason=str(interruption))
        self._runner.leave()
        for group in self._groups:  # that of an epoch that ended while it was entered is no runner's yet
            group.drop()
        self._groups.clear()

    def _train_epoch(self, form: Form, rendezvous: Rendezvous) -> Asking[None]:
        self._step_started_ns = time.monotonic_ns()
        group = self._enter(form, rendezvous)
        self._runner.enter(group, step=self._committed, owners=form.owners)
        num_losses = self._count_losses(group)
        needs_checkpoint = bool(num_losses) and self._rules.rolls_back_on_loss
        self._keeper.enter(group, num_losses=num_losses if needs_checkpoint else 0)
        if needs_checkpoint:
            self._go_back(group, f"{num_losses} ranks were lost, and on_loss is rollback")
        self._leave_unsound_steps(group)
        self._record_late(group)
        self._stop_agreed |= form.is_last
        while self._committed < self._rules.num_steps and not self._stop_agreed:
            self._evaluate_if_due(group)
            yield StepBegins(step=self._committed)
            result = yield from self._step(group, form)
            if result.spike:
                self._after_spike(group, result)
            elif not result.is_applied and result.targets and not result.is_left_out:
                self._after_nonfinite(group, result.step)
            self._stop_agreed = result.stop_agreed
            with self._recorder.within(Clock.HOST_WAIT):
                self._keeper.at_border(self._committed)
            if result.border_agreed and not result.stop_agreed:
                raise _BorderReached("newcomers wait")
        self._finish(group)

    def _leave_unsound_steps(self, group: Group) -> None:
        """If replicas differed: back to a checkpoint of before, for what came after may have been spoilt by one of them.

        Without such a checkpoint those who agreed go on with what they hold; if nobody did, all begin again.
        """
        if not self._rules.compare_every or (group.size == 1 and self._sound is None):
            return
        word = torch.tensor([-1 if self._sound is None else self._sound, self._undecided], dtype=torch.int64)
        with self._watch.waiting("all_reduce"):
            group.all_reduce(word, operation="max")
        self._sound = None
        sound, undecided = word.tolist()
        if sound < 0:
            return
        is_lead = self._rank == group.members[0]
        must = undecided >= self._committed
        if not as_lead_says(group, must or (is_lead and self._keeper.has_one_until(sound))):
            text = f"replicas differed after step {sound}, and there is no checkpoint of before: their majority goes on"
            self._keeper.warn(text)
            return
        if is_lead:
            self._keeper.set_aside_after(sound)
        self._runner.forget()
        self._go_back(
            group, f"replicas differed, and nobody knows since when: step {sound} is the last that was sound"
        )

    def _count_losses(self, group: Group) -> int:
        lost = len(set(self._members) - set(group.members))
        self._members = group.members
        return lost

    def _after_spike(self, group: Group, result: StepResult) -> None:
        """What the job says about a step that is far from those before; all ranks have judged it alike."""
        is_lead = self._rank == group.members[0]
        complete = self._keeper.complete_steps() if is_lead else ()
        decision = decide_spike(
            result.step, result.spike, complete, self._rules.spikes, gone_back_from=self._left_out
        )
        pinned = -1 if decision.pinned is None else decision.pinned
        word = torch.tensor([pinned, decision.goes_back], dtype=torch.int64)
        group.broadcast(word, source=group.members[0])
        pinned, goes_back = word.tolist()
        if pinned >= 0:
            self._keeper.pin(pinned)
        if is_lead:
            fields = {"step": result.step, "suspect": list(decision.suspect), "reason": decision.reason}
            self._note("spike", {**fields, "pinned": decision.pinned})
        if not goes_back:
            return
        self._left_out.add(result.step)
        if is_lead:
            self._keeper.set_aside_after(max(pinned, 0))
        self._go_back(group, f"step {result.step} is a spike")

    def _note(self, kind: str, fields: dict[str, Any]) -> None:
        self._recorder.event(kind, **fields)
        self._link.send(Note(kind=kind, t_ns=time.monotonic_ns(), fields=fields))

    def _after_nonfinite(self, group: Group, step: int) -> None:
        """What the job says about a step whose loss or gradient is not finite; its update was not applied."""
        match self._rules.on_nonfinite:
            case OnNonfinite.SKIP:
                return
            case OnNonfinite.STOP:
                self._keeper.wait()
                with self._watch.waiting(
                    "all_reduce"
                ):  # the first to raise ends the others, and what they save
                    group.all_reduce(torch.zeros(1), operation="max")
                raise RankError(
                    f"loss or gradient of step {step} is not finite, and train.on_nonfinite is stop"
                )
            case OnNonfinite.ROLLBACK:
                self._roll_back(group, step)

    def _roll_back(self, group: Group, step: int) -> None:
        """Go back to before a step that was not finite; if it fails again after that, it is skipped."""
        if step not in self._rolled_back:
            self._rolled_back.add(step)
            self._go_back(group, f"step {step} was not finite")

    def _go_back(self, group: Group, reason: str) -> None:
        """Everybody takes the newest checkpoint."""
        self._keeper.wait()
        self._committed = self._state.take_back(group, self._keeper.load)
        self._recorded = -1
        self._runner.rewind(self._committed)
        if self._rank == group.members[0]:
            self._tell_rollback(reason)

    def _enter(self, form: Form, rendezvous: Rendezvous) -> Group:
        self._watch.enter(Phase.REFORM, form.step)
        self._faults.at_phase(Phase.REFORM, form.step)
        store = self._link.connect(form, rendezvous) if len(form.members) > 1 else None
        with self._watch.waiting(f"forming epoch {form.epoch}"):
            everybody = Group(
                members=form.members,
                rank=self._rank,
                epoch=form.epoch,
                store=store,
                kind=self._rules.device_kind,
                interrupt=self._link.interrupt,
            )
            self._groups.append(everybody)
            self._keeper.part_from_the_lost(form.members)
            caught = self._state.catch_up(everybody, form, self._committed, self._keeper.newest_saved)
            told = StepResult.told_by(form.source, everybody, self.result) if form.is_healing else None
            if self._rank not in form.active:
                self._recorder.event("entered", epoch=form.epoch, members=form.active, step=form.step)
                self._link.wait_for_end()
            group = everybody if form.active == form.members else everybody.split(form.active)
            self._groups.append(group)
            self._state.enter(group)
            if caught is None:
                self._go_back(group, f"epoch {form.epoch} begins, and no newer state is whole")
            else:
                self._follow(caught, group, form, told)
        self._recorder.event("entered", epoch=form.epoch, members=group.members, step=self._committed)
        return group

    def _follow(self, caught: CaughtUp, group: Group, form: Form, told: StepResult | None) -> None:
        """Go on from what all have caught up to; who was behind takes over what came out of the last step, too."""
        if self._committed < caught.step:
            self._recorder.event("healed", step=caught.step, source=form.source, behind=self._committed)
            if told is not None and told.step == caught.step - 1:
                self.result, self._loss = told, told.loss
                self._stop_agreed |= told.stop_agreed
        self._committed = caught.step
        if caught.step < caught.newest and self._rank == group.members[0]:
            reason = f"epoch {form.epoch} begins, and this is the newest state that still exists whole"
            self._tell_rollback(reason)

    def _tell_rollback(self, reason: str) -> None:
        fields: dict[str, Any] = {"to_step": self._committed, "reason": reason}
        self._link.send(Note(kind="rollback", t_ns=time.monotonic_ns(), fields=fields))

    def _step(self, group: Group, form: Form) -> Asking[StepResult]:
        started_ns = self._step_started_ns = time.monotonic_ns()
        self._recorder.switch(Clock.UNATTRIBUTED, at_ns=started_ns)
        step = self._committed
        self._faults.outside_timers(step)
        requests = Requests(
            stop=self._link.is_stop_wanted,
            border=self._link.is_border_wanted,
            skip=step in self._left_out,
        )
        self.result = result = yield from self._runner.ask(step, requests)
        self._committed = step + 1
        self._loss = result.loss
        with self._recorder.within(Clock.HOST_WAIT):
            self._report(result, group, form, started_ns)
            self._record_digest(group, form, step)
        return result

    def _record_digest(self, group: Group, form: Form, step: int) -> None:
        """Write down what the weights are after a step, if that is asked for."""
        every = self._rules.digest_every
        if every and (step + 1) % every == 0:
            digest = self._state.digest(group)
            self._recorder.event("digest", step=step, epoch=form.epoch, weights_sha256=digest)

    def _report(self, result: StepResult, group: Group, form: Form, started_ns: int) -> None:
        ended_ns = time.monotonic_ns()
        self._record_work("step", result.step, form.epoch, started_ns, ended_ns)
        metrics: dict[str, float | int | None] = {}
        if group.members[0] == self._rank:
            metrics = self._metrics(result)
            self._recorder.event("commit", step=result.step, applied=result.is_applied, **metrics)
            self._recorded = result.step
        if not result.is_applied:
            self._recorder.event("skipped", step=result.step, reason=_why_not_applied(result))
        self._link.send(Committed(epoch=form.epoch, step=result.step, t_ns=ended_ns, metrics=metrics))

    def _record_late(self, group: Group) -> None:
        """Write down the last commit, if another rank led then: it may have died before it could."""
        result = self.result
        if result is None or result.step != self._committed - 1 or self._recorded == result.step:
            return
        if group.members[0] == self._rank:
            fields = {"applied": result.is_applied, "is_late": True, **self._metrics(result)}
            self._recorder.event("commit", step=result.step, **fields)
            self._recorded = result.step

    def _metrics(self, result: StepResult) -> dict[str, float | int | None]:
        tokens = result.targets if self._rules.tokens_per_step is None else self._rules.tokens_per_step
        return {
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "lr": result.lr,
            "tokens": tokens,
            "targets": result.targets,
        }

    def _record_work(self, kind: str, step: int, epoch: int, started_ns: int, ended_ns: int) -> None:
        """Where the time went since the last such record, and what was computed in it."""
        work = self._runner.work
        self._recorder.event(
            kind,
            step=step,
            epoch=epoch,
            start_ns=started_ns,
            end_ns=ended_ns,
            clocks=self._recorder.lap(),
            comm=work.waits,
            shares=work.computed,
            reused=work.reused,
            recovered=work.recovered,
            tokens=work.tokens,
            targets=work.targets,
            sent_bytes=work.sent_bytes,
            flops=round(work.tokens * self._rules.flops_per_token),
        )
        self._runner.work = Work()

    def _evaluate_if_due(self, group: Group) -> None:
        every = self._rules.evaluate_every
        if every and self._committed and self._committed % every == 0:
            self._evaluate(group)

    def _evaluate(self, group: Group) -> None:
        if self._evaluator is None or self._is_evaluated(group):
            return
        with self._recorder.within(Clock.EVALUATION):
            self._faults.in_timer(Clock.EVALUATION, self._committed)
            loss, targets = self._evaluator.score(group, self._committed)
        if not targets:
            return  # given up: somebody wants the run to stop
        self._eval_loss = loss
        self._evaluated_at = self._committed
        self._keeper.note_evaluation(self._committed, self._eval_loss)
        if group.members[0] == self._rank:
            fields: dict[str, Any] = {"step": self._committed, "loss": self._eval_loss, "targets": targets}
            self._recorder.event("evaluation", **fields)
            self._link.send(Note(kind="evaluation", t_ns=time.monotonic_ns(), fields=fields))

    def _is_evaluated(self, group: Group) -> bool:
        """Whether every rank has scored this step: one that was called back, or has just come, may not have."""
        with self._watch.waiting():
            return group.agree(self._evaluated_at == self._committed)

    def _finish(self, group: Group) -> None:
        if not self._stop_agreed:
            self._evaluate(group)
        self._keeper.save_and_wait(self._committed)
        digest = self._state.digest(group)
        kind = self._rules.device_kind
        self._recorder.event("memory", device=kind, peak_bytes=peak_memory_bytes(kind))
        self._recorder.switch(Clock.RESTART)
        self._watch.enter(Phase.DONE, self._committed)
        results: dict[str, float | int | str | None] = {
            "steps": self._committed,
            "loss": self._loss,
            "eval_loss": self._eval_loss,
            "unigram_entropy": self._rules.unigram_entropy,
            "weights_sha256": digest,
        }
        self._link.send(Finished(step=self._committed, is_stopped=self._stop_agreed, results=results))
        with self._watch.waiting():
            self._link.wait_for_end()


def _why_not_applied(result: StepResult) -> str:
    if result.targets == 0:
        return "no valid token"
    if result.is_left_out:
        return "its samples are left out, for it was a spike"
    return result.spike or "loss or gradient is not finite"
