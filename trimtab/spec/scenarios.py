"""A scenario file: what is run, what goes wrong in it, and what must come of it.

The workload is a job as in a job file, faults are drawn where a value is a list or a distribution, and the same seed
draws the same faults (``trimtab.sim.chaos``). Everything that is wrong is told at once, each with its place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from trimtab.spec.card_types import (
    Card,
    Duration,
    NaturalInt,
    PositiveFloat,
    PositiveInt,
    RunName,
    Takes,
    Word,
)
from trimtab.spec.errors import JobFileError, Problem, ScenarioError, SpecError
from trimtab.spec.injections import KEYS_OF_FAULTS, SLEEPS_IN, FaultKind
from trimtab.spec.job_files import LoadedJob, load_job_inside
from trimtab.spec.sources import EXTENDS
from trimtab.spec.validation import nearest_span, validate_as, value_at
from trimtab.spec.yaml_documents import Entry, MappingValue, ScalarValue, YamlValue, read_mapping
from trimtab.terms import OnLoss, Phase


class AgentFault(StrEnum):
    """What happens to the agent, and so to all ranks at once; the run is resumed then."""

    KILL_AGENT = "kill-agent"
    """The agent gets SIGKILL: the coordinator dies."""
    STOP_RUN = "stop-run"
    """The agent gets SIGTERM: the run saves and ends."""


class Between(Card):
    """Any whole number from the first to the last, each as likely."""

    between: Annotated[
        tuple[NaturalInt, NaturalInt],
        Takes("a list of the least and the greatest number"),
    ]
    """The least and the greatest number. Required."""


class HowMany(Card):
    """A number drawn from one of these."""

    between: Annotated[
        tuple[NaturalInt, NaturalInt] | None,
        Takes("a list of the least and the greatest number"),
    ] = None
    """The least and the greatest number, each as likely as those between. Default: none."""
    poisson: PositiveFloat | None = None
    """Mean of a Poisson distribution. Default: none."""


class When(Card):
    """A time drawn from one of these."""

    between: Annotated[
        tuple[Duration, Duration] | None,
        Takes("a list of the earliest and the latest time"),
    ] = None
    """The earliest and the latest time, in seconds, each as likely as those between. Default: none."""
    exponential: Duration | None = None
    """Mean of an exponential distribution, in seconds. Default: none."""


_Kind = Annotated[FaultKind, Field(strict=False)] | Annotated[AgentFault, Field(strict=False)]
_PhaseWord = Annotated[Phase, Field(strict=False)]
_SomeOf = Field(min_length=1)


class Disturbance(Card):
    """Something that goes wrong: at a step and phase, by the rank's own hand, or after a time, from outside.

    A list stands for one of its values, each as likely.
    """

    kind: Annotated[
        _Kind | Annotated[tuple[_Kind, ...], _SomeOf],
        Takes(f"one of {', '.join((*FaultKind, *AgentFault))}, or a list to draw from"),
    ]
    """What happens: a kind of `--inject`, kill-agent, or stop-run. Required."""
    rank: Annotated[
        NaturalInt | Literal["any"] | Annotated[tuple[NaturalInt, ...], _SomeOf],
        Takes("a rank, any, or a list to draw from"),
    ] = "any"
    """To whom it happens. Default: any, each as likely."""
    step: Annotated[
        NaturalInt | Annotated[tuple[NaturalInt, ...], _SomeOf] | Between | None,
        Takes("a step, counted from 0, a list to draw from, or {between: [2, 30]}"),
    ] = None
    """In which step, counted from 0; for the agent, when it is committed. Default: none."""
    phase: Annotated[
        _PhaseWord | Annotated[tuple[_PhaseWord, ...], _SomeOf] | None,
        Takes(f"one of {', '.join(Phase)}, or a list to draw from"),
    ] = None
    """In which phase of the step. Default: compute."""
    after: Annotated[
        Duration | When | None,
        Takes("a duration such as '3s', {between: [1s, 9s]} or {exponential: 4s}"),
    ] = None
    """Time since the first rank was started, in seconds. Default: none."""
    times: Annotated[
        PositiveInt | HowMany, Takes("a whole number of at least 1, {between: [1, 3]} or {poisson: 2}")
    ] = 1
    """How many such faults there are, each drawn anew. Default: 1."""
    factor: PositiveFloat = 2.0
    """Of slow: times as long. Default: 2."""
    ms: PositiveFloat = 50.0
    """Of sleep: milliseconds. Default: 50."""
    timer: Annotated[
        Annotated[str, Field(pattern=f"^({'|'.join(SLEEPS_IN)})$")], Takes(f"one of {', '.join(SLEEPS_IN)}")
    ] = Field(default="none", alias="class")
    """Of sleep: inside which timer. Default: none."""
    devices: PositiveInt | None = None
    """Of kill-agent and stop-run: ranks that the run is resumed with. Default: as many as before."""

    @property
    def kinds(self) -> tuple[FaultKind | AgentFault, ...]:
        """All that it may be."""
        return self.kind if isinstance(self.kind, tuple) else (self.kind,)

    @property
    def ranks(self) -> tuple[int, ...]:
        """To whom it may happen; empty for any rank."""
        if isinstance(self.rank, str):
            return ()
        return self.rank if isinstance(self.rank, tuple) else (self.rank,)


class Expectation(Card):
    """What must come of it."""

    bits: Literal["same", "free"] = "same"
    """same: the weights of the undisturbed run, bit by bit; free: the run must end, with whatever weights.
    Default: same."""
    error: Word | None = None
    """The run must fail instead, and its error must hold these words. Default: none, it must end well."""
    rollback: NaturalInt | None = None
    """Steps that a loss may throw back at most; 0: survivors finish the step. Default: any number."""
    struck: NaturalInt = 1
    """Faults that must have struck at least: one that never does shows nothing. Default: 1."""


class Scenario(Card):
    """A scenario file."""

    scenario: RunName
    """Name of the scenario: small letters, digits, hyphens. Required."""
    about: str = ""
    """What it is for, in a sentence. Default: none."""
    workload: Annotated[
        Word | dict[str, Any], Takes("a job as in a job file, often no more than extends and some keys")
    ]
    """What is run: a job as in a job file, or the path of one. Required."""
    faults: Annotated[tuple[Disturbance, ...], _SomeOf, Takes("a list of faults, at least one")]
    """What goes wrong. Required."""
    expect: Expectation = Expectation()
    """What must come of it. Default: the same bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedScenario:
    """A scenario that was read and checked, and its workload."""

    scenario: Scenario
    workload: LoadedJob


