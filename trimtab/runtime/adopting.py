"""``trimtab.adopt``: a run whose loop, model, loss and optimizer are the user's own.

The trainer that drives Trimtab's own models is driven here by the user's loop: it hands out the beginning of each
step and the microbatches of this rank's shares, and is sent their losses. So the body of the inner loop is what a
survivor runs again when a peer is lost, and nothing else is:

    session = trimtab.adopt(model, optimizer, "job.yaml")
    for step in session.steps():
        for inputs, targets in step.microbatches(dataset):
            loss = cross_entropy(model(inputs), targets, reduction="sum")
            step.backward(loss, len(targets))
        print(step.number, step.loss)
"""

import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from trimtab.policy.wire import Failed
from trimtab.runtime import compat
from trimtab.runtime.adopted_optimizer import AdoptedOptimizer, Rates
from trimtab.runtime.adopted_run import AdoptedRun, Microbatch, assemble
from trimtab.runtime.asking import Computed
from trimtab.runtime.enlisting import Enlistment, enlisted
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.models import refuse_batch_statistics
from trimtab.runtime.standing_alone import stand_alone
from trimtab.runtime.step import StepResult
from trimtab.runtime.trainer import StepBegins
from trimtab.runtime.user_data import Source, UserData
from trimtab.spec import Job
from trimtab.terms import Clock, InputError, Phase


def adopt(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    job: str | os.PathLike[str] | None = None,
    *,
    scheduler: LRScheduler | None = None,
) -> "Session":
    """Make this process a rank of the run that started it. Call it once, on the main thread.

    If no run started it, as in ``python train.py``, it is the only rank of the job: it trains to the same bits, survives
    nothing and keeps nothing.

    The model's parameters move into one vector; they stay the objects that they are.

    Args:
        model: On its device, in fp32, with the same initial values on every rank.
        optimizer: Over parameters of the model, not stepped yet.
        job: The job file that this loop belongs to: a run of another one is refused. It may be left out under a run.
        scheduler: Of the learning rate. The session steps it; a resumed run sets it to its step.

    Raises: InputError naming what of the model or optimizer cannot be adopted; and without a run and a job file.
    """
    enlistment = enlisted() or _alone(job)
    if enlistment.duty is not None:
        raise InputError("trimtab.adopt was called twice; one process is one rank of one run")
    settings = enlistment.ticket["settings"]
    _refuse_another_job(job, started_by=settings["job_file"])
    checked = Job.model_validate(settings["job"])
    is_exact = checked.fault_tolerance.shares != "off"
    parameters = _parameters(model)
    if is_exact:
        refuse_batch_statistics(model)
    state = FlatState(parameters)
    adopted = AdoptedOptimizer(optimizer, state, parameters)
    rates = Rates(optimizer, scheduler)
    run = assemble(enlistment, checked, state=state, optimizer=adopted, rate=rates.first)
    enlistment.duty = session = Session(run, model, rates)
    return session


