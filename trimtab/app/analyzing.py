"""``explain --analyze``: some real steps of a plan on real processes, beside what was predicted."""

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from trimtab.app.output import say
from trimtab.app.verifying import MOST_RANKS
from trimtab.catalog import THIS_MACHINE, Cluster
from trimtab.cost.communication import collective_time
from trimtab.cost.counts import Counts, counts_of
from trimtab.cost.estimates import Estimate, estimate
from trimtab.cost.explanation.analysis import (
    Analysis,
    AnalyzedGroup,
    ComparedBytes,
    ComparedMoment,
    ComparedTime,
    MeasuredCollective,
)
from trimtab.cost.explanation.group_facts import letters
from trimtab.cost.memory import MemoryClasses, Moment
from trimtab.cost.step_memory import StepMemory, constant_bytes
from trimtab.plan.physical import Plan, Traffic
from trimtab.plan.program import OperatorKind, Phase
from trimtab.spec import LoadedJob
from trimtab.terms import InputError

if TYPE_CHECKING:
    from trimtab.runtime.lowering.measurement import RankMeasurement, Trial, Waits
    from trimtab.runtime.lowering.wires import Sent

_SHOWN_TENSORS = 4
_NS = 1e-9


def analyze(loaded: LoadedJob, path: str, plan: Plan, cluster: Cluster, *, steps: int) -> Analysis:
    """Run a job's plan for some steps on this machine, and measure.

    Args:
        loaded: The job.
        path: Of its file, for messages.
        plan: Of the job.
        cluster: That it was planned for.
        steps: To be timed.

    Raises: InputError for a mesh of more ranks than one machine shall run.
    """
    num_ranks = plan.mesh.num_devices
    if num_ranks > MOST_RANKS:
        raise InputError(
            f"{path}: the mesh has {num_ranks} ranks, and explain --analyze starts at most {MOST_RANKS} processes on "
            "this machine; use a smaller mesh, such as --set orchestration.devices=8"
        )
    # Only who asks for real steps loads torch.
    from trimtab.runtime.lowering import Crew, question_of
    from trimtab.runtime.lowering.measurement import measure

    gc.enable()  # Real steps leave garbage, which explain alone does not.
    say(f"explain --analyze: {num_ranks} ranks on this machine, {steps} steps of {plan.network.name}")
    with Crew(num_ranks) as crew:
        trial = measure(question_of(loaded.job, plan, steps=steps), crew)
    return analysis_of(plan, cluster, trial)


def analysis_of(plan: Plan, cluster: Cluster, trial: "Trial") -> Analysis:
    """What was measured beside what was predicted.

    Args:
        plan: That was run.
        cluster: That it was planned for; times are predicted only if it is this machine.
        trial: What was measured.
    """
    from trimtab.runtime.lowering.accounting import unplanned
    from trimtab.runtime.lowering.measurement import waits_of

    counts = counts_of(plan)
    if cluster.name == THIS_MACHINE:
        found = estimate(plan, cluster, counts=counts, is_overlapped=False)
    else:
        found = Estimate(unknown=f"figures of {cluster.name} say nothing of this machine")
    num_timed = len(trial.ranks[0].steps)
    walls = [max(rank.steps[step].wall_ns for rank in trial.ranks) * _NS for step in range(num_timed)]
    waits = [waits_of([rank.steps[step] for rank in trial.ranks]) for step in range(num_timed)]
    comparing = _Comparing(plan, cluster, counts, found, trial, waits)
    return Analysis(
        steps=num_timed,
        step=ComparedTime(
            name="step",
            predicted_s=None if found.step_s is None else found.step_s.expected,
            measured_s=statistics.median(walls),
        ),
        fastest_s=min(walls),
        slowest_s=max(walls),
        unknown=found.unknown,
        unplanned=tuple(unplanned(plan, [rank.counts for rank in trial.ranks], trial.num_steps)),
        groups=tuple(comparing.group(number) for number in range(len(counts.groups))),
    )


