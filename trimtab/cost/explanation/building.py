"""A plan, what was counted of it and what the job says, put together into the document."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date

from trimtab.catalog import Cluster
from trimtab.cost.counts import Counts, counts_of
from trimtab.cost.estimates import ASSUMPTIONS as TIME_ASSUMPTIONS
from trimtab.cost.estimates import INTERVAL_SOURCE, Estimate, estimate
from trimtab.cost.explanation.cautions import cautions
from trimtab.cost.explanation.document import (
    VERSION,
    AxisSize,
    CheckpointFacts,
    CostFacts,
    DecisionFacts,
    DetectionFacts,
    Explanation,
    Formula,
    LaneFacts,
    LinkFacts,
    MemoryFacts,
    MeshFacts,
    MfuFacts,
    ModelFacts,
    NodeRange,
    OnLossFacts,
    PipelineFacts,
    ReplicatedFacts,
    RowClassFacts,
    StageFacts,
    TableFacts,
    TimelineFacts,
    UnevenShares,
    Where,
    WorkFacts,
)
from trimtab.cost.explanation.group_facts import group_facts, memory_facts
from trimtab.cost.explanation.places import at
from trimtab.cost.flops import step_flops
from trimtab.cost.memory import num_leaves
from trimtab.cost.replicated import RankMemory as AllocatedMemory
from trimtab.cost.run_memory import ASSUMPTIONS as MEMORY_ASSUMPTIONS
from trimtab.cost.run_memory import RunMemory
from trimtab.plan.explanation import LevelBytes, RankGroup, decisions, ranges, sent_in_step
from trimtab.plan.explanation.share_traffic import ShareTraffic, share_traffic
from trimtab.plan.physical import EMBEDDING, HEAD, Plan
from trimtab.plan.pipelines import Timeline
from trimtab.spec import Mesh, Program
from trimtab.spec.language import MeshStatement, SplitStatement, print_statement


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What an explanation takes from the job besides the plan.

    Args:
        run: Name of the run.
        digest: Of the resolved job.
        program: The strategy that the plan was compiled from.
        model: What is trained, and the line that named it.
        compute: Type of matrix products.
        cluster: Whose devices the plan stands on.
        device_bytes: Memory of each device; None if not known.
        steps: Of the run; None if it ends by epochs.
        usd_per_device_hour: What the user pays; None for the catalog's price.
        on_loss: The rule that holds.
        checkpoints: When the state is saved.
        detection: How lost and wrong ranks are found.
        origins: The line of each key of the job file, by dotted path.
        allocated: What the runtime allocates on the rank that needs most, for plans that it runs; it replaces what
            is counted from the plan.
        replicated: What this release runs of it; None for plans that it does not run.
        today: By which prices are old; None: nothing is said of their age.
    """

    run: str
    digest: str
    program: Program
    model: ModelFacts
    compute: str
    cluster: Cluster
    device_bytes: int | None
    steps: int | None
    usd_per_device_hour: float | None
    on_loss: OnLossFacts
    checkpoints: CheckpointFacts
    detection: DetectionFacts
    origins: Mapping[str, str]
    allocated: AllocatedMemory | None = None
    replicated: ReplicatedFacts | None = None
    today: date | None = None


def explanation(plan: Plan, asked: Asked) -> Explanation:
    """The whole document of a plan."""
    counts = counts_of(plan)
    found = estimate(
        plan,
        asked.cluster,
        steps=asked.steps,
        usd_per_device_hour=asked.usd_per_device_hour,
        counts=counts,
    )
    used = RunMemory(plan, counts, num_leaves=num_leaves(plan, asked.on_loss.rule), allocated=asked.allocated)
    memories = tuple(
        memory_facts(
            used.of(number),
            values_bytes=used.values_bytes(number),
            device_bytes=_device_bytes(plan, asked, group),
        )
        for number, group in enumerate(counts.groups)
    )
    stages = tuple(_stages(plan, counts))
    groups = tuple(group_facts(plan, asked.cluster, counts, memories, found, stages))
    document = Explanation(
        version=VERSION,
        run=asked.run,
        digest=asked.digest,
        model=asked.model,
        where=_where(plan, asked),
        mesh=_mesh(plan.mesh, plan.bound.batch_axes, asked.program),
        formulas=tuple(_formulas(asked.program)),
        work=_work(plan, asked),
        pipeline=_pipeline(plan, found),
        stages=stages,
        groups=groups,
        sent_bytes=sum((sent_in_step(uses) for uses in counts.uses), LevelBytes()),
        fits=_all_fit(memories),
        cost=_cost(found, asked),
        on_loss=asked.on_loss,
        checkpoints=asked.checkpoints,
        detection=asked.detection,
        decisions=tuple(_decisions(plan, asked.program)),
        warnings=(),
        replicated=asked.replicated,
    )
    return replace(document, warnings=tuple(cautions(plan, document)))


