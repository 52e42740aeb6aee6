"""A rank that runs a step on tensors without numbers, and each block of a stage once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.plan.physical import Plan
from trimtab.plan.program import Phase
from trimtab.plan.tables import Table
from trimtab.runtime.lowering.batches import Microbatch
from trimtab.runtime.lowering.rank import Flow, Left, Rank
from trimtab.runtime.lowering.sites import Site
from trimtab.runtime.lowering.tracing.meters import Meter, Metered
from trimtab.runtime.lowering.types import DTYPES
from trimtab.runtime.lowering.updating import Rules
from trimtab.runtime.lowering.wires import Wires
from trimtab.runtime.weights.reading import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeated:
    """A pass of a block that was run once and counts many times.

    Args:
        block: By name.
        phase: FORWARD, or BACKWARD with what it computes again.
        layer: That was run; None for embedding and head.
        times: That the schedule runs the block on this rank, over its layers and microbatches.
    """

    block: str
    phase: Phase
    layer: int | None
    times: int


class TracedRank(Rank):
    """Runs a step on ``meta``; a block that was run is not run again on another layer or microbatch, but counted.

    Every action of the schedule takes place, every message between stages is sent, and the update runs in full. Layers
    of one block have one program and pieces of the same shapes, which is all that ``meta`` tensors are: what is left
    out would send and compute the same.

    Args:
        plan: To run.
        rank: Who runs it.
        wires: That send nothing.
        rules: Of the run.
        meter: Of the wires.
        is_whole: Whether nothing is left out.
    """

    def __init__(
        self, plan: Plan, rank: int, wires: Wires, rules: Rules, meter: Meter, *, is_whole: bool = False
    ) -> None:
        self._meter, self._is_whole = meter, is_whole
        self._once: dict[tuple[str, Phase], Metered] = {}
        self._layers: dict[tuple[str, Phase], Site] = {}
        self._times: Counter[tuple[str, Phase]] = Counter()
        # Layers that are not run leave nothing that could be summed early; what is sent is the same.
        super().__init__(
            plan, rank, wires, rules, seed=0, observe=meter, read=_any_number, sends_beside=False
        )

    def metered(self) -> Metered:
        """What the whole step sends and computes: what was run, and as often again as it stands for more."""
        total = self._meter.read()
        for key, once in self._once.items():
            total = total.plus(once, times=0 if self._is_whole else self._times[key] - 1)
        return total

    @property
    def repeated(self) -> tuple[Repeated, ...]:
        """What was run once, in the order in which it was."""
        return tuple(
            Repeated(block=block, phase=phase, layer=self._layers[block, phase].layer, times=times)
            for (block, phase), times in self._times.items()
        )

    def _initial(self, seed: int, weights: Weights | None) -> dict[str, Tensor]:
        return {
            name: torch.empty(
                self.layouts.extent(
                    parameter.dims, parameter.shape, parameter.stored[Table.PARAMS.value], self.rank
                ).shape,
                dtype=DTYPES[parameter.dtypes[Table.PARAMS.value]],
            )
            for name, parameter in self.plan.parameters.items()
            if self._stages.holds(self.rank, parameter.stages)
        }

    def _forward_block(self, site: Site, microbatch: int, stream: Tensor | None, flow: Flow) -> Tensor | None:
        if not self._is_due(site, Phase.FORWARD):
            return self._declared(site, site.block.result)
        before = self._meter.read()
        found = super()._forward_block(site, microbatch, stream, flow)
        self._keep(site, Phase.FORWARD, before)
        return found

    def _backward_block(
        self, site: Site, microbatch: int, gradient: Tensor | None, flow: Flow
    ) -> Tensor | None:
        # Only what was run forwards can be run backwards.
        if not self._is_due(site, Phase.BACKWARD, is_possible=(site.index, microbatch) in flow.kept):
            return self._declared(site, site.block.gradient)
        before = self._meter.read()
        found = super()._backward_block(site, microbatch, gradient, flow)
        self._keep(site, Phase.BACKWARD, before)
        return found

    def _is_due(self, site: Site, phase: Phase, *, is_possible: bool = True) -> bool:
        key = (site.block.name, phase)
        self._times[key] += 1
        return is_possible and (self._is_whole or key not in self._once)

    def _keep(self, site: Site, phase: Phase, before: Metered) -> None:
        key = (site.block.name, phase)
        if key not in self._once:
            self._once[key] = self._meter.read().plus(before, times=-1)
            self._layers[key] = site

    def _declared(self, site: Site, name: str) -> Tensor | None:
        """A value that a block would have made; None where it makes none."""
        if not name:
            return None
        value = site.block.values[name]
        return torch.empty(self.extent(value).shape, dtype=DTYPES[value.dtype])

    def _gradients(self, by_site: Sequence[Mapping[str, Left]]) -> dict[str, Left]:
        for site in self._sites:
            ran = self._layers.get((site.block.name, Phase.BACKWARD))
            if ran is not None and self._stages.holds(self.rank, [site.stage]):
                for name, tensor in self._added_up[ran.index].items():
                    self._added_up[site.index].setdefault(name, torch.empty_like(tensor))
        return super()._gradients(by_site)


def _any_number(_: Tensor) -> float:
    """What is read off a tensor without numbers: neither zero targets nor a norm of zero, so that everything runs."""
    return 1.0


def empty_microbatches(plan: Plan) -> Sequence[Microbatch]:
    """Tokens and targets of a step, without numbers."""
    tokens = plan.blocks[0].values["tokens"]
    return [
        (torch.empty(tokens.shape, dtype=torch.int64), torch.empty(tokens.shape, dtype=torch.int64))
    ] * plan.work.microbatches
