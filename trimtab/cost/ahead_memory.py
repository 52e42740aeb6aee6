"""What parameters need that are gathered for the next block while the present one computes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.gathers_ahead import block_at, block_runs, is_gathered_ahead
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action


@dataclass(frozen=True, slots=True)
class GatherBytes:
    """Bytes of a block's gathers.

    Args:
        gathered: Of what they give.
        scratch: That the one which needs most needs besides, while it is at work.
    """

    gathered: int = 0
    scratch: int = 0


class AheadMemory:
    """Goes through the passes of one rank.

    Args:
        plan: Of the rank.
        actions: All that the rank does in a step, in order.
        needs: By name of the block.

    Attributes:
        coming: What is gathered while the present block computes.
        is_idle: Whether nothing ever is.
    """

    def __init__(self, plan: Plan, actions: Sequence[Action], needs: Mapping[str, GatherBytes]) -> None:
        self.is_idle = not any(is_gathered_ahead(block) for block in plan.blocks)
        self.coming = GatherBytes()
        if self.is_idle:
            self._coming: Iterator[GatherBytes | None] = iter(())
            return
        runs = block_runs(plan, actions)
        blocks = {run.block: block_at(plan, run.block) for run in dict.fromkeys(runs)}
        each = [
            needs[blocks[run.block].name] if is_gathered_ahead(blocks[run.block]) else None for run in runs
        ]
        self._coming = iter([*each[1:], None])

    def enter(self) -> None:
        """The next block begins: what the one after it needs comes."""
        self.coming = next(self._coming, None) or GatherBytes()
