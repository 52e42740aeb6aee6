"""What one rank has sent and computed so far, and what a part of its step takes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.utils.flop_counter import FlopCounterMode

from trimtab.plan.program import COLLECTIVES, Operator, OperatorKind, Phase
from trimtab.runtime.lowering.scopes import Observer, Scope
from trimtab.runtime.lowering.wires import Count, Sent, Wires

_RINGS = frozenset({OperatorKind.RING_ATTENTION, OperatorKind.RING_ATTENTION_GRAD})
"""Operators that send and compute what their block is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metered:
    """What was sent and computed.

    Args:
        counts: Runs and bytes by collective.
        flops: Of matrix products, by phase.
        sending_flops: Of those that collectives make to send less.
    """

    counts: Mapping[Sent, Count] = field(default_factory=dict)
    flops: Mapping[Phase, int] = field(default_factory=dict)
    sending_flops: int = 0

    def plus(self, other: "Metered", times: int = 1) -> "Metered":
        """With something else, so many times."""
        nothing = Count()
        counts = {
            what: Count(
                runs=self.counts.get(what, nothing).runs + times * other.counts.get(what, nothing).runs,
                sent_bytes=self.counts.get(what, nothing).sent_bytes
                + times * other.counts.get(what, nothing).sent_bytes,
            )
            for what in {**self.counts, **other.counts}
        }
        flops = {
            phase: self.flops.get(phase, 0) + times * other.flops.get(phase, 0)
            for phase in {**self.flops, **other.flops}
        }
        return Metered(
            counts={what: count for what, count in counts.items() if count != nothing},
            flops={phase: count for phase, count in flops.items() if count},
            sending_flops=self.sending_flops + times * other.sending_flops,
        )


class Meter(Observer):
    """Reads off what a rank sends and computes.

    Args:
        wires: Of the rank.
        counter: Under which it computes.
    """

    def __init__(self, wires: Wires, counter: FlopCounterMode) -> None:
        self._wires, self._counter = wires, counter
        self._flops: Counter[Phase] = Counter()
        self._sending_flops = 0
        self._seen_flops = 0

    def made(self, scope: Scope, operator: Operator) -> None:
        """An operator has run: what was computed since the last one is its own."""
        total = self._counter.get_total_flops()
        made, self._seen_flops = total - self._seen_flops, total
        if operator.kind in COLLECTIVES and operator.kind not in _RINGS:
            self._sending_flops += made
        else:
            self._flops[scope.phase] += made

    def read(self) -> Metered:
        """All so far.

        The operators have told of everything: a product outside of them would count nowhere.
        """
        assert self._counter.get_total_flops() == self._seen_flops, "products are made by operators"
        return Metered(
            counts={
                what: Count(runs=count.runs, sent_bytes=count.sent_bytes)
                for what, count in self._wires.counts.items()
            },
            flops=dict(self._flops),
            sending_flops=self._sending_flops,
        )
