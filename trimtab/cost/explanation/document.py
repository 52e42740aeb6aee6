"""The one document that EXPLAIN gives: what a plan holds, computes, sends and costs, and which line decided it.

Every class here is an object of the published JSON schema, every field a key of it. Bytes, seconds, FLOPs and
dollars are plain numbers in their names' units; places are ``file:line``, ``default`` where no statement decided;
lists of ranks, nodes and layers are ranges such as ``0-7, 16-23`` or ``0-504 step 8``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any

from trimtab.catalog import FlopConvention, Level
from trimtab.cost.estimates import GroupTime, Interval
from trimtab.cost.explanation.analysis import Analysis
from trimtab.cost.flops import Flops
from trimtab.cost.memory import MemoryClasses, Moment
from trimtab.plan.explanation import LevelBytes
from trimtab.plan.pipelines import StageSchedule
from trimtab.plan.program import OperatorKind, Phase
from trimtab.plan.tables import Table
from trimtab.terms import OnLoss

VERSION = 1
"""Of the document's form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """A statement of the strategy.

    Args:
        at: Where it stands.
        text: As it was written.
    """

    at: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFacts:
    """What joins devices.

    Args:
        level: ``node``: devices of one node; ``site``: nodes.
        bytes_per_s: In one direction, for each device that sends at once.
        latency_s: Of one hop.
        source: Where the figures come from.
    """

    level: Level
    bytes_per_s: float
    latency_s: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRange:
    """Ranks that stand on nodes in equal numbers.

    Args:
        ranks: All of them.
        nodes: That they stand on.
        ranks_per_node: Neighbouring ranks share a node.
        accelerator: What they are.
    """

    ranks: str
    nodes: str
    ranks_per_node: int
    accelerator: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """The devices.

    Args:
        cluster: A name of the catalog, or ``this-machine``.
        num_devices: Of the run.
        num_nodes: That they stand on.
        device_bytes: Memory of one device, the smallest; null if not known.
        links: By level.
        nodes: Which rank stands where.
        decided_by: The line that named the cluster.
    """

    cluster: str
    num_devices: int
    num_nodes: int
    device_bytes: int | None
    links: tuple[LinkFacts, ...]
    nodes: tuple[NodeRange, ...]
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisSize:
    """One axis of the mesh.

    Args:
        axis: Its name.
        size: Ranks along it.
    """

    axis: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshFacts:
    """The grid of ranks; the last axis varies fastest.

    Args:
        axes: In order.
        batch_axes: Those that split the batch.
        decided_by: The MESH statement.
    """

    axes: tuple[AxisSize, ...]
    batch_axes: tuple[str, ...]
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What is trained.

    Args:
        network: Its name; for a class of the user's own, its import path.
        parameters: Elements of all parameters, tied ones once; null if only torch can tell.
        active_parameters: Those that one token meets; null if only torch can tell.
        layers: Their number; null if only torch can tell.
        decided_by: The line that named it.
    """

    network: str
    parameters: int | None
    active_parameters: int | None
    layers: int | None
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class UnevenShares:
    """What some ranks pay in a step where shares do not divide evenly among replicas.

    Args:
        ranks: That pay so.
        shares: That each computes.
        tree_bytes: That its sums of gradients send beyond those listed, for subtrees that are not whole on it.
        idle_bytes: That it sends in collectives of microbatches of which it has none.
    """

    ranks: tuple[int, ...]
    shares: int
    tree_bytes: int
    idle_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFacts:
    """How a step's samples are cut.

    Args:
        batch: Samples of a step.
        sequence: Tokens of a sample.
        tokens: Positions computed in a step.
        replicas: Ranks along the axes that split the batch.
        parts: Shares of the batch; with shares off one a replica.
        has_fixed_order: Whether shares are added in a fixed tree.
        parts_per_replica: Of the busiest replica.
        microbatch: Samples that a replica computes at once.
        microbatches_per_part: Passes that one share takes.
        compute: Type of the matrix products of most layers.
        useful_flops: Of one step on all ranks together: forward and backward pass, recompute left out.
        recomputed_flops: What is computed again.
        repeated_share: Part of the useful FLOPs that several ranks compute alike, or on padding; 0 in a good plan.
        uneven: What ranks pay where shares do not divide evenly, those alike together; empty where they do.
        decided_by: For each key of the job file its line.
    """

    batch: int
    sequence: int
    tokens: int
    replicas: int
    parts: int
    has_fixed_order: bool
    parts_per_replica: int
    microbatch: int
    microbatches_per_part: int
    compute: str
    useful_flops: Flops
    recomputed_flops: Flops
    repeated_share: float
    uneven: tuple[UnevenShares, ...]
    decided_by: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneFacts:
    """What the ranks at one place of a pipeline do in time.

    Args:
        bubble_share: Part of the time in which they wait.
        actions: In order: stage, kind (F, B, I, W) and microbatch, as torch writes them: ``2F0``.
        starts: Of each action, from the start of the share, in the timeline's unit, to six digits.
        ends: The same.
    """

    bubble_share: float
    actions: tuple[str, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineFacts:
    """A pipeline in time, for one share.

    Args:
        unit: ``s``, or ``forward pass``: the mean of the stages, where no rate is known.
        makespan: From the first action to the end of the last.
        lanes: One for each place of the axis.
    """

    unit: str
    makespan: float
    lanes: tuple[LaneFacts, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFacts:
    """One stage of the pipeline; without a pipeline the only one.

    Args:
        stage: Its number.
        place: Coordinate on the pipeline's axis of the ranks that hold it.
        layers: In short; empty if it has none.
        parts: ``embedding``, ``head`` where it holds them.
        parameters: Elements that it holds, over all ranks that split them.
        forward_flops: Of one rank on one microbatch.
        backward_flops: The same, without recompute.
        recompute_flops: The same, computed again.
    """

    stage: int
    place: int
    layers: str
    parts: tuple[str, ...]
    parameters: int
    forward_flops: Flops
    backward_flops: Flops
    recompute_flops: Flops


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineFacts:
    """How layers are cut into stages.

    Args:
        axis: Of the mesh.
        schedule: In which order a rank runs its stages.
        stages_per_rank: Stages of each rank.
        num_stages: All of them.
        microbatches: That pass through in one go: those of a share.
        bubble_share: Part of all ranks' time in which they wait.
        timeline: Of one share.
        decided_by: The SPLIT layers statement.
    """

    axis: str
    schedule: StageSchedule
    stages_per_rank: int
    num_stages: int
    microbatches: int
    bubble_share: float
    timeline: TimelineFacts
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldFacts:
    """What a rank keeps of one table between steps.

    Args:
        table: params, grads or states.
        device_bytes: On the device.
        host_bytes: In host memory.
    """

    table: Table
    device_bytes: int
    host_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MomentFacts:
    """Memory in one part of the step.

    Args:
        moment: Which part.
        classes: Bytes by class, each at its most.
        total_bytes: Their sum.
    """

    moment: Moment
    classes: MemoryClasses
    total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFacts:
    """Memory of one rank of a group.

    Args:
        held: Between steps.
        moments: Over the step.
        peak: The part of the step that needs most.
        peak_bytes: What it needs, as this runtime allocates.
        values_bytes: What the plan's own values take at their peak, whoever runs them.
        host_bytes: In host memory, offloaded.
        device_bytes: Memory of its device; null if not known.
        fits: Whether the peak fits the device; null if its memory is not known.
    """

    held: tuple[HeldFacts, ...]
    moments: tuple[MomentFacts, ...]
    peak: Moment
    peak_bytes: int
    values_bytes: int
    host_bytes: int
    device_bytes: int | None
    fits: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveFacts:
    """One collective as the ranks of a group run it.

    Args:
        block: ``embedding``, ``layers 0-3``, ``head``, ``update``, ``pipeline``.
        phase: Of the step.
        operation: all_reduce, all_gather, …
        axes: Whose process groups run it, with their sizes.
        group_size: Ranks of one process group.
        num_groups: Process groups that the ranks of this rank group stand in.
        route: native, ring, tree, …
        levels: Of a hierarchical route.
        wire: Type on the wire.
        compress: none, bf16, int8, topk, powersgd, with its argument.
        is_sealed: Whether the payload is encrypted.
        bucket_bytes: Tensors are sent together up to this size; null without a limit.
        runs_per_step: How often; below 1 for what happens every few steps.
        payload_bytes: That one rank puts into one run.
        rank_bytes: For each level the most that one rank of the group sends over it in a step.
        group_bytes: What all ranks of the rank group send in a step.
        seconds: That one run takes by itself, over links that are assumed where nobody has measured them.
        slowest: The level of the link that decides.
        is_hidden: Whether it runs beside the computation.
        tensors: Names of what is sent, in short.
        num_tensors: How many.
        reason: Why it is there.
        decided_by: The statement behind it.
    """

    block: str
    phase: Phase
    operation: OperatorKind
    axes: tuple[AxisSize, ...]
    group_size: int
    num_groups: int
    route: str
    levels: tuple[str, ...]
    wire: str
    compress: str
    is_sealed: bool
    bucket_bytes: int | None
    runs_per_step: float
    payload_bytes: int
    rank_bytes: LevelBytes
    group_bytes: LevelBytes
    seconds: float
    slowest: Level
    is_hidden: bool
    tensors: str
    num_tensors: int
    reason: str
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFacts:
    """Ranks that hold and do the same.

    Args:
        name: ``A``, ``B``, … in order of their first ranks.
        title: What tells them apart: ``pp 0``, ``all ranks``.
        ranks: In short.
        num_ranks: How many.
        nodes: That they stand on, in short.
        accelerator: What they are.
        place: Their coordinate on the pipeline's axis; 0 without one.
        stages: That each of them holds.
        memory: Of one of them.
        step_flops: What one of them computes in a step: forward and backward pass.
        recomputed_flops: What it computes again.
        collectives: In the order of the step.
        rank_bytes: For each level the most that one of them sends over it in a step, all collectives together.
        group_bytes: What all of them send in a step.
        time: Where the step goes; null if its time is not known.
    """

    name: str
    title: str
    ranks: str
    num_ranks: int
    nodes: str
    accelerator: str
    place: int
    stages: tuple[StageFacts, ...]
    memory: MemoryFacts
    step_flops: Flops
    recomputed_flops: Flops
    collectives: tuple[CollectiveFacts, ...]
    rank_bytes: LevelBytes
    group_bytes: LevelBytes
    time: GroupTime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyFacts:
    """Copies of each rank's pieces in the memory of another.

    Args:
        every: Steps between two; ``auto``: so many as make up half a minute.
        copy_bytes: Of one, on the rank that has most; sent to one other rank each time.
        held_bytes: Of host memory on such a rank: two copies of its own and two of another's.
        decided_by: The line.
    """

    every: int | str
    copy_bytes: int
    held_bytes: int
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OnLossFacts:
    """What happens in the step in which a rank dies.

    Args:
        rule: That holds.
        strongest: That the layout allows.
        reason: Why no stronger one.
        guarantee: What the rule promises.
        decided_by: The line that named the rule, or ``auto``.
        limited_by: The statement that rules a stronger one out; empty if none does.
        copies: In memory, that all could go back to; null if none are taken.
    """

    rule: OnLoss
    strongest: OnLoss
    reason: str
    guarantee: str
    decided_by: str
    limited_by: str
    copies: CopyFacts | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFacts:
    """When the full state is saved.

    Args:
        every: Steps, ``adaptive`` or ``off``.
        keep: Newest ones kept.
        decided_by: The line.
    """

    every: int | str
    keep: int
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionFacts:
    """How lost, slow and wrong ranks are found.

    Args:
        deadline_s: From which the limits follow.
        limits_s: All of them in seconds, by key of the job file.
        probe_share: Part of the shares that a second rank computes again; so much more compute it costs.
        compare_every: Steps between two comparisons of the replicas' parameters; 0 for none before the end.
        decided_by: The line of the deadline.
    """

    deadline_s: float
    limits_s: Mapping[str, float]
    probe_share: float
    compare_every: int
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MfuFacts:
    """Model FLOPs over the declared peak.

    Args:
        convention: Which attention scores count.
        value: From 0 to 1.
    """

    convention: FlopConvention
    value: Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class CostFacts:
    """Time and dollars; what is not known is null.

    Args:
        unknown: Why there is no time; empty if there is.
        step_s: Of one step.
        tokens_per_s: Of all devices.
        mfu: Under each convention.
        usd_per_device_hour: The price of a device.
        price_source: Who says so.
        price_warning: That the price is old, or nobody knows how old; empty if there is nothing to say.
        usd_per_step: Of all devices.
        steps: Of the run.
        usd: Of the run.
        interval: Where the interval comes from.
        assumptions: What the figures rest on.
    """

    unknown: str
    step_s: Interval | None
    tokens_per_s: Interval | None
    mfu: tuple[MfuFacts, ...]
    usd_per_device_hour: float | None
    price_source: str
    price_warning: str
    usd_per_step: Interval | None
    steps: int | None
    usd: Interval | None
    interval: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionFacts:
    """One property of rows.

    Args:
        property: ``split tp``, ``store dp``, ``route dp``, …
        value: What was decided.
        decided_by: The last matching statement.
    """

    property: str
    value: str
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RowClassFacts:
    """Rows of a table that are decided alike.

    Args:
        rows: Their names, layers in short.
        num_rows: How many.
        decisions: What was said about them; empty: the defaults hold.
    """

    rows: tuple[str, ...]
    num_rows: int
    decisions: tuple[DecisionFacts, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFacts:
    """The decisions of one table.

    Args:
        table: Its name.
        classes: Rows that are decided alike.
    """

    table: Table
    classes: tuple[RowClassFacts, ...]


class CautionKind(StrEnum):
    """What a warning is about."""

    MEMORY = "memory"
    BORDER = "border"
    BUBBLE = "bubble"
    NO_EFFECT = "no_effect"
    PADDING = "padding"
    REPEATED_WORK = "repeated_work"
    UNEVEN = "uneven"
    ON_LOSS = "on_loss"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caution:
    """A warning.

    Args:
        kind: What it is about.
        message: In a sentence, with its figures.
        at: The line; empty if none is to blame.
    """

    kind: CautionKind
    message: str
    at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnershipFacts:
    """Who computes which shares with so many ranks.

    Args:
        ranks: Living ones.
        owners: By share, its rank.
    """

    ranks: int
    owners: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaFacts:
    """Neighbouring ranks of a replicated run whose figures are equal.

    Args:
        ranks: In short.
        shares: That they compute, in short.
        num_shares: Of each of them.
        memory_bytes: What the runtime allocates on each, by class; activations are not in it.
        reduce_bytes: That each sends in the sum of a step.
        gather_bytes: That each sends in passing sums on.
    """

    ranks: str
    shares: str
    num_shares: int
    memory_bytes: Mapping[str, int]
    reduce_bytes: int
    gather_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicatedFacts:
    """What the runtime of this release does with a plan that only splits the batch.

    Args:
        ownership: With all ranks, with fewer, and alone; empty with shares off.
        ranks: All of them.
        formulas: Of the bytes that are sent, by phase.
    """

    ownership: tuple[OwnershipFacts, ...]
    ranks: tuple[ReplicaFacts, ...]
    formulas: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTableFacts:
    """One table of a class of the user's own, on each rank.

    Args:
        table: params, grads or states.
        held_bytes: What a rank keeps: of params and states always, of grads when a step has computed them.
        whole_bytes: What it would keep without pieces.
        decided_by: The first line that stores anything of it.
    """

    table: Table
    held_bytes: int
    whole_bytes: int
    decided_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferFacts:
    """What the busiest rank sends in a step for one purpose.

    Args:
        what: In a few words.
        operation: Of the backend.
        times: How often.
        sent_bytes: In all of them.
    """

    what: str
    operation: str
    times: int
    sent_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageFacts:
    """How a class of the user's own is stored in pieces.

    Args:
        num_ranks: That hold a piece each.
        layers: That are gathered one by one.
        tables: What each rank keeps.
        gathered_bytes: Parameters that are whole at once while a microbatch is computed: what is outside of layers, and
            the largest layer; 0 if parameters are not stored in pieces.
        transfers: Of a step.
        assumptions: What the figures leave out.
    """

    num_ranks: int
    layers: int
    tables: tuple[StoredTableFacts, ...]
    gathered_bytes: int
    transfers: tuple[TransferFacts, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Everything that EXPLAIN tells.

    Args:
        version: Of this form.
        run: Name of the run.
        digest: SHA-256 of the resolved job.
        model: What is trained.
        where: The devices.
        mesh: Their grid.
        formulas: The strategy as written, presets in their place.
        work: How the batch is cut; null for a class whose shapes only torch can tell, as are the next three.
        pipeline: Its stages in time; null without one.
        stages: All of them; one without a pipeline.
        groups: Ranks that hold and do the same.
        sent_bytes: By all ranks in one step.
        fits: Whether every rank fits its device; null if not known.
        cost: Time and dollars.
        on_loss: What happens when a rank dies.
        checkpoints: When the full state is saved.
        detection: How lost and wrong ranks are found.
        decisions: Which line decided what, by table.
        warnings: What may be meant otherwise.
        replicated: What this release runs; null for a plan that splits more than the batch.
        analysis: Real steps, measured; null if nobody asked for them.
        storage: The pieces of a class of the user's own; null for a network, and for a class that is whole everywhere.
    """

    version: int
    run: str
    digest: str
    model: ModelFacts
    where: Where
    mesh: MeshFacts
    formulas: tuple[Formula, ...]
    work: WorkFacts | None
    pipeline: PipelineFacts | None
    stages: tuple[StageFacts, ...]
    groups: tuple[GroupFacts, ...]
    sent_bytes: LevelBytes
    fits: bool | None
    cost: CostFacts
    on_loss: OnLossFacts
    checkpoints: CheckpointFacts
    detection: DetectionFacts
    decisions: tuple[TableFacts, ...]
    warnings: tuple[Caution, ...]
    replicated: ReplicatedFacts | None
    analysis: Analysis | None = None
    storage: StorageFacts | None = None


def document_of(value: object) -> Any:
    """A value of these classes as plain JSON: objects, lists, numbers, text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: document_of(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): document_of(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [document_of(item) for item in value]
    return value
