"""Is what was traced what the plan says?"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trimtab.cost.explanation.tracing import (
    TracedBlock,
    TracedCollective,
    TracedFlops,
    TracedRank,
    TraceFacts,
)
from trimtab.cost.flops import StageFlops, ring_scores_again, stage_flops
from trimtab.plan.explanation import ranges
from trimtab.plan.physical import Plan
from trimtab.plan.program import OperatorKind, Phase
from trimtab.runtime.lowering.accounting import Counts, differences, planned
from trimtab.runtime.lowering.sites import Stages
from trimtab.runtime.lowering.tracing.tracing import RankTrace, Trace
from trimtab.runtime.lowering.wires import Count


def judged(plan: Plan, trace: Trace) -> TraceFacts:
    """A trace beside the closed form: traffic and FLOPs that follow from the plan without running anything."""
    stages, by_stage, again = Stages(plan), stage_flops(_seeing_all(plan)), ring_scores_again(plan)
    said = planned(plan, 1, first=trace.step, ranks=[found.rank for found in trace.ranks])
    ranks, wrong = [], []
    for found, counts in zip(trace.ranks, said, strict=True):
        held = stages.of(found.rank)
        one = sum((by_stage[stage] for stage in held), StageFlops()).times(plan.work.microbatches)
        rank = TracedRank(
            rank=found.rank,
            ranks=ranges(found.stands_for),
            num_ranks=len(found.stands_for),
            stages=ranges(held),
            blocks=tuple(
                TracedBlock(block=ran.block, phase=ran.phase, layer=ran.layer, times=ran.times)
                for ran in found.repeated
            ),
            collectives=tuple(_by_kind(found.counts, counts)),
            flops=_flops(found, one, plan.work.microbatches * sum(again[stage] for stage in held)),
            compression_flops=found.sending_flops,
        )
        ranks.append(rank)
        wrong += [*differences(found.rank, counts, found.counts), *_unplanned_flops(rank)]
    return TraceFacts(
        step=trace.step + 1, is_as_planned=not wrong, differences=tuple(wrong), ranks=tuple(ranks)
    )


def _seeing_all(plan: Plan) -> Plan:
    """The plan without windows: products compute what a mask hides afterwards."""
    return replace(plan, network=replace(plan.network, window=0, full_layers=0))


def _by_kind(found: Counts, said: Counts) -> Iterator[TracedCollective]:
    """Collectives added up, those that only one of the two knows among them."""
    traced, planned = _added_up(found), _added_up(said)
    nothing = Count()
    for key in {**planned, **traced}:
        ran, told = traced.get(key, nothing), planned.get(key, nothing)
        kind, axes, route = key
        yield TracedCollective(
            operation=OperatorKind(kind),
            axes=axes,
            route=route,
            traced_runs=ran.runs,
            planned_runs=told.runs,
            traced_bytes=ran.sent_bytes,
            planned_bytes=told.sent_bytes,
        )


def _added_up(counts: Counts) -> Mapping[tuple[str, tuple[str, ...], str], Count]:
    found: dict[tuple[str, tuple[str, ...], str], Count] = {}
    for what, count in counts.items():
        total = found.setdefault((what.kind, what.axes, what.route), Count())
        total.runs += count.runs
        total.sent_bytes += count.sent_bytes
    return found


def _flops(found: RankTrace, said: StageFlops, scores_again: int) -> tuple[TracedFlops, ...]:
    """Under the convention that counts all scores: products on pieces compute them all."""
    backward = sum(count for phase, count in found.flops.items() if phase is not Phase.FORWARD)
    return (
        TracedFlops(phase=Phase.FORWARD, traced=found.flops.get(Phase.FORWARD, 0), planned=said.forward.full),
        TracedFlops(
            phase=Phase.BACKWARD,
            traced=backward,
            planned=said.backward.full + said.recompute.full + scores_again,
        ),
    )


def _unplanned_flops(rank: TracedRank) -> Iterator[str]:
    for flops in rank.flops:
        if not flops.is_planned:
            yield (
                f"rank {rank.rank}: {flops.phase.value} pass: {flops.traced} FLOPs in matrix products, and the plan says "
                f"{flops.planned}"
            )
