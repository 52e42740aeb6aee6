"""What goes wrong in one trial of a scenario, and whether what came of it is what must come.

Faults at a step are planted into ranks, which strike themselves there; faults after a time, and those of the agent,
come from outside as signals. The same scenario and seed give the same faults.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from trimtab.spec.injections import KEYS_OF_FAULTS, FaultKind, Injection
from trimtab.spec.scenarios import AgentFault, Between, Disturbance, Expectation, HowMany, Scenario, When
from trimtab.terms import Phase, RunState

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Strike:
    """A signal from outside, at a time or when a step is committed.

    Args:
        kind: What happens.
        rank: To whom; None for the agent.
        after_s: Seconds since the first rank was started; None for one at a step.
        step: When some rank has committed it, counted from 0; None for one after a time.
        devices: Ranks that the run is resumed with; None for as many as before.
    """

    kind: FaultKind | AgentFault
    rank: int | None = None
    after_s: float | None = None
    step: int | None = None
    devices: int | None = None

    @property
    def text(self) -> str:
        """For people: ``kill rank 1 after 2.50 s``."""
        whom = "" if self.rank is None else f" rank {self.rank}"
        when = f"after {self.after_s:.2f} s" if self.after_s is not None else f"at step {self.step}"
        size = "" if self.devices is None else f", resume on {self.devices}"
        return f"{self.kind}{whom} {when}{size}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The faults of one run of a workload.

    Args:
        seed: That they were drawn with.
        injections: Planted into ranks.
        strikes: From outside, those at steps in order.
    """

    seed: int
    injections: tuple[Injection, ...]
    strikes: tuple[Strike, ...]

    @property
    def num_faults(self) -> int:
        """All of them."""
        return len(self.injections) + len(self.strikes)

    @property
    def texts(self) -> tuple[str, ...]:
        """For people."""
        return (*(fault.text for fault in self.injections), *(strike.text for strike in self.strikes))


def draw_trial(scenario: Scenario, *, seed: int, devices: int) -> Trial:
    """The faults of one trial.

    Args:
        scenario: That they are drawn from.
        seed: The same seed gives the same faults.
        devices: Ranks of the workload.
    """
    random = Random(f"{scenario.scenario}/{seed}")  # noqa: S311 - faults, no secrets
    injections: list[Injection] = []
    strikes: list[Strike] = []
    for disturbance in scenario.faults:
        for _ in range(_how_many(disturbance.times, random)):
            fault = _draw(disturbance, devices, random)
            if isinstance(fault, Strike):
                strikes.append(fault)
            elif all(fault.mark != other.mark for other in injections):  # a fault strikes once in a run
                injections.append(fault)
    strikes.sort(key=lambda strike: (strike.after_s is None, strike.after_s or 0.0, strike.step or 0))
    return Trial(seed=seed, injections=tuple(injections), strikes=tuple(strikes))


def _draw(disturbance: Disturbance, devices: int, random: Random) -> Injection | Strike:
    kind = random.choice(disturbance.kinds)
    rank = random.choice(disturbance.ranks or range(devices))
    step = _step(disturbance.step, random)
    phase = _one_of(disturbance.phase or Phase.COMPUTE, random)
    after_s = _when(disturbance.after, random)
    if isinstance(kind, AgentFault):
        return Strike(kind=kind, after_s=after_s, step=step, devices=disturbance.devices)
    if after_s is not None:
        return Strike(kind=kind, rank=rank, after_s=after_s)
    return Injection(
        kind=kind,
        rank=rank if "rank" in KEYS_OF_FAULTS[kind] else 0,  # who saves needs no number
        step=step or 0,
        phase=phase,
        ms=disturbance.ms,
        factor=disturbance.factor,
        timer=disturbance.timer,
    )


def _one_of(values: "_T | tuple[_T, ...]", random: Random) -> _T:
    return random.choice(values) if isinstance(values, tuple) else values


def _step(step: "int | tuple[int, ...] | Between | None", random: Random) -> int | None:
    if isinstance(step, Between):
        return random.randint(*step.between)
    return None if step is None else _one_of(step, random)


def _when(after: float | When | None, random: Random) -> float | None:
    if not isinstance(after, When):
        return after
    if after.between is not None:
        return random.uniform(*after.between)
    assert after.exponential is not None
    return random.expovariate(1 / after.exponential)