class _Comparing:
    """Puts measurements beside predictions, group by group."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        counts: Counts,
        found: Estimate,
        trial: "Trial",
        waits: Sequence[Sequence["Waits"]],
    ) -> None:
        self._plan, self._cluster, self._counts, self._estimate = plan, cluster, counts, found
        self._trial, self._waits = trial, waits
        self._memory = StepMemory(plan, counts)

    def group(self, number: int) -> AnalyzedGroup:
        """One rank group."""
        group = self._counts.groups[number]
        ranks = [self._trial.ranks[rank] for rank in group.ranks]
        predicted = self._memory.of(number)
        most = max(ranks, key=lambda rank: rank.memory.peak_bytes)
        times = tuple(self._times(number, ranks))
        step_s = sum(time.measured_s for time in times)
        by_name = {time.name: time.measured_s for time in times}
        return AnalyzedGroup(
            name=letters(number),
            ranks=group.ranks,
            held=tuple(self._held(number, ranks)),
            moments=tuple(
                _moment(moment, predicted[moment], most.memory.moments[moment]) for moment in Moment
            ),
            peak=ComparedBytes(
                name="peak",
                predicted=max(classes.total for classes in predicted.values()),
                measured=most.memory.peak_bytes,
            ),
            times=times,
            exposed=ComparedTime(
                name="exposed",
                predicted_s=self._predicted_times(number).get("transfer"),
                measured_s=by_name["transfer"] + by_name["late"],
            ),
            beside=self._beside(number, ranks),
            exposed_share=(by_name["transfer"] + by_name["late"]) / step_s,
            bubble_share=by_name["bubble"] / step_s,
            unattributed_share=by_name["unattributed"] / step_s,
            collectives=tuple(self._collectives(number)),
        )

    def _held(self, number: int, ranks: Sequence["RankMeasurement"]) -> Iterator[ComparedBytes]:
        stages = self._counts.groups[number].stages
        params, grads, states = (table.device_bytes for table in self._counts.holdings.of(stages))
        predicted = {
            "parameters": params,
            "gradients": grads,
            "states": states,
            "constants": constant_bytes(self._plan, self._counts, stages),
            "other": 0,
        }
        for name, size in predicted.items():
            found = [rank.memory.held.get(name, 0) for rank in ranks]
            # Ranks of a group hold the same; if one did not, it would be the one to tell.
            odd = next((measured for measured in found if measured != size), size)
            yield ComparedBytes(name=name, predicted=size, measured=odd)

    def _times(self, number: int, ranks: Sequence["RankMeasurement"]) -> Iterator[ComparedTime]:
        expected = self._predicted_times(number)
        for name, by_step in self._measured_times(number, ranks).items():
            yield ComparedTime(
                name=name, predicted_s=expected.get(name), measured_s=statistics.median(by_step)
            )

    def _predicted_times(self, number: int) -> Mapping[str, float]:
        if not self._estimate.groups:
            return {}
        found = self._estimate.groups[number]
        return {
            "forward and backward": found.compute_s,
            "recompute": found.recompute_s,
            "update": found.optimizer_s,
            "transfer": found.communication_s,
            "bubble": found.waiting_s,
        }

    def _measured_times(self, number: int, ranks: Sequence["RankMeasurement"]) -> Mapping[str, list[float]]:
        """By class, for each step the mean over the ranks."""
        places = self._counts.groups[number].ranks
        found: dict[str, list[float]] = {}
        for step, waits in enumerate(self._waits):
            late = [sum(waits[rank].late_ns.values()) for rank in places]
            steps = [rank.steps[step] for rank in ranks]
            computing = [taken.computing_ns for taken in steps]
            classes = {
                "forward and backward": [
                    one.get(Phase.FORWARD, 0) + one.get(Phase.BACKWARD, 0) for one in computing
                ],
                "recompute": [one.get(Phase.RECOMPUTE, 0) for one in computing],
                "update": [one.get(Phase.UPDATE, 0) for one in computing],
                "transfer": [
                    taken.collectives_ns - waited for taken, waited in zip(steps, late, strict=True)
                ],
                "late": late,
                "bubble": [taken.pipeline_ns for taken in steps],
                "unattributed": [taken.unattributed_ns for taken in steps],
            }
            for name, values in classes.items():
                found.setdefault(name, []).append(statistics.mean(values) * _NS)
        return found

    def _beside(self, number: int, ranks: Sequence["RankMeasurement"]) -> ComparedTime:
        """Sums that ran while the backward pass went on."""
        by_step = [
            statistics.mean(rank.steps[step].beside_ns for rank in ranks) for step in range(len(self._waits))
        ]
        known = self._estimate.groups
        return ComparedTime(
            name="beside",
            predicted_s=known[number].hidden_communication_s if known else None,
            measured_s=statistics.median(by_step) * _NS,
        )

    def _collectives(self, number: int) -> Iterator[MeasuredCollective]:
        from trimtab.runtime.lowering.accounting import sent_of

        group = self._counts.groups[number]
        is_here = self._cluster.name == THIS_MACHINE
        for use in self._counts.uses[number]:
            what = sent_of(use.traffic)
            took = self._median(group.ranks, partial(_busy_ns, what))
            waited = self._median(group.ranks, partial(_waited_ns, what))
            late = self._median(group.ranks, partial(_late_ns, what))
            is_handed = use.traffic.operator.kind is OperatorKind.SEND
            yield MeasuredCollective(
                block=use.traffic.block,
                phase=use.traffic.phase,
                operation=use.traffic.operator.kind.value,
                axes=use.traffic.transfer.axes,
                tensors=use.traffic.tensors[:_SHOWN_TENSORS],
                num_tensors=len(use.traffic.tensors),
                runs=use.runs,
                sent_bytes=self._sent(use.traffic, group.ranks, use.runs),
                predicted_s=collective_time(use, self._cluster).seconds * use.runs if is_here else None,
                measured_s=None if is_handed else took,
                waited_s=None if is_handed else waited,
                late_s=None if is_handed else late,
            )

    def _sent(self, traffic: Traffic, ranks: Sequence[int], runs: float) -> ComparedBytes:
        from trimtab.runtime.lowering.accounting import sent_of

        rank = max(ranks, key=traffic.sent_bytes)
        count = self._trial.ranks[rank].counts.get(sent_of(traffic))
        each = count.sent_bytes / count.runs if count else 0.0
        return ComparedBytes(
            name="sent", predicted=round(runs * traffic.sent_bytes(rank)), measured=round(runs * each)
        )

    def _median(self, ranks: Sequence[int], taken: Callable[["Waits"], int]) -> float:
        """Seconds: the median over the steps of the mean over some ranks."""
        by_step = [statistics.mean(taken(waits[rank]) for rank in ranks) for waits in self._waits]
        return statistics.median(by_step) * _NS


def _busy_ns(what: "Sent", waits: "Waits") -> int:
    return waits.busy_ns.get(what, 0)


def _waited_ns(what: "Sent", waits: "Waits") -> int:
    return waits.waited_ns.get(what, 0)


def _late_ns(what: "Sent", waits: "Waits") -> int:
    return waits.late_ns.get(what, 0)


def _moment(moment: Moment, predicted: MemoryClasses, measured: MemoryClasses) -> ComparedMoment:
    return ComparedMoment(
        moment=moment,
        classes=tuple(
            ComparedBytes(name=name, predicted=getattr(predicted, name), measured=getattr(measured, name))
            for name in _CLASSES
        ),
        total=ComparedBytes(name="total", predicted=predicted.total, measured=measured.total),
    )


_CLASSES = ("parameters", "gradients", "states", "gathered", "activations", "working", "buffers")