def _device_bytes(plan: Plan, asked: Asked, group: RankGroup) -> int | None:
    """Memory of a group's devices; None if that of the machine's own is not known."""
    return None if asked.device_bytes is None else plan.bound.devices[group.ranks[0]].memory_bytes


def _all_fit(memories: Iterable[MemoryFacts]) -> bool | None:
    fits = {memory.fits for memory in memories}
    return None if None in fits else fits == {True}


def unplanned(asked: Asked, mesh: Mesh) -> Explanation:
    """What can be said of a class of the user's own without torch: everything but figures."""
    cluster = asked.cluster
    return Explanation(
        version=VERSION,
        run=asked.run,
        digest=asked.digest,
        model=asked.model,
        where=Where(
            cluster=cluster.name,
            num_devices=mesh.num_devices,
            num_nodes=len(
                {cluster.node_of(rank) for rank in range(min(mesh.num_devices, cluster.num_devices))}
            ),
            device_bytes=asked.device_bytes,
            links=tuple(_links(cluster)),
            nodes=(),
            decided_by=asked.origins.get("orchestration.cluster", "default"),
        ),
        mesh=_mesh(mesh, (), asked.program),
        formulas=tuple(_formulas(asked.program)),
        work=None,
        pipeline=None,
        stages=(),
        groups=(),
        sent_bytes=LevelBytes(),
        fits=None,
        cost=_cost(Estimate(unknown="the shapes of the model are known to torch only"), asked),
        on_loss=asked.on_loss,
        checkpoints=asked.checkpoints,
        detection=asked.detection,
        decisions=(),
        warnings=(),
        replicated=None,
    )


def _where(plan: Plan, asked: Asked) -> Where:
    cluster = asked.cluster
    nodes = {device.node for device in plan.bound.devices}
    return Where(
        cluster=cluster.name,
        num_devices=plan.mesh.num_devices,
        num_nodes=len(nodes),
        device_bytes=asked.device_bytes,
        links=tuple(_links(cluster)),
        nodes=tuple(_node_ranges(plan)),
        decided_by=asked.origins.get("orchestration.cluster", "default"),
    )


def _links(cluster: Cluster) -> Iterator[LinkFacts]:
    for link in cluster.links:
        yield LinkFacts(
            level=link.level, bytes_per_s=link.bytes_per_s, latency_s=link.latency_s, source=link.source
        )


def _node_ranges(plan: Plan) -> Iterator[NodeRange]:
    """Neighbouring nodes that hold equal numbers of equal devices, as one."""
    ranks: dict[int, list[int]] = {}
    for device in plan.bound.devices:
        ranks.setdefault(device.node, []).append(device.rank)
    runs: list[tuple[tuple[int, str], list[int]]] = []
    for node, held in ranks.items():
        key = (len(held), plan.bound.devices[held[0]].kind)
        if runs and runs[-1][0] == key:
            runs[-1][1].append(node)
        else:
            runs.append((key, [node]))
    for (count, kind), nodes in runs:
        members = [rank for node in nodes for rank in ranks[node]]
        yield NodeRange(ranks=ranges(members), nodes=ranges(nodes), ranks_per_node=count, accelerator=kind)


def _mesh(mesh: Mesh, batch_axes: Iterable[str], program: Program) -> MeshFacts:
    lines = [statement.span for statement in program.statements if isinstance(statement, MeshStatement)]
    return MeshFacts(
        axes=tuple(AxisSize(axis=axis, size=size) for axis, size in mesh.axes),
        batch_axes=tuple(batch_axes),
        decided_by=at(lines[0] if lines else None),
    )


def _formulas(program: Program) -> Iterator[Formula]:
    """Statements as written; those of a preset with its parameters filled in."""
    for statement in program.statements:
        span = statement.span
        lines = program.documents.get(span.source, "").splitlines()
        line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
        text = line[span.column - 1 : span.column - 1 + span.length].strip()
        yield Formula(at=at(span), text=print_statement(statement) if "$" in text or not text else text)


def _work(plan: Plan, asked: Asked) -> WorkFacts:
    work, flops = plan.work, step_flops(plan)
    needed = plan.network.flops_per_token(work.sequence, causal=True) * work.tokens
    return WorkFacts(
        batch=work.batch,
        sequence=work.sequence,
        tokens=work.tokens,
        replicas=work.replicas,
        parts=work.num_parts,
        has_fixed_order=work.has_fixed_order,
        parts_per_replica=work.parts_per_replica,
        microbatch=work.microbatch,
        microbatches_per_part=work.microbatches_per_part,
        compute=asked.compute,
        useful_flops=flops.useful,
        recomputed_flops=flops.recompute,
        repeated_share=max(0.0, 1 - needed / flops.useful.causal),
        uneven=_uneven(plan),
        decided_by=_work_lines(asked),
    )


