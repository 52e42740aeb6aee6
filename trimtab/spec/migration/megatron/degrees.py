"""The degrees of parallelism, as the axes of a mesh: which flag, which axis, and in which order.

Megatron numbers ranks with the tensor axis fastest, then context, then data, then pipeline. Experts have a
numbering of their own over the same ranks: their tensor axis fastest, then experts, then the data that is left.
A mesh has one numbering, so the expert axis is the context axis where both are equal, and else is cut out of
the data axis, next to the inner axes, which are the same devices where there is no context axis.
"""

from dataclasses import dataclass, replace

from trimtab.spec.migration.megatron.devices import count_devices
from trimtab.spec.migration.megatron.draft import Draft
from trimtab.spec.migration.settings import MigrationError

DATA, REPLICA, EXPERTS, CONTEXT, TENSOR, STAGES = "dp", "replica", "ep", "cp", "tp", "pp"
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
        experts: Ways that experts are divided; their matrices are divided over the tensor axis as well.
        replicas: ``--num-distributed-optimizer-instances``: copies of the divided optimizer.
        has_stages_inside: ``--use-tp-pp-dp-mapping``: stages vary faster than data.
    """

    tensor: int
    stages: int
    context: int
    data: int
    experts: int
    replicas: int
    has_stages_inside: bool

    @property
    def devices(self) -> int:
        """All devices."""
        return self.tensor * self.stages * self.context * self.data

    @property
    def has_experts_over_context(self) -> bool:
        """Whether experts lie over the context axis: Megatron's own numbering where both degrees are equal."""
        return 1 < self.experts == self.context

    @property
    def experts_outside(self) -> int:
        """Devices along an expert axis of its own."""
        return 1 if self.has_experts_over_context else self.experts

    @property
    def expert_axis(self) -> str | None:
        """The axis that experts are divided over; None if they are not."""
        if self.experts == 1:
            return None
        return CONTEXT if self.has_experts_over_context else EXPERTS

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
        stages: list[tuple[str, int | None]] = [(STAGES, self.stages)]
        data = [(REPLICA, self.replicas), (DATA, None), (EXPERTS, self.experts_outside)]
        inner = [(CONTEXT, self.context), (TENSOR, self.tensor)]
        axes = [*data, *stages, *inner] if self.has_stages_inside else [*stages, *data, *inner]
        return "MESH " + ", ".join(f"{name} {size or '*'}" for name, size in axes if size != 1)


def read_degrees(draft: Draft) -> Degrees:
    """The degrees that the flags give; devices that nobody counts are as few as the degrees need.

    Raises: MigrationError if they cannot be the degrees of one training.
    """
    flags = draft.flags
    tensor = flags.positive("--tensor-model-parallel-size") or 1
    degrees = Degrees(
        tensor=tensor,
        stages=flags.positive("--pipeline-model-parallel-size") or 1,
        context=flags.positive("--context-parallel-size")
        or flags.positive("--ds-sequence-parallel-size")
        or 1,
        data=1,
        experts=_experts(draft, tensor),
        replicas=flags.positive("--num-distributed-optimizer-instances") or 1,
        has_stages_inside="--use-tp-pp-dp-mapping" in flags,
    )
    need = degrees.devices * degrees.replicas * degrees.experts_outside
    if need > MAX_DEVICES:
        raise MigrationError(f"the degrees of parallelism need {need} devices; one of them is mistyped")
    return replace(degrees, data=count_devices(draft, need) // degrees.devices)


def _experts(draft: Draft, tensor: int) -> int:
    """Ways that experts are divided, their matrices over the whole tensor axis: as many bytes a device as before."""
    given = (
        draft.flags.positive("--expert-model-parallel-size")
        or draft.flags.positive("--moe-expert-parallel-size")
        or 1
    )
    flag = "--expert-tensor-parallel-size"
    own_tensor = draft.flags.positive(flag) or tensor
    if own_tensor == tensor:
        draft.drop(flag, "the tensor degree, as without it")
        return given
    draft.refuse(flag, f"the matrices of experts are divided over all {tensor} devices of the tensor axis")
    return max(1, given * own_tensor // tensor)
