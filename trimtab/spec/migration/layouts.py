"""Degrees of parallelism as other systems count them, and the axes that they become here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How many devices work together in each way; neighbouring ranks differ in the last field first.

    Args:
        pp: Stages of a pipeline.
        replica: Groups that hold the same state.
        dp: Devices of one such group, over which its state may be stored in pieces.
        ep: Of those, devices that share the experts among them.
        cp: Parts of a sequence.
        tp: Parts of a matrix.
        experts_over: The axes over which experts lie; none if every device has all of them.
    """

    pp: int = 1
    replica: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    tp: int = 1
    experts_over: tuple[str, ...] = ()

    @property
    def batch_parts(self) -> int:
        """Parts that the batch is cut into."""
        return self.replica * self.dp

    @property
    def expert_parts(self) -> int:
        """Parts that the experts are dealt out to."""
        sizes = {"ep": self.ep, "cp": self.cp, "tp": self.tp}
        return math.prod(sizes[axis] for axis in self.experts_over)

    @property
    def has_experts_beside_sequences(self) -> bool:
        """Whether tokens travel to experts over an axis of the batch while sequences are cut too.

        Pieces of sequences must then lie outside those of the batch: SPLIT sequence comes before SPLIT batch.
        """
        return self.cp > 1 and "ep" in self.experts_over

    @property
    def devices(self) -> int:
        """All devices."""
        return self.pp * self.batch_parts * self.cp * self.tp

    @property
    def mesh(self) -> str:
        """The MESH statement; the outermost axis of data takes what the others leave.

        >>> Layout(dp=4, tp=8).mesh, Layout(pp=2, replica=2, dp=8, ep=4).mesh
        ('MESH dp *, tp 8', 'MESH pp 2, replica *, dp 2, ep 4')
        """
        rest = self.batch_axes[0]
        shown = [f"{axis} {'*' if axis == rest else count}" for axis, count in self._sizes().items()]
        return f"MESH {', '.join(shown)}"

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes that the batch is split over."""
        return self._present("replica", "dp", "ep")

    @property
    def sum_axes(self) -> tuple[str, ...]:
        """The axes that gradients are summed over."""
        return self._present("replica", "dp", "ep", "cp")

    @property
    def sums(self) -> tuple[str, ...]:
        """The sum of gradients as a statement; experts that lie over some of its axes need one of their own.

        >>> Layout(dp=8, ep=4, experts_over=("ep",)).sums
        ("REDUCE grads WHERE kind <> 'expert' OVER dp, ep", "REDUCE grads WHERE kind = 'expert' OVER dp")
        """
        of_experts = [axis for axis in self.sum_axes if axis not in self.experts_over]
        if len(of_experts) == len(self.sum_axes):
            return (f"REDUCE grads {over(self.sum_axes)}",)
        others = f"REDUCE grads WHERE kind <> 'expert' {over(self.sum_axes)}"
        return (others, f"REDUCE grads WHERE kind = 'expert' {over(of_experts)}") if of_experts else (others,)

    @property
    def shard_axes(self) -> tuple[str, ...]:
        """The axes that one copy of the state is stored over: parts of a sequence hold the same parameters."""
        return self._present("dp", "ep", "cp")

    def _present(self, *axes: str) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis in self._sizes())

    def _sizes(self) -> dict[str, int]:
        """Devices along each axis of the mesh; one of size 1 is left out unless data has no other."""
        sizes = {
            "pp": self.pp,
            "replica": self.replica,
            "dp": self.dp // self.ep,
            "ep": self.ep,
            "cp": self.cp,
            "tp": self.tp,
        }
        is_only_axis_of_data = self.replica == 1
        return {
            axis: count
            for axis, count in sizes.items()
            if count > 1 or (axis == "dp" and is_only_axis_of_data)
        }


def over(axes: Sequence[str]) -> str:
    """The clause ``OVER dp, cp``."""
    return f"OVER {', '.join(axes)}"


def microbatch_warning(layout: Layout, microbatches: int) -> list[str]:
    """That a pipeline has fewer microbatches than stages, as a sentence; none if it has enough.

    Elsewhere such a pipeline runs with idle devices; here its schedule is refused.
    """
    if microbatches >= layout.pp:
        return []
    return [
        f"A share of the batch has {microbatches} of the {layout.pp} microbatches that {layout.pp} stages need here. Make "
        "train.batch larger, train.microbatch smaller, or take fewer stages."
    ]