class Session:
    """A run as the loop of the user sees it. One thread.

    Attributes:
        rank: Of this process.
        num_steps: Of the whole run.
    """

    def __init__(self, run: AdoptedRun, model: nn.Module, rates: Rates) -> None:
        self.rank, self.num_steps = run.rank, run.num_steps
        self.is_fulfilled = False
        self._run, self._rates = run, rates
        self._parameters = [parameter for _, parameter in model.named_parameters()]
        self._buffers = _Buffers(model) if run.is_exact else None
        self._asking = run.trainer.ask()
        self._next: StepBegins | None = None
        self._data: UserData | None = None
        self._clock: Clock | None = None

    def steps(self) -> Iterator["Step"]:
        """Every step from where the newest checkpoint stands, to the last one or until the run is stopped.

        After a rollback earlier steps come again. A rank that missed a step, which its peers took without it, goes
        on with the one that they are at.

        Raises: InputError if the microbatches of a step were not all taken; what the run itself raises.
        """
        self.ask(None)
        while self._next is not None:
            step = Step(self, self._next.step)
            self._rates.set_to(step.number)
            self.hand_over(step.number)
            yield step
            if not step.is_over:
                raise InputError(
                    f"step {step.number} was left before its microbatches were all computed; go through "
                    f"step.microbatches(...) to its end, and call session.stop() to end the run early"
                )

    def stop(self) -> None:
        """End the run after this step, as SIGTERM does: the state is saved, and it can be resumed."""
        self._run.link.is_stop_wanted = True

    @property
    def result(self) -> StepResult | None:
        """What came out of the newest step that this rank committed."""
        return self._run.trainer.result

    def fail(self, error: str, *, is_input_error: bool) -> None:
        """See Duty."""
        progress = self._run.link.progress
        self._run.link.send(
            Failed(step=progress.step, phase=progress.phase, error=error, is_input_error=is_input_error)
        )

    # What a step asks of its session.

    def ask(self, reply: Computed | None) -> Microbatch | StepBegins | None:
        """Let the run go on: the next microbatch, the beginning of a step, or None at the end."""
        try:
            question: Microbatch | StepBegins = self._asking.send(reply)
        except StopIteration:
            self._next, self.is_fulfilled = None, True
            return None
        if isinstance(question, StepBegins):
            self._next = question
        return question

    def hand_over(self, step: int) -> None:
        """The loop does what it likes, outside of any microbatch: to the run that is waiting for the host."""
        if self._clock is None and not self.is_fulfilled:
            self._run.watch.enter(Phase.EVALUATE, step)
            self._clock = self._run.recorder.switch(Clock.HOST_WAIT)

    def take_back(self) -> None:
        """The loop asks for microbatches."""
        if self._clock is not None:
            self._run.recorder.switch(self._clock)
            self._clock = None

    def data_of(self, source: Source, collate: Callable[[list[Any]], Any] | None) -> UserData:
        """The data of a source; the order of the one that was asked for before is kept."""
        if self._data is None or self._data.source is not source:
            self._data = UserData(source, seed=self._run.seed, collate=collate)
        return self._data

    def load(self, data: UserData, positions: range) -> Any:
        """A batch; the time it takes is waiting for input."""
        with self._run.recorder.within(Clock.INPUT_WAIT):
            return data.batch(positions)

    def refuse_cleared_gradients(self, microbatch: Microbatch) -> None:
        """Refuse a backward pass after the gradients of earlier microbatches of the share were dropped.

        Raises: InputError.
        """
        if microbatch.number and any(parameter.grad is None for parameter in self._parameters):
            raise InputError(
                f"gradients were cleared before the microbatch at {microbatch.positions.start}, in the middle of a "
                f"share; take optimizer.zero_grad() out of the loop"
            )

    def refuse_changed_buffers(self, step: int) -> None:
        """Refuse a model that changes its buffers: they are not saved, and depend on who computed what.

        Raises: InputError.
        """
        if self._buffers is not None:
            self._buffers.refuse_changes(step)


class Step:
    """One step of the run. It is committed when ``microbatches`` is at its end.

    Attributes:
        number: From 0.
    """

    def __init__(self, session: Session, number: int) -> None:
        self.number = number
        self.is_over = False
        self._session = session
        self._is_begun = False
        self._microbatch: Microbatch | None = None
        self._computed: Computed | None = None

    def microbatches(
        self, source: Source, *, collate: Callable[[list[Any]], Any] | None = None
    ) -> Iterator[Any]:
        """The microbatches of this rank's shares, in order; those of a lost peer's follow when this rank takes over.

        At the end gradients are summed over all shares, clipped, and given to the optimizer, once.

        Args:
            source: A map-style dataset, read in an order keyed by the job's seed and the epoch; or a function from
                global sample positions (a ``range``) to a batch.
            collate: Makes a batch of a list of samples; by default torch's ``default_collate``.

        Raises: InputError if it is called twice in a step, or ``backward`` is not called for a microbatch.
        """
        if self._is_begun:
            raise InputError(f"the microbatches of step {self.number} were asked for twice")
        self._is_begun = True
        session = self._session
        data = session.data_of(source, collate)
        session.take_back()
        reply: Computed | None = None
        while True:
            question = session.ask(reply)
            reply = None
            if isinstance(question, Microbatch):
                reply = yield from self._compute(data, question)
            elif question is None or question.step != self.number:
                break
        self.is_over = True
        session.refuse_changed_buffers(self.number)
        session.hand_over(self.number)

    def backward(self, loss_sum: Tensor, count: int | Tensor) -> None:
        """Compute the gradients of a microbatch.

        The loss of the step is the sum of all sums over the sum of all counts, whoever computed them. Several calls
        for one microbatch add up; each loss has a graph of its own.

        Args:
            loss_sum: A scalar with a graph: the sum of losses, not their mean.
            count: How many losses are in the sum, a whole number; 0 for a term that is not counted.

        Raises: InputError outside of a microbatch, or for a loss that is no scalar.
        """
        if self._microbatch is None:
            raise InputError("step.backward was called outside of the step's microbatches")
        if loss_sum.dim() != 0:
            raise InputError(
                f"step.backward takes the sum of losses, a scalar, not a tensor {list(loss_sum.shape)}"
            )
        whole = _whole(count)
        self._session.refuse_cleared_gradients(self._microbatch)
        loss_sum.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        before = self._computed
        self._computed = Computed(
            loss_sum=loss_sum.detach() if before is None else before.loss_sum + loss_sum.detach(),
            targets=whole + (before.targets if before is not None else 0),
            tokens=whole + (before.tokens if before is not None else 0),
        )

    @property
    def loss(self) -> float | None:
        """Of the whole step; None before it is committed, or if this rank missed more steps than this one."""
        result = self._result()
        return None if result is None else result.loss

    @property
    def grad_norm(self) -> float | None:
        """Of the mean gradient before it was clipped; None as ``loss``."""
        result = self._result()
        return None if result is None else result.grad_norm

    @property
    def is_applied(self) -> bool:
        """Whether the optimizer stepped: it does not for a loss that is not finite, or without any target."""
        result = self._result()
        return result is not None and result.is_applied

    def _result(self) -> StepResult | None:
        result = self._session.result
        return result if self.is_over and result is not None and result.step == self.number else None

    def _compute(self, data: UserData, microbatch: Microbatch) -> Generator[Any, None, Computed]:
        """Hand one microbatch to the loop; returns what became of it."""
        batch = self._session.load(data, microbatch.positions)
        self._computed, self._microbatch = None, microbatch
        yield batch
        self._microbatch = None
        computed = self._computed_now()
        if computed is None:
            raise InputError(
                f"the loop went on without step.backward(loss_sum, count) for the microbatch at "
                f"{microbatch.positions.start}; one without targets takes a sum of 0 and a count of 0"
            )
        return computed

    def _computed_now(self) -> Computed | None:
        return self._computed