def _uneven(plan: Plan) -> tuple[UnevenShares, ...]:
    alike: dict[ShareTraffic, list[int]] = {}
    for rank, found in enumerate(share_traffic(plan)):
        if found.tree_bytes > 0 or found.idle_bytes:
            alike.setdefault(found, []).append(rank)
    return tuple(
        UnevenShares(
            ranks=tuple(ranks),
            shares=found.shares,
            tree_bytes=max(0, found.tree_bytes),
            idle_bytes=found.idle_bytes,
        )
        for found, ranks in alike.items()
    )


def _work_lines(asked: Asked) -> dict[str, str]:
    """The lines of the keys that cut the batch; MICROBATCHES goes before train.microbatch."""
    keys = ("train.batch", "train.microbatch", "train.compute", "fault_tolerance.shares")
    lines = {key: asked.origins[key] for key in keys if key in asked.origins}
    for statement in asked.program.statements:
        if isinstance(statement, SplitStatement) and statement.microbatches is not None:
            lines["train.microbatch"] = at(statement.span)
    return lines


def _pipeline(plan: Plan, found: Estimate) -> PipelineFacts | None:
    pipeline, timeline = plan.pipeline, found.timeline
    if pipeline.axis is None or timeline is None:
        return None
    return PipelineFacts(
        axis=pipeline.axis,
        schedule=pipeline.schedule,
        stages_per_rank=pipeline.stages_per_rank,
        num_stages=pipeline.num_stages,
        microbatches=plan.work.microbatches_per_part,
        bubble_share=timeline.bubble_share,
        timeline=_timeline(timeline, is_seconds=found.is_timeline_in_seconds),
        decided_by=at(pipeline.line),
    )


def _timeline(timeline: Timeline, *, is_seconds: bool) -> TimelineFacts:
    return TimelineFacts(
        unit="s" if is_seconds else "forward pass",
        makespan=timeline.makespan_s,
        lanes=tuple(
            LaneFacts(
                bubble_share=share,
                actions=tuple(str(bar.action) for bar in bars),
                starts=tuple(_rounded(bar.start_s) for bar in bars),
                ends=tuple(_rounded(bar.end_s) for bar in bars),
            )
            for bars, share in zip(timeline.bars, timeline.bubble_shares, strict=True)
        ),
    )


def _rounded(seconds: float) -> float:
    """To six digits: enough to draw it."""
    return float(f"{seconds:.6g}")


def _stages(plan: Plan, counts: Counts) -> Iterator[StageFacts]:
    pipeline = plan.pipeline
    elements = Counter[int]()
    for parameter in plan.parameters.values():
        for stage in parameter.stages:
            elements[stage] += math.prod(parameter.shape)
    for stage in range(pipeline.num_stages):
        flops = counts.flops_of_stage(stage)
        layers = [layer for layer, found in enumerate(pipeline.stage_of_layer) if found == stage]
        parts = [EMBEDDING] if stage == 0 else []
        parts += [HEAD] if stage == pipeline.num_stages - 1 else []
        yield StageFacts(
            stage=stage,
            place=pipeline.rank_of_stage[stage],
            layers=ranges(layers),
            parts=tuple(parts),
            parameters=elements[stage],
            forward_flops=flops.forward,
            backward_flops=flops.backward,
            recompute_flops=flops.recompute,
        )


def _cost(found: Estimate, asked: Asked) -> CostFacts:
    return CostFacts(
        unknown=found.unknown,
        step_s=found.step_s,
        tokens_per_s=found.tokens_per_s,
        mfu=tuple(MfuFacts(convention=convention, value=value) for convention, value in found.mfu),
        usd_per_device_hour=found.price.usd_per_device_hour if found.price else None,
        price_source=_price_source(found, asked),
        price_warning=found.price.warning(asked.today) if found.price and asked.today else "",
        usd_per_step=found.usd_per_step,
        steps=asked.steps,
        usd=found.usd,
        interval=INTERVAL_SOURCE,
        assumptions=(*MEMORY_ASSUMPTIONS, *TIME_ASSUMPTIONS),
    )


def _price_source(found: Estimate, asked: Asked) -> str:
    """Who says what a device costs; of the job file, with the line."""
    if found.price is None:
        return ""
    line = asked.origins.get(found.price.source)
    return f"{found.price.source} ({line})" if line else found.price.source


def _decisions(plan: Plan, program: Program) -> Iterator[TableFacts]:
    for table, classes in decisions(plan, program).items():
        yield TableFacts(
            table=table,
            classes=tuple(
                RowClassFacts(
                    rows=found.rows,
                    num_rows=found.num_rows,
                    decisions=tuple(
                        DecisionFacts(property=item.property, value=item.value, decided_by=at(item.line))
                        for item in found.decided
                    ),
                )
                for found in classes
            ),
        )
