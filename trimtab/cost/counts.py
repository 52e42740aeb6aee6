"""What is counted once of a plan and asked for many times: groups of ranks, their collectives, actions, FLOPs."""

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.cost.flops import StageFlops, block_flops
from trimtab.cost.holdings import Holdings
from trimtab.plan.explanation import CollectiveUse, RankGroup, collective_uses, rank_groups
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import PipelineActions, actions_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Whatever follows from a plan alone.

    Args:
        groups: Ranks that hold and do the same.
        uses: For each of them its collectives.
        actions: Of the pipeline, for one share; None without a pipeline.
        flops: By block and stage, of one microbatch.
        holdings: What ranks keep between steps.
    """

    groups: tuple[RankGroup, ...]
    uses: tuple[tuple[CollectiveUse, ...], ...]
    actions: PipelineActions | None
    flops: Mapping[str, tuple[StageFlops, ...]]
    holdings: Holdings

    def flops_of_stage(self, stage: int) -> StageFlops:
        """What one rank of a stage computes on one microbatch."""
        return sum((stages[stage] for stages in self.flops.values()), StageFlops())


def counts_of(plan: Plan) -> Counts:
    """The counts of a plan."""
    groups = rank_groups(plan)
    return Counts(
        groups=groups,
        uses=collective_uses(plan, groups),
        actions=_actions(plan),
        flops=block_flops(plan),
        holdings=Holdings(plan),
    )


def _actions(plan: Plan) -> PipelineActions | None:
    pipeline = plan.pipeline
    if pipeline.axis is None:
        return None
    return actions_of(
        pipeline.schedule,
        ranks=plan.mesh.size(pipeline.axis),
        stages_per_rank=pipeline.stages_per_rank,
        microbatches=plan.work.microbatches_per_part,
    )