def load_scenario(
    text: str,
    *,
    source: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    read: Callable[[str], str],
) -> LoadedScenario:
    """The scenario that a text states.

    Args:
        text: The scenario file.
        source: Its name, shown in errors; the files that its workload names are found relative to it.
        environment: The variables that ``${NAME}`` may name in the workload.
        read: As for ``load_job``.

    Raises: SpecError with everything that is wrong.
    """
    tree = read_mapping(text, source=source, first="scenario: NAME")
    reader = _Reader(tree=tree, documents={source: text})
    scenario = validate_as(Scenario, tree)
    workload = reader.workload(text, source, environment, read)
    if isinstance(scenario, list):
        reader.problems += scenario
    elif workload is not None:
        reader.check(scenario, workload)
    if reader.problems:
        raise ScenarioError(reader.problems, reader.documents)
    assert isinstance(scenario, Scenario)
    assert workload is not None
    return LoadedScenario(scenario=scenario, workload=workload)


_BY_TIME = frozenset({FaultKind.KILL, FaultKind.STOP, *AgentFault})
"""Signals: these can come from outside."""
_ALWAYS = frozenset({"kind", "times"})
_OF_SIGNALS = frozenset({"rank", "after"})
_OF_AGENT = frozenset({"step", "after", "devices"})
_SAVES = frozenset({FaultKind.DISK_FULL, FaultKind.TORN_CHECKPOINT})
_OTHER_BITS = frozenset({OnLoss.SAME_BATCH, OnLoss.RESCALE})