def _how_many(times: int | HowMany, random: Random) -> int:
    if not isinstance(times, HowMany):
        return times
    if times.between is not None:
        return random.randint(*times.between)
    assert times.poisson is not None
    return _poisson(times.poisson, random)


def _poisson(mean: float, random: Random) -> int:
    """Exponential gaps that fit into an interval of this length (Knuth 1969, 3.4.1)."""
    number, rest = 0, math.exp(-mean)
    product = random.random()
    while product > rest:
        number += 1
        product *= random.random()
    return number


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What came of a trial.

    Args:
        state: Of the run at its end.
        error: What it failed of; empty if it did not.
        weights_sha256: None if it did not end well.
        steps_lost: By each loss that was recovered from.
        num_struck: Faults that struck.
        ledger: ``allocated_ns``, and ``classes`` with the nanoseconds of each; empty if there is none.
        leftovers: What is left of the run that should not be, in words.
    """

    state: RunState
    error: str = ""
    weights_sha256: str | None = None
    steps_lost: tuple[int, ...] = ()
    num_struck: int = 0
    ledger: Mapping[str, object] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a trial came to what it must come to.

    Args:
        is_as_expected: End, weights, steps and faults.
        broken: Everything that is otherwise, in words.
    """

    is_as_expected: bool
    broken: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Nothing is otherwise, and nothing is left over."""
        return not self.broken


def judge(expect: Expectation, observed: Observed, *, undisturbed_sha256: str | None) -> Verdict:
    """Compare what came with what must come.

    Args:
        expect: What must come.
        observed: What came.
        undisturbed_sha256: Of the weights of the same workload without a fault.

    >>> came = Observed(state=RunState.DONE, weights_sha256="b" * 64, num_struck=1)
    >>> judge(Expectation(), came, undisturbed_sha256="a" * 64).broken
    ('the weights are bbbbbbbbbbbb, those of the undisturbed run aaaaaaaaaaaa',)
    """
    found = [
        *_ends(expect, observed),
        *(_bits(observed, undisturbed_sha256) if expect.bits == "same" and expect.error is None else ()),
        *_steps(expect, observed),
    ]
    if observed.num_struck < expect.struck:
        found.append(f"{observed.num_struck} faults struck, at least {expect.struck} must: nothing is shown")
    left = [*_ledger(observed.ledger), *(f"left over: {text}" for text in observed.leftovers)]
    return Verdict(is_as_expected=not found, broken=(*found, *left))


def _ends(expect: Expectation, observed: Observed) -> Sequence[str]:
    if expect.error is None:
        if observed.state is RunState.DONE:
            return ()
        return (
            f"the run ended as {observed.state}, it must be done: {observed.error or 'no error is named'}",
        )
    if observed.state is not RunState.FAILED:
        return (f"the run ended as {observed.state}, it must fail with {expect.error!r}",)
    if expect.error in observed.error:
        return ()
    return (f"the run failed with {observed.error!r}, which does not hold {expect.error!r}",)


def _bits(observed: Observed, undisturbed_sha256: str | None) -> Sequence[str]:
    if observed.state is not RunState.DONE or observed.weights_sha256 == undisturbed_sha256:
        return ()
    ours, theirs = str(observed.weights_sha256)[:12], str(undisturbed_sha256)[:12]
    return (f"the weights are {ours}, those of the undisturbed run {theirs}",)


def _steps(expect: Expectation, observed: Observed) -> Sequence[str]:
    worst = max(observed.steps_lost, default=0)
    if expect.rollback is None or worst <= expect.rollback:
        return ()
    return (f"a loss threw the run back by {worst} steps, at most {expect.rollback} are allowed",)


def _ledger(ledger: Mapping[str, object]) -> Sequence[str]:
    """The identity: classes add up to what was allocated, to the nanosecond."""
    classes, allocated = ledger.get("classes"), ledger.get("allocated_ns")
    if not isinstance(classes, Mapping) or not isinstance(allocated, int):
        return ("the run has no ledger",)
    total = sum(classes.values())
    return () if total == allocated else (f"the ledger's classes add up to {total} ns of {allocated} ns",)
