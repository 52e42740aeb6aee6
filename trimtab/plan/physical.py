"""The physical plan: everything that a runtime, an estimate, a simulation and an explanation need to know."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trimtab.catalog import Network
from trimtab.plan.bound import Bound
from trimtab.plan.collectives import Send
from trimtab.plan.pipelines import StageSchedule
from trimtab.plan.placements import Placements
from trimtab.plan.program import Because, Block, Operator, OperatorKind, Parameter, Phase, Transfer, Value
from trimtab.spec import Mesh, Problem
from trimtab.terms import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """How a step's samples are cut.

    Args:
        batch: Samples of a step.
        sequence: Tokens of a sample.
        replicas: Ranks along the axes that split the batch.
        num_parts: Shares of the batch; with shares off, one a replica.
        has_fixed_order: Whether gradients are added in the fixed tree over shares.
        microbatch: Samples that a replica computes at once.
        microbatches_per_part: Of one share.
    """

    batch: int
    sequence: int
    replicas: int
    num_parts: int
    has_fixed_order: bool
    microbatch: int
    microbatches_per_part: int

    @property
    def parts_per_replica(self) -> int:
        """Shares that the busiest replica computes."""
        return -(-self.num_parts // self.replicas)

    @property
    def microbatches(self) -> int:
        """Microbatches that the busiest replica computes in a step."""
        return self.parts_per_replica * self.microbatches_per_part

    @property
    def tokens(self) -> int:
        """Positions computed in a step, padding included."""
        return self.batch * self.sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """How layers are cut into stages.

    Args:
        axis: Of the mesh; None without a pipeline: one stage holds everything.
        schedule: In which order a rank runs its stages.
        stages_per_rank: Stages that each rank holds.
        num_stages: All of them.
        stage_of_layer: By layer.
        rank_of_stage: The coordinate on the axis that holds each stage.
        line: The statement; None without a pipeline.
    """

    axis: str | None
    schedule: StageSchedule
    stages_per_rank: int
    num_stages: int
    stage_of_layer: tuple[int, ...]
    rank_of_stage: tuple[int, ...]
    line: Span | None = None

    def stages_of(self, coordinate: int) -> tuple[int, ...]:
        """The stages that a rank at this place of the axis holds."""
        return tuple(stage for stage, rank in enumerate(self.rank_of_stage) if rank == coordinate)


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """What happens once a step, after the last microbatch.

    Args:
        values: By name: ``acc:x`` the gradient of x added up over microbatches, ``grad:x`` as the optimizer wants
            it, ``new:x`` the updated parameter.
        operators: In order.
        results: For each parameter the value that it is after the step.
    """

    values: Mapping[str, Value]
    operators: tuple[Operator, ...]
    results: Mapping[str, str]

    @property
    def is_tied_at_once(self) -> bool:
        """Whether the gradients of both uses of a tied matrix are added before any is sent: one sum holds both."""
        return any(
            operator.kind is OperatorKind.SUM
            and operator.inputs == tuple(f"acc:{name}#{use}" for use in _USES)
            for operator in self.operators
            for name in (operator.outputs[0].partition(":")[2],)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """One collective of a plan.

    Args:
        block: Name of the block; ``update`` for what happens once a step.
        phase: Of the step.
        operator: That sends.
        transfer: How; an operator whose groups differ appears once for each way.
        groups: The process groups that send this way, ranks in order.
        payload_bytes: That one rank puts in, in the type of the wire.
        sends: Messages of one run, by group of equal places: the groups' indices in ``groups``, then who sends
            how many bytes to whom, as places in the group.
        runs: Runs in one step, by place on the pipeline's axis; ranks elsewhere do not run it.
        tensors: Names of what is sent.
        because: Why it is there, and why this way.
    """

    block: str
    phase: Phase
    operator: Operator
    transfer: Transfer
    groups: tuple[tuple[int, ...], ...]
    payload_bytes: int
    sends: tuple[tuple[tuple[int, ...], tuple[Send, ...]], ...]
    runs: Mapping[int, float]
    tensors: tuple[str, ...]
    because: Because

    def sent_bytes(self, rank: int) -> int:
        """Bytes that a rank sends in one run."""
        return sum(size for _, size in self.messages_of(rank))

    def messages_of(self, rank: int) -> Iterator[tuple[int, int]]:
        """The ranks that a rank sends to in one run, each with its bytes."""
        for indices, sends in self.sends:
            for index in indices:
                group = self.groups[index]
                if rank in group:
                    place = group.index(rank)
                    yield from ((group[send.target], send.elements) for send in sends if send.source == place)
                    return


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What every rank holds, computes and sends in one step.

    Args:
        network: That is trained.
        mesh: Sizes of the axes.
        work: How the batch is cut.
        pipeline: How the layers are cut.
        parameters: By name, in canonical order.
        blocks: Embedding, classes of equal layers, head.
        stream: How the residual stream leaves each block: ``embedding`` and by layer.
        update: Once a step.
        bound: The decisions that all this follows from.
        traffic: Every collective of a step with its messages.
        warnings: What may be meant otherwise.
    """

    network: Network
    mesh: Mesh
    work: Work
    pipeline: Pipeline
    parameters: Mapping[str, Parameter]
    blocks: tuple[Block, ...]
    stream: tuple[Placements, ...]
    update: Update
    bound: Bound
    traffic: tuple[Traffic, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def block_of(self, layer: int) -> Block:
        """The block that a layer runs."""
        return next(block for block in self.blocks if layer in block.layers)

    def num_runs(self, block: Block, stage: int) -> int:
        """How often a stage runs a block in one step."""
        return self.num_instances(block, stage) * self.work.microbatches

    def num_instances(self, block: Block, stage: int) -> int:
        """Layers of this block that a stage holds; 1 for the embedding or the head that it holds."""
        if block.name == EMBEDDING:
            return int(stage == 0)
        if block.name == HEAD:
            return int(stage == self.pipeline.num_stages - 1)
        return sum(self.pipeline.stage_of_layer[layer] == stage for layer in block.layers)

    @property
    def axis_sizes(self) -> Mapping[str, int]:
        """Ranks along each axis."""
        return dict(self.mesh.axes)


SCALARS = ("num_tokens", "loss", "norm_square")
"""Values of the update that are one number for the whole step."""

EMBEDDING, HEAD = _USES = "embedding", "head"
"""Names of the blocks that are not layers."""