@dataclass(slots=True)
class _Reader:
    """Collects what is wrong with one scenario."""

    tree: MappingValue
    documents: dict[str, str]
    problems: list[Problem] = field(default_factory=list)

    def workload(
        self, text: str, source: str, environment: Mapping[str, str], read: Callable[[str], str]
    ) -> LoadedJob | None:
        value = value_at(self.tree, ("workload",))
        tree = _as_job(value) if value is not None else None
        if tree is None:
            return None
        try:
            return load_job_inside(tree, document=text, source=source, environment=environment, read=read)
        except JobFileError as error:
            self._take(error)
            return None

    def _take(self, error: SpecError) -> None:
        self.problems += error.problems
        self.documents = {**error.documents, **self.documents}

    def check(self, scenario: Scenario, workload: LoadedJob) -> None:
        """Everything that cannot hold together in cards that are each right."""
        for number, fault in enumerate(scenario.faults):
            for kind in fault.kinds:
                self._check_keys(number, kind)
            self._check_moment(number, fault)
            self._check_ranges(number, fault, workload)
        expect, on_loss = scenario.expect, workload.job.fault_tolerance.on_loss
        if expect.error is not None and expect.rollback is not None:
            self._add(
                ("expect", "rollback"),
                "a run that must fail has no step to return to",
                "Take one of the two out.",
            )
        if expect.bits == "same" and expect.error is None and on_loss in _OTHER_BITS:
            self._add(
                ("expect", "bits"),
                f"the weights must be the same, and on_loss is {on_loss}, which promises others",
                "Write `bits: free`, or another on_loss in the workload.",
            )

    def _check_keys(self, number: int, kind: FaultKind | AgentFault) -> None:
        written = value_at(self.tree, ("faults", number))
        assert isinstance(written, MappingValue), "cards are right"
        if isinstance(kind, AgentFault):
            allowed = _ALWAYS | _OF_AGENT
        else:
            allowed = _ALWAYS | set(KEYS_OF_FAULTS[kind]) | (_OF_SIGNALS if kind in _BY_TIME else set())
        for key in written.entries:
            if key not in allowed:
                self._add(
                    ("faults", number, key),
                    f"{key} means nothing to {kind}",
                    f"Keys of {kind}: {', '.join(sorted(allowed))}.",
                )

    def _check_moment(self, number: int, fault: Disturbance) -> None:
        if fault.after is not None and fault.step is not None:
            message = "a fault comes at a step or after a time, and this one says both"
            self._add(("faults", number, "after"), message, "Keep one of the two.")
        if fault.after is not None and fault.phase is not None:
            message = "phase belongs to a step, and this fault comes after a time"
            self._add(("faults", number, "phase"), message, "Take it out, or say step instead of after.")
        if fault.after is None and fault.step is None and set(fault.kinds) != {FaultKind.SLOW}:
            message = "this fault says neither step nor after"
            self._add(("faults", number), message, "Add `step: 5`, `step: {between: [2, 9]}` or `after: 3s`.")
        if isinstance(fault.after, When) and (fault.after.between is None) == (
            fault.after.exponential is None
        ):
            message = "after takes exactly one of between and exponential"
            self._add(("faults", number, "after"), message, "Keep one of the two.")
        if isinstance(fault.times, HowMany) and (fault.times.between is None) == (
            fault.times.poisson is None
        ):
            message = "times takes exactly one of between and poisson"
            self._add(("faults", number, "times"), message, "Keep one of the two.")

    def _check_ranges(self, number: int, fault: Disturbance, workload: LoadedJob) -> None:
        job = workload.job
        for key in ("step", "after", "times"):
            drawn: Any = getattr(fault, key)
            if (
                isinstance(drawn, Between | When | HowMany)
                and drawn.between
                and drawn.between[0] > drawn.between[1]
            ):
                message = f"from {drawn.between[0]:g} to {drawn.between[1]:g} there is nothing"
                self._add(("faults", number, key), message, "Write the smaller one first.")
        last, steps = _greatest(fault.step), job.train.steps
        if last is not None and steps is not None and last > steps:
            message = f"step {last} is beyond the {steps} steps of the workload"
            self._add(
                ("faults", number, "step"),
                message,
                f"Steps are counted from 0 to {steps - 1}; a save has the number of those before it.",
            )
        rank = max(fault.ranks, default=0)
        if rank >= job.orchestration.devices:
            message = f"rank {rank} is not one of the workload's ranks 0 to {job.orchestration.devices - 1}"
            self._add(("faults", number, "rank"), message, "Set orchestration.devices, or name another rank.")
        if _SAVES & set(fault.kinds) and job.fault_tolerance.checkpoint.every == "off":
            message = "this fault strikes a save, and the workload never saves"
            self._add(("faults", number), message, "Set fault_tolerance.checkpoint.every in the workload.")

    def _add(self, path: Sequence[str | int], message: str, hint: str) -> None:
        dotted = ".".join(str(part) for part in path)
        self.problems.append(
            Problem(span=nearest_span(self.tree, path), message=message, hint=hint, path=dotted)
        )


def _as_job(value: YamlValue) -> MappingValue | None:
    """The job that a workload is; a path stands for a job that extends that file and says nothing more."""
    if isinstance(value, MappingValue):
        return value
    if isinstance(value, ScalarValue) and isinstance(value.value, str) and value.value:
        return MappingValue(entries={EXTENDS: Entry(key_span=value.span, value=value)}, span=value.span)
    return None


def _greatest(drawn: "int | tuple[int, ...] | Between | None") -> int | None:
    if isinstance(drawn, Between):
        return drawn.between[1]
    if isinstance(drawn, int):
        return drawn
    return max(drawn) if isinstance(drawn, tuple) else None
