"""Where everything stands when parameters are replicated and only the batch is split.

The batch is cut into parts: shares, whose number is a constant of the run, or one part a device with shares
off. A part runs its microbatches in order. Parameters, gradients and optimizer states are flat fp32 vectors,
the same on every rank.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.catalog import Network, NetworkError, changed_network, network
from trimtab.spec import Job, Layout, Program, TrainedTokenizer
from trimtab.spec.language import (
    MeshStatement,
    ReduceStatement,
    SplitStatement,
    is_batch_split,
    is_replicated,
)

ALIGNMENT = 16
"""Elements: every tensor starts at a multiple of it in a flat vector, and so does every piece of one."""

TAIL = 16
"""Elements behind the gradients that travel with them: loss, targets, and what all ranks must agree on."""

BYTES_PER_ELEMENT = 4
"""Master weights, gradients and optimizer states are fp32."""

_BYTE_TOKENS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicatedLayout:
    """The sizes that memory, traffic and work follow from.

    Args:
        devices: Ranks that the run starts with.
        num_parts: Shares of the batch; with shares off, the devices.
        has_fixed_order: Whether gradients are added in the fixed tree over shares (False: shares are off).
        batch: Samples of one step.
        microbatch: Samples computed at once.
        sequence: Tokens of one sample.
        tensor_numels: Elements of each parameter, tied ones once.
    """

    devices: int
    num_parts: int
    has_fixed_order: bool
    batch: int
    microbatch: int
    sequence: int
    tensor_numels: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        return sum(self.tensor_numels)

    @property
    def num_elements(self) -> int:
        """Length of a flat vector: the parameters, each rounded up to the alignment."""
        return sum(_aligned(numel) for numel in self.tensor_numels)

    @property
    def samples_per_part(self) -> int:
        """Samples of one share, or of one device's part."""
        return self.batch // self.num_parts

    @property
    def microbatches_per_part(self) -> int:
        """Forward and backward passes that one part takes."""
        return -(-self.samples_per_part // self.microbatch)

    @property
    def tokens_per_step(self) -> int:
        """Positions computed in one step, padding included."""
        return self.batch * self.sequence

    @property
    def leaf_elements(self) -> int:
        """Elements of one part's gradient with its tail."""
        return self.num_elements + TAIL

    @property
    def leaf_capacity(self) -> int:
        """Elements that a leaf is given so that it can be cut for any number of ranks up to ``devices``."""
        return leaf_capacity(self.leaf_elements, self.devices)

    def piece_elements(self, ranks: int) -> int:
        """Elements of a gradient that one of ``ranks`` ranks owns and sums."""
        return piece_elements(self.leaf_elements, ranks)


def piece_elements(length: int, num_pieces: int) -> int:
    """Elements of each of ``num_pieces`` equal pieces that cover ``length``, a multiple of 16."""
    return -(-length // (num_pieces * ALIGNMENT)) * ALIGNMENT


def leaf_capacity(length: int, max_pieces: int) -> int:
    """Elements that a leaf needs so that it can be cut into any number of pieces up to ``max_pieces``."""
    return max(piece_elements(length, pieces) * pieces for pieces in range(1, max_pieces + 1))


def plan_layout(job: Job, model: Network) -> ReplicatedLayout:
    """The layout of a job whose ``auto`` values are resolved, training ``model``."""
    shares, microbatch = job.fault_tolerance.shares, job.train.microbatch
    assert shares != "auto", "constants are resolved when the job file is read"
    assert microbatch != "auto", "constants are resolved when the job file is read"
    return ReplicatedLayout(
        devices=job.orchestration.devices,
        num_parts=job.orchestration.devices if shares == "off" else shares,
        has_fixed_order=shares != "off",
        batch=job.train.batch,
        microbatch=microbatch,
        sequence=job.data.sequence,
        tensor_numels=tuple(tensor.numel for tensor in model.tensors()),
    )


def network_of(job: Job) -> Network | None:
    """The network that a job trains; None for a class of the user's own, whose shapes only torch can tell.

    Raises: UnknownNameError for an unknown preset; ConfigError for a configuration of a folder that
        describes no network; NetworkError if the changes do not fit together, or the network has no room for
        the tokens or the sequence.
    """
    named = job.model
    if named.preset is not None:
        base = network(named.preset)
    elif named.folder is not None:
        # Few jobs need it, and every command waits for what stands at the top.
        from trimtab.catalog.hugging_face import network_from_config

        base = network_from_config(named.configuration, name=posixpath.basename(named.folder.rstrip("/")))
    else:
        return None
    model = changed_network(base, named.changes)
    if job.data.sequence > model.context:
        raise NetworkError(
            f"data.sequence is {job.data.sequence} tokens, {model.name} has a context of {model.context}; "
            f"set model.context: {job.data.sequence}, or a shorter sequence"
        )
    tokens = _known_tokens(job)
    if tokens > model.vocab:
        raise NetworkError(
            f"the tokenizer has {tokens} tokens, {model.name} has room for {model.vocab}; "
            f"set model.vocab: {tokens}"
        )
    return model


def trains_as_replicas(job: Job, program: Program) -> bool:
    """Whether each rank trains the whole model by its module, and ranks differ in their samples only.

    Else the run is carried out by its plan. A network with experts always is: no module computes them.
    """
    network = network_of(job)
    return is_replicated(program) and (network is None or not network.experts)


def deciding_lines(program: Program, layout: Layout) -> Mapping[str, str]:
    """For the mesh, the split of the batch and each sum: the ``file:line`` of the statement that decided it.

    Keys are ``mesh``, ``batch``, and ``grads over <axis>``; what no statement says is ``default``.
    """
    lines = {"mesh": "default", "batch": "default"}
    lines |= {f"grads over {axis}": "default" for axis in layout.batch_axes}
    for statement in program.statements:
        where = f"{statement.span.source}:{statement.span.line}"
        match statement:
            case MeshStatement():
                lines["mesh"] = where
            case SplitStatement() if is_batch_split(statement):
                lines["batch"] = where
            case ReduceStatement(using=route):
                named = {f"grads over {axis.text}" for axis in statement.axes} & lines.keys()
                lines |= {key: where for key in named if route is not None or lines[key] == "default"}
    return lines


def _aligned(numel: int) -> int:
    return -(-numel // ALIGNMENT) * ALIGNMENT


def _known_tokens(job: Job) -> int:
    """Tokens of the job's tokenizer as far as the job file tells; 0 for a tokenizer in a file."""
    tokenizer = job.data.tokenizer
    if isinstance(tokenizer, TrainedTokenizer):
        return tokenizer.bpe.vocab
    return _BYTE_TOKENS if tokenizer == "bytes" else 0
