"""Layouts with nothing computed again, in numbers: from where a choice layer by layer begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.cost.closed_form import (
    Floats,
    StepTimes,
    Values,
    kept_microbatches,
    layer_bytes,
    layer_times,
    logit_bytes,
    peak_memory,
    step_times,
)
from trimtab.cost.search.space import Layout, Question, cases_of_layouts, columns_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """A layout with nothing computed again, in numbers.

    Args:
        parts: Of its step.
        layer_s, head_s: For one microbatch.
        again_s, again_wait_s: Of a layer, if all of it is computed again.
        kept_bytes, border_bytes: Of a layer and microbatch, with nothing and with all computed again.
        working_bytes: Besides, where anything is.
        logit_bytes: Of a microbatch.
        state_bytes, gathered_bytes, posted_bytes: What is there beside activations.
        first_kept: Microbatches whose activations the first rank keeps.
        in_flush: Microbatches between two times that the pipeline is empty.
        runs: Microbatches of a step.
        fill: Times that a mean stage counts beside them.
        late: Over the slowest rank, waiting for the slowest of many devices.
    """

    layout: Layout
    step_s: float
    parts: Mapping[str, float]
    layer_s: float
    head_s: float
    again_s: float
    again_wait_s: float
    kept_bytes: float
    border_bytes: float
    working_bytes: float
    logit_bytes: float
    state_bytes: float
    gathered_bytes: float
    posted_bytes: float
    fragmentation: float
    overhead_bytes: float
    first_kept: float
    in_flush: float
    runs: float
    fill: float
    late: float
    num_layers: int

    @property
    def resident_bytes(self) -> float:
        """What is there beside activations, in sum."""
        return self.state_bytes + self.gathered_bytes + self.posted_bytes

    @property
    def slowest_s(self) -> float:
        """Of the rank with the head, which has as many layers as the others."""
        return self.num_layers / self.layout.pipeline * self.layer_s + self.head_s


def plain_layouts(
    question: Question, layouts: Sequence[Layout], *, time: Values, memory: Values
) -> list[Plain]:
    """All of them at once."""
    if not layouts:
        return []
    single = [columns_of(replace(layout, recompute=(), recompute_quarters=0)) for layout in layouts]
    columns = {name: np.concatenate([one[name] for one in single]) for name in single[0]}
    none = cases_of_layouts(question, columns)
    layer = layer_times(none, time)
    again = layer_times(replace(none, recompute=np.ones(len(layouts))), time)
    times, held, size = step_times(none, layer, time), peak_memory(none, memory), layer_bytes(none, memory)

    def listed(figures: Floats) -> list[float]:
        found: list[float] = np.broadcast_to(figures, (len(layouts),)).tolist()
        return found

    parts = {name: listed(getattr(times, name)) for name in StepTimes.__dataclass_fields__}
    figures = {
        "step_s": listed(times.total_s),
        "layer_s": listed(layer.layer_s),
        "head_s": listed(layer.head_s),
        "again_s": listed(again.again_s),
        "again_wait_s": listed(again.again_wait_s),
        "kept_bytes": listed(size.kept_bytes),
        "border_bytes": listed(size.border_bytes),
        "working_bytes": listed(size.working_bytes),
        "logit_bytes": listed(logit_bytes(none, memory)),
        "state_bytes": listed(held.state_bytes),
        "gathered_bytes": listed(held.gathered_bytes),
        "posted_bytes": listed(held.posted_bytes),
        "fragmentation": listed(held.fragmentation),
        "overhead_bytes": listed(held.overhead_bytes),
        "first_kept": listed(kept_microbatches(none)),
        "in_flush": listed(none.microbatches / none.flushes),
        "runs": listed(none.microbatches),
        "fill": listed(none.flushes * none.fill * (none.pipeline - 1) / none.virtual),
        "late": listed(1 + time["straggling"] * np.log(none.devices)),
    }
    return [
        Plain(
            layout=layout,
            num_layers=question.network.layers,
            parts={name: seconds[index] for name, seconds in parts.items()},
            **{name: values[index] for name, values in figures.items()},
        )
        for index, layout in enumerate(layouts)
    ]
