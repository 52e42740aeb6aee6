"""The degrees of parallelism, as the axes of a mesh: which flag, which axis, and in which order.

Megatron numbers ranks with the tensor axis fastest, then context, then data, then pipeline. Experts have a
numbering of their own over the same ranks: their tensor axis fastest, then experts, then the data that is left.
A mesh has one numbering, so the expert axes are cut out of tensor, context and data where those are: with a
tensor degree of 2, a context degree of 1 and 16 experts of a tensor degree of 1 each, the experts lie over an
axis of 8 and the tensor axis of 2.
"""

from dataclasses import dataclass, replace

from trimtab.spec.migration.megatron.devices import count_devices
from trimtab.spec.migration.megatron.draft import Draft
from trimtab.spec.migration.settings import MigrationError

DATA, REPLICA, EXPERTS, CONTEXT, TENSOR, TENSOR_OUTER, STAGES = (
    "dp",
    "replica",
    "ep",
    "cp",
    "tp",
    "tp_outer",
    "pp",
)
"""The names of the axes."""

MAX_DEVICES = 10_000_000
"""More devices than any cluster has: a degree beyond it is a typing error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """How many ways each kind of parallelism divides, all at least 1.

    Args:
        tensor: ``--tensor-model-parallel-size``.
        stages: ``--pipeline-model-parallel-size``.
        context: ``--context-parallel-size``, or DeepSpeed's sequence degree.
        data: What is left of the devices.
        experts: ``--expert-model-parallel-size``.
        expert_tensor: ``--expert-tensor-parallel-size``, a divisor of the tensor degree.
        replicas: ``--num-distributed-optimizer-instances``: copies of the divided optimizer.
        has_stages_inside: ``--use-tp-pp-dp-mapping``: stages vary faster than data.
    """

    tensor: int
    stages: int
    context: int
    data: int
    experts: int
    expert_tensor: int
    replicas: int
    has_stages_inside: bool

    @property
    def devices(self) -> int:
        """All devices."""
        return self.tensor * self.stages * self.context * self.data

    @property
    def tensor_outer(self) -> int:
        """The part of the tensor axis that divides the experts among devices, not each expert's matrices."""
        return self.tensor // self.expert_tensor

    @property
    def is_folded(self) -> bool:
        """Whether the experts take in the context axis and the outer tensor axis, as in Megatron's numbering."""
        return self.experts > 1 and self.experts % (self.context * self.tensor_outer) == 0

    @property
    def experts_outside(self) -> int:
        """Devices along the expert axis beyond those that it shares with context and tensor."""
        return self.experts // (self.context * self.tensor_outer) if self.is_folded else self.experts

    @property
    def tensor_axes(self) -> tuple[str, ...]:
        """The axes that matrices are divided over, outermost first."""
        if self.tensor == 1:
            return ()
        return (TENSOR_OUTER, TENSOR) if 1 < self.tensor_outer < self.tensor else (TENSOR,)

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """The axes that experts are divided over, outermost first."""
        outside = (EXPERTS,) if self.experts_outside > 1 else ()
        if not self.is_folded:
            return outside
        context = (CONTEXT,) if self.context > 1 else ()
        return (*outside, *context, *(self.tensor_axes[:1] if self.tensor_outer > 1 else ()))

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes that the batch is divided over, outermost first."""
        replicas = (REPLICA,) if self.replicas > 1 else ()
        return (*replicas, DATA, *((EXPERTS,) if self.experts_outside > 1 else ()))

    @property
    def gradient_axes(self) -> tuple[str, ...]:
        """The axes that gradients of all but the experts are summed over."""
        return (*self.batch_axes, *((CONTEXT,) if self.context > 1 else ()))

    def mesh(self) -> str:
        """The MESH statement: outermost axis first, axes of one device left out; ``dp`` takes what is left."""
        has_outer = TENSOR_OUTER in self.tensor_axes
        stages: list[tuple[str, int | None]] = [(STAGES, self.stages)]
        data = [(REPLICA, self.replicas), (DATA, None), (EXPERTS, self.experts_outside)]
        inner = [
            (CONTEXT, self.context),
            (TENSOR_OUTER, self.tensor_outer if has_outer else 1),
            (TENSOR, self.expert_tensor if has_outer else self.tensor),
        ]
        axes = [*data, *stages, *inner] if self.has_stages_inside else [*stages, *data, *inner]
        return "MESH " + ", ".join(f"{name} {size or '*'}" for name, size in axes if size != 1)


def read_degrees(draft: Draft) -> Degrees:
    """The degrees that the flags give; devices that nobody counts are as few as the degrees need.

    Raises: MigrationError if they cannot be the degrees of one training.
    """
    flags = draft.flags
    tensor = flags.positive("--tensor-model-parallel-size") or 1
    context = flags.positive("--context-parallel-size") or flags.positive("--ds-sequence-parallel-size") or 1
    experts = (
        flags.positive("--expert-model-parallel-size") or flags.positive("--moe-expert-parallel-size") or 1
    )
    degrees = Degrees(
        tensor=tensor,
        stages=flags.positive("--pipeline-model-parallel-size") or 1,
        context=context,
        data=1,
        experts=experts,
        expert_tensor=_expert_tensor(draft, tensor, context, experts),
        replicas=flags.positive("--num-distributed-optimizer-instances") or 1,
        has_stages_inside="--use-tp-pp-dp-mapping" in flags,
    )
    need = degrees.devices * degrees.replicas * degrees.experts_outside
    if need > MAX_DEVICES:
        raise MigrationError(f"the degrees of parallelism need {need} devices; one of them is mistyped")
    return replace(degrees, data=count_devices(draft, need) // degrees.devices)


def _expert_tensor(draft: Draft, tensor: int, context: int, experts: int) -> int:
    """The tensor degree of experts; the tensor degree itself unless it can differ."""
    flag = "--expert-tensor-parallel-size"
    wanted = draft.flags.positive(flag) or tensor
    if wanted == tensor:
        draft.drop(flag, "the tensor degree, as without it")
    elif experts == 1:
        draft.refuse(flag, "without an expert axis the matrices of experts are divided over tp as all others")
    elif tensor % wanted or experts % (context * (tensor // wanted)):
        draft.refuse(
            flag, f"{experts} ways of dividing experts do not lie across the tensor axis of {tensor} devices"
        )
    else:
        return wanted
    return tensor
