"""A plan, what was counted of it and what the job says, put together into the document."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase

from trimtab.catalog import Cluster
from trimtab.cost.communication import collective_time
from trimtab.cost.counts import Counts, counts_of
from trimtab.cost.estimates import ASSUMPTIONS as TIME_ASSUMPTIONS
from trimtab.cost.estimates import INTERVAL_SOURCE, Estimate, GroupTime, estimate
from trimtab.cost.explanation.cautions import cautions
from trimtab.cost.explanation.document import (
    VERSION,
    AxisSize,
    CheckpointFacts,
    CollectiveFacts,
    CostFacts,
    DecisionFacts,
    Explanation,
    Formula,
    GroupFacts,
    HeldFacts,
    LaneFacts,
    LinkFacts,
    MemoryFacts,
    MeshFacts,
    MfuFacts,
    ModelFacts,
    MomentFacts,
    NodeRange,
    OnLossFacts,
    PipelineFacts,
    ReplicatedFacts,
    RowClassFacts,
    StageFacts,
    TableFacts,
    TimelineFacts,
    Where,
    WorkFacts,
)
from trimtab.cost.explanation.places import at
from trimtab.cost.flops import StageFlops, step_flops
from trimtab.cost.memory import ASSUMPTIONS as MEMORY_ASSUMPTIONS
from trimtab.cost.memory import MemoryCounter, Moment, RankMemory, num_leaves
from trimtab.cost.replicated import RankMemory as AllocatedMemory
from trimtab.cost.stage_times import runs_beside
from trimtab.plan.explanation import (
    CollectiveUse,
    LevelBytes,
    decisions,
    ranges,
    sent_in_step,
)
from trimtab.plan.physical import EMBEDDING, HEAD, Plan
from trimtab.plan.pipelines import Timeline
from trimtab.plan.program import OperatorKind, Transfer
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
        origins: The line of each key of the job file, by dotted path.
        allocated: What the runtime allocates on the rank that needs most, for plans that it runs; it replaces what
            is counted from the plan.
        replicated: What this release runs of it; None for plans that it does not run.
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
    origins: Mapping[str, str]
    allocated: AllocatedMemory | None = None
    replicated: ReplicatedFacts | None = None


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
    memory = MemoryCounter(plan, counts, num_leaves=num_leaves(plan, asked.on_loss.rule))
    stages = tuple(_stages(plan, counts))
    groups = tuple(_groups(plan, asked, counts, memory, found, stages))
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
        fits=_all_fit(groups),
        cost=_cost(found, asked),
        on_loss=asked.on_loss,
        checkpoints=asked.checkpoints,
        decisions=tuple(_decisions(plan, asked.program)),
        warnings=(),
        replicated=asked.replicated,
    )
    return replace(document, warnings=tuple(cautions(plan, document)))


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
        decided_by=_work_lines(asked),
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
            elements[stage] += _numel(parameter.shape)
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


def _numel(shape: Sequence[int]) -> int:
    found = 1
    for length in shape:
        found *= length
    return found


def _groups(
    plan: Plan,
    asked: Asked,
    counts: Counts,
    memory: MemoryCounter,
    found: Estimate,
    stages: Sequence[StageFacts],
) -> Iterator[GroupFacts]:
    times: Sequence[GroupTime | None] = found.groups or [None] * len(counts.groups)
    titles = list(_titles(plan, counts))
    for number, (group, uses) in enumerate(zip(counts.groups, counts.uses, strict=True)):
        work = sum((counts.flops_of_stage(stage) for stage in group.stages), StageFlops())
        work = work.times(plan.work.microbatches)
        collectives = tuple(_collective(plan, use, asked.cluster) for use in uses)
        devices = [plan.bound.devices[rank] for rank in group.ranks]
        yield GroupFacts(
            name=_letters(number),
            title=titles[number],
            ranks=ranges(group.ranks),
            num_ranks=len(group.ranks),
            nodes=ranges({device.node for device in devices}),
            accelerator=devices[0].kind,
            place=group.place,
            stages=tuple(stages[stage] for stage in group.stages),
            memory=_memory(_allocated(memory.of(number), asked.allocated), asked.device_bytes),
            step_flops=work.useful,
            recomputed_flops=work.recompute,
            collectives=collectives,
            rank_bytes=sum((facts.rank_bytes for facts in collectives), LevelBytes()),
            group_bytes=sum((facts.group_bytes for facts in collectives), LevelBytes()),
            time=times[number],
        )


def _letters(number: int) -> str:
    """A, B, … Z, AA, AB, …"""
    high, low = divmod(number, len(ascii_uppercase))
    return (_letters(high - 1) if high else "") + ascii_uppercase[low]


def _titles(plan: Plan, counts: Counts) -> Iterator[str]:
    """What tells each group from the others: the place in the pipeline, the device, the routes."""
    kinds = {plan.bound.devices[group.ranks[0]].kind for group in counts.groups}
    for group, uses in zip(counts.groups, counts.uses, strict=True):
        parts = [f"{plan.pipeline.axis} {group.place}"] if plan.pipeline.axis else []
        if len(kinds) > 1:
            parts.append(plan.bound.devices[group.ranks[0]].kind)
        chosen = [use.traffic.transfer for use in uses if use.traffic.operator.variants]
        parts += dict.fromkeys(_way(transfer) for transfer in chosen)
        yield ", ".join(parts) or "all ranks"


def _way(transfer: Transfer) -> str:
    """How a collective travels: ``ring``, ``hierarchical(node), topk(0.01), bf16``."""
    levels = f"({', '.join(transfer.levels)})" if transfer.levels else ""
    return ", ".join(
        (f"{transfer.route}{levels}", *([_compress(transfer)] if transfer.compress != "none" else []))
    )


def _compress(transfer: Transfer) -> str:
    argument = "" if transfer.compress_argument is None else f"({transfer.compress_argument:g})"
    return f"{transfer.compress}{argument}"


def _allocated(found: RankMemory, allocated: AllocatedMemory | None) -> RankMemory:
    """The memory with what the runtime is known to allocate; it exchanges in the update and stages all the time."""
    if allocated is None:
        return found
    moments = {
        moment: replace(
            classes,
            parameters=allocated.parameters_bytes,
            gradients=allocated.gradients_bytes,
            states=allocated.optimizer_bytes,
            buffers=allocated.staging_bytes + (allocated.exchange_bytes if moment is Moment.UPDATE else 0),
        )
        for moment, classes in found.moments.items()
    }
    return replace(found, moments=moments)


def _memory(found: RankMemory, device_bytes: int | None) -> MemoryFacts:
    return MemoryFacts(
        held=tuple(
            HeldFacts(table=held.table, device_bytes=held.device_bytes, host_bytes=held.host_bytes)
            for held in found.held
        ),
        moments=tuple(
            MomentFacts(moment=moment, classes=classes, total_bytes=classes.total)
            for moment, classes in found.moments.items()
        ),
        peak=found.peak,
        peak_bytes=found.peak_bytes,
        host_bytes=found.host_bytes,
        fits=None if device_bytes is None else found.peak_bytes <= device_bytes,
    )


def _all_fit(groups: Sequence[GroupFacts]) -> bool | None:
    fits = {group.memory.fits for group in groups}
    return None if None in fits else fits == {True}


def _collective(plan: Plan, use: CollectiveUse, cluster: Cluster) -> CollectiveFacts:
    traffic, transfer = use.traffic, use.traffic.transfer
    time = collective_time(use, cluster)
    because = traffic.operator.because
    return CollectiveFacts(
        block=traffic.block,
        phase=traffic.phase,
        operation=traffic.operator.kind,
        axes=tuple(AxisSize(axis=axis, size=plan.mesh.size(axis)) for axis in transfer.axes),
        group_size=len(traffic.groups[0]),
        num_groups=use.num_groups,
        route=transfer.route,
        levels=transfer.levels,
        wire=transfer.wire,
        compress=_compress(transfer),
        is_sealed=transfer.is_sealed,
        bucket_bytes=transfer.bucket_bytes,
        runs_per_step=use.runs,
        payload_bytes=traffic.payload_bytes,
        rank_bytes=use.most.times(use.runs),
        group_bytes=use.total.times(use.runs),
        seconds=time.seconds,
        slowest=time.level,
        is_hidden=traffic.operator.kind is not OperatorKind.SEND and runs_beside(use),
        tensors=_tensors(traffic.tensors),
        num_tensors=len(traffic.tensors),
        reason=because.reason,
        decided_by=at(because.line),
    )


_SHOWN = 4
"""Names of tensors that are listed before the rest is counted."""

_GRADIENTS = ("acc:", "tied:", "own:", "both:", "grad:", "sum:")
"""What names of gradients begin with."""

_MARKS = "@~#/"
"""What tells copies of a value apart, which only the plan needs."""


def _tensors(names: Sequence[str]) -> str:
    """The first names and how many follow.

    >>> _tensors(["acc:embedding.weight", "acc:final_norm.weight"]), _tensors(["in@1"])
    ('gradients of embedding.weight, final_norm.weight', 'in')
    """
    shown = ", ".join(dict.fromkeys(_plain(name) for name in names[:_SHOWN]))
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = ""
    if names[0].startswith(_GRADIENTS):
        what = "gradient of " if len(names) == 1 else "gradients of "
    return f"{what}{shown}{rest}"


def _plain(name: str) -> str:
    for mark in _MARKS:
        name = name.partition(mark)[0]
    return name.rpartition(":")[2]


def _cost(found: Estimate, asked: Asked) -> CostFacts:
    return CostFacts(
        unknown=found.unknown,
        step_s=found.step_s,
        tokens_per_s=found.tokens_per_s,
        mfu=tuple(MfuFacts(convention=convention, value=value) for convention, value in found.mfu),
        usd_per_device_hour=found.price.usd_per_device_hour if found.price else None,
        price_source=found.price.source if found.price else "",
        usd_per_step=found.usd_per_step,
        steps=asked.steps,
        usd=found.usd,
        interval=INTERVAL_SOURCE,
        assumptions=(*MEMORY_ASSUMPTIONS, *TIME_ASSUMPTIONS),
    )


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
