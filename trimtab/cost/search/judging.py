"""What a layout's pipeline takes by its actions, one by one, where the closed form only bounds them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from trimtab.cost.closed_form import LayerTimes, StepTimes, Values, layer_times, step_times
from trimtab.cost.search.space import Layout, Question, columns_of, priced_cases
from trimtab.cost.search.uneven import as_if_all, pool_of_rank, stage_layers, uneven_times
from trimtab.plan.pipelines import StageTimes, ranks_of_stages, wired_pipeline

MOST_ACTIONS = 400_000
"""Of all ranks: a longer pipeline keeps its closed form, whose error falls with the number of microbatches."""


def judged_step_s(
    question: Question, layout: Layout, time: Values, stage_again_s: Sequence[float] = ()
) -> float:
    """Seconds of a step, with the pipeline simulated action by action.

    Args:
        question: That the layout answers.
        layout: Any of the space, or one whose layers have ways of their own.
        time: Constants of the closed forms of time.
        stage_again_s: By stage, what these ways take for one microbatch.
    """
    if layout.recompute:
        layout = replace(layout, recompute=(), recompute_quarters=0)
    times = _times(question, layout, time)
    total = float(np.ravel(times.total_s)[0])
    late = 1 + float(np.ravel(times.straggling_s / (times.total_s - times.straggling_s))[0])
    if layout.pipeline == 1:
        return (
            total
            + sum(stage_again_s) * float(np.ravel(priced_cases(question, layout).microbatches)[0]) * late
        )
    stages = layout.pipeline * layout.pieces
    runs = question.batch // (question.shares or layout.data) // layout.microbatch
    if 3 * stages * runs > MOST_ACTIONS:
        return total

    def one(figure: object) -> float:
        return float(np.ravel(np.asarray(figure))[0])

    places = ranks_of_stages(layout.schedule, ranks=layout.pipeline, stages_per_rank=layout.pieces)
    held, layer = _stages(question, layout, places, time)
    forward = [one(each.forward_s + each.forward_wait_s) for each in layer]
    backward = [
        one(each.backward_s + each.again_s + each.backward_wait_s + each.again_wait_s) for each in layer
    ]
    head = one(layer[-1].head_s)
    host = one(time["microbatch_s"]) / layout.pieces / 2
    is_last = [stage == stages - 1 for stage in range(stages)]
    # Of a backward pass about half is for weights (as many products), none of its waiting.
    weight = [one(each.backward_s) / 2 for each in layer]
    hop = max(one(each.hop_s) for each in layer)
    pipeline = wired_pipeline(
        layout.schedule, ranks=layout.pipeline, stages_per_rank=layout.pieces, microbatches=runs
    )
    makespan_s = pipeline.makespan_s(
        StageTimes(
            forward_s=tuple(
                count * each + head / 3 * last + host
                for count, each, last in zip(held, forward, is_last, strict=True)
            ),
            backward_input_s=tuple(
                count * (each - own) + again + head / 3 * last + host
                for count, each, own, again, last in zip(
                    held, backward, weight, stage_again_s or (0.0,) * stages, is_last, strict=True
                )
            ),
            backward_weight_s=tuple(
                count * own + head / 3 * last for count, own, last in zip(held, weight, is_last, strict=True)
            ),
            hop_s=tuple(hop if a != b else 0.0 for a, b in pairwise(places)),
        )
    )
    flushes = (question.shares or layout.data) // layout.data
    passes = sum(
        one(getattr(times, name))
        for name in ("compute_s", "recompute_s", "collectives_s", "hops_s", "bubble_s")
    ) + runs * flushes * one(time["microbatch_s"])
    return total + (makespan_s * flushes - passes) * late


def _times(question: Question, layout: Layout, time: Values) -> StepTimes:
    if layout.first_layers:
        return uneven_times(question, columns_of(layout), time)
    cases = priced_cases(question, layout)
    return step_times(cases, layer_times(cases, time), time)


def _stages(
    question: Question, layout: Layout, places: Sequence[int], time: Values
) -> tuple[Sequence[int], Sequence[LayerTimes]]:
    """Layers of each stage, and what one takes there."""
    layers, stages = question.network.layers, len(places)
    if layout.first_layers:
        by_pool = [
            layer_times(priced_cases(as_if_all(question, pool), layout), time) for pool in question.pools
        ]
        return stage_layers(question, layout), [
            by_pool[pool_of_rank(question, layout, place)] for place in places
        ]
    each = layer_times(priced_cases(question, layout), time)
    return [layers // stages + (stage < layers % stages) for stage in range(stages)], [each] * stages