class _Buffers:
    """The buffers of a model, and how often each was written when the run adopted it."""

    def __init__(self, model: nn.Module) -> None:
        self._begin = {name: (buffer, compat.num_writes(buffer)) for name, buffer in model.named_buffers()}

    def refuse_changes(self, step: int) -> None:
        """Raises: InputError naming every buffer that was written since."""
        changed = [
            name for name, (buffer, begin) in self._begin.items() if compat.num_writes(buffer) != begin
        ]
        if changed:
            raise InputError(
                f"the model changed its buffers in step {step}: {', '.join(changed)}\n"
                "  Buffers are not saved, and what they hold would depend on who computed which share. Make them "
                "parameters or constants, or set fault_tolerance.shares: off."
            )


def _alone(job: str | os.PathLike[str] | None) -> Enlistment:
    if job is None:
        raise InputError(
            "trimtab.adopt was called in a process that no run started, and names no job file.\n"
            '  Name one to train alone: trimtab.adopt(model, optimizer, "job.yaml"). Or start the script by\n'
            "  `trimtab run --script train.py --set train.steps=100 --set orchestration.devices=4`."
        )
    return stand_alone(os.fspath(job))


def _refuse_another_job(job: str | os.PathLike[str] | None, *, started_by: str | None) -> None:
    """Refuse a loop in a run that another job file started: it would train with the wrong settings.

    Raises: InputError with both, and what to type.
    """
    if job is None:
        return
    path = os.fspath(job)
    if started_by is None or not (os.path.exists(started_by) and os.path.exists(path)):
        is_same = False
    else:
        is_same = os.path.samefile(path, started_by)
    if not is_same:
        started = f"by {started_by}" if started_by else "without a job file"
        raise InputError(
            f"the script adopts the job {path}, and this run was started {started}; `trimtab run {path}` starts it"
        )


def _parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters by name, tied ones once.

    Raises: InputError for a model that another system has wrapped, or parameters that are not plain fp32 on one device.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise InputError(
            "the model is wrapped in DistributedDataParallel; adopt model.module, gradients are summed by Trimtab"
        )
    parameters = list(model.named_parameters())
    if not parameters:
        raise InputError("the model has no parameters")
    wrong = [
        f"  {name}: {type(parameter.data).__name__} of {parameter.dtype} on {parameter.device}"
        for name, parameter in parameters
        if parameter.dtype is not torch.float32
        or parameter.device != parameters[0][1].device
        or type(parameter.data) is not Tensor
    ]
    if wrong:
        listed = "\n".join(wrong)
        raise InputError(
            f"parameters must be plain fp32 tensors on one device ({parameters[0][1].device}):\n{listed}\n"
            "  Compute in bf16 by torch.autocast around the forward pass; do not shard the model yourself."
        )
    return parameters


def _whole(count: int | Tensor) -> int:
    """A count as a whole number.

    Raises: InputError if it is none.
    """
    number = count.item() if isinstance(count, Tensor) and count.dim() == 0 else count
    if not isinstance(number, int) or number < 0:
        raise InputError(
            f"step.backward takes a count of losses, a whole number of at least 0, not {number!r}"
        )
    return number
