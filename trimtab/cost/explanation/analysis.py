"""What some real steps of a plan took, beside what was predicted: plain data."""

from dataclasses import dataclass

from trimtab.cost.memory import Moment
from trimtab.plan.program import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedBytes:
    """Bytes of one class on one rank.

    Args:
        name: Of the class.
        predicted: What was expected.
        measured: What was found, on the rank of the group that has most.
    """

    name: str
    predicted: int
    measured: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedMoment:
    """The most that a rank needs in one part of the step.

    Args:
        moment: Of the step.
        classes: At that instant, as far as the purpose of a tensor was known then.
        total: All of them.
    """

    moment: Moment
    classes: tuple[ComparedBytes, ...]
    total: ComparedBytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedTime:
    """Time of a step in one class.

    Args:
        name: Of the class.
        predicted_s: What was expected; null where the machine's rates are not known.
        measured_s: Median over the steps of the mean over the ranks of the group.
    """

    name: str
    predicted_s: float | None
    measured_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCollective:
    """One collective in one step, on one rank of a group.

    Args:
        block: Whose it is; ``update``, ``pipeline``.
        phase: Of the step.
        operation: all_reduce, all_gather, …
        axes: Whose process groups run it.
        tensors: Names of what is sent, in short.
        num_tensors: How many.
        runs: How often.
        sent_bytes: What the rank sends, predicted and measured, on the rank that sends most.
        predicted_s: Of all runs; null where the links are not this machine's.
        measured_s: In it, sending or waiting; null for what is handed between stages, which counts as bubble.
        waited_s: Of it, that the rank computed nothing in; less than all of it for a sum that starts during the backward
            pass.
        late_s: Of that, until the last rank had come.
    """

    block: str
    phase: Phase
    operation: str
    axes: tuple[str, ...]
    tensors: tuple[str, ...]
    num_tensors: int
    runs: float
    sent_bytes: ComparedBytes
    predicted_s: float | None
    measured_s: float | None
    waited_s: float | None
    late_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalyzedGroup:
    """A rank group, measured.

    Args:
        name: Its letter.
        ranks: In order.
        held: What stays between steps, by class; exact.
        moments: The most in each part of the step.
        peak: The most of all.
        times: Classes of the step's time; all of them add up to the step.
        exposed: Time in which a rank only sends or waits for others, bubbles left out: ``transfer`` and ``late``.
        beside: Time in collectives that ran beside the computation, which is in no class.
        exposed_share: Part of the step that ``exposed`` is.
        bubble_share: Part in which it waits for other stages.
        unattributed_share: Part that no class claims.
        collectives: In the order of the plan.
    """

    name: str
    ranks: tuple[int, ...]
    held: tuple[ComparedBytes, ...]
    moments: tuple[ComparedMoment, ...]
    peak: ComparedBytes
    times: tuple[ComparedTime, ...]
    exposed: ComparedTime
    beside: ComparedTime
    exposed_share: float
    bubble_share: float
    unattributed_share: float
    collectives: tuple[MeasuredCollective, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """Real steps against predictions.

    Args:
        steps: That were timed.
        step: Time of a step; the slowest rank counts, the median of the steps.
        fastest_s: Of the steps.
        slowest_s: Of the steps.
        unknown: Why no time is predicted; empty if it is.
        unplanned: Where bytes or runs of a collective are not those of the plan, in a sentence each.
        groups: In the order of the explanation.
    """

    steps: int
    step: ComparedTime
    fastest_s: float
    slowest_s: float
    unknown: str
    unplanned: tuple[str, ...]
    groups: tuple[AnalyzedGroup, ...]
