"""What a layout's pipeline takes by its actions, one by one, where the closed form only bounds them."""

from itertools import pairwise

import numpy as np

from trimtab.cost.closed_form import Values, layer_times, step_times
from trimtab.cost.search.space import Layout, Question, priced_cases
from trimtab.plan.pipelines import StageTimes, actions_of, ranks_of_stages, simulate

MOST_ACTIONS = 400_000
"""Of all ranks: a longer pipeline keeps its closed form, whose error falls with the number of microbatches."""


def judged_step_s(question: Question, layout: Layout, time: Values) -> float:
    """Seconds of a step, with the pipeline simulated action by action."""
    cases = priced_cases(question, layout)
    layer = layer_times(cases, time)
    times = step_times(cases, layer, time)
    total = float(np.ravel(times.total_s)[0])
    if layout.pipeline == 1:
        return total
    stages = layout.pipeline * layout.pieces
    runs = question.batch // (question.shares or layout.data) // layout.microbatch
    if 3 * stages * runs > MOST_ACTIONS:
        return total

    def one(figure: object) -> float:
        return float(np.ravel(np.asarray(figure))[0])

    held = [
        question.network.layers // stages + (stage < question.network.layers % stages)
        for stage in range(stages)
    ]
    forward, wait = one(layer.forward_s), one(layer.forward_wait_s)
    backward = (
        one(layer.backward_s) + one(layer.again_s) + one(layer.backward_wait_s) + one(layer.again_wait_s)
    )
    head, host = one(layer.head_s), one(time["microbatch_s"]) / layout.pieces / 2
    is_last = [stage == stages - 1 for stage in range(stages)]
    # Of a backward pass about half is for weights (as many products), none of its waiting.
    weight = one(layer.backward_s) / 2
    places = ranks_of_stages(layout.schedule, ranks=layout.pipeline, stages_per_rank=layout.pieces)
    timeline = simulate(
        actions_of(layout.schedule, ranks=layout.pipeline, stages_per_rank=layout.pieces, microbatches=runs),
        times=StageTimes(
            forward_s=tuple(
                count * (forward + wait) + head / 3 * last + host
                for count, last in zip(held, is_last, strict=True)
            ),
            backward_input_s=tuple(
                count * (backward - weight) + head / 3 * last + host
                for count, last in zip(held, is_last, strict=True)
            ),
            backward_weight_s=tuple(
                count * weight + head / 3 * last for count, last in zip(held, is_last, strict=True)
            ),
            hop_s=tuple(one(layer.hop_s) if a != b else 0.0 for a, b in pairwise(places)),
        ),
    )
    flushes = (question.shares or layout.data) // layout.data
    passes = sum(
        one(getattr(times, name))
        for name in ("compute_s", "recompute_s", "collectives_s", "hops_s", "bubble_s")
    ) + runs * flushes * one(time["microbatch_s"])
    late = 1 + one(times.straggling_s) / (total - one(times.straggling_s))
    return total + (timeline.makespan_s * flushes - passes) * late
