"""Layers on stages: each exactly once, whatever the numbers."""

from dataclasses import replace
from typing import Any

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.program import OperatorKind
from trimtab.plan.traffic import traffic_of
from trimtab.spec import StrategyError


@pytest.mark.parametrize("stages", range(1, 9))
def test_every_layer_is_built_once(stages: int, plan_of: PlanOf) -> None:
    """S-NUM-08: a remainder that is left out trains a smaller model without a word."""
    text = f"MESH pp {stages}\nSPLIT layers OVER pp USING gpipe MICROBATCHES {stages}"
    for layers in range(1, 41):
        options: dict[str, Any] = {"devices": stages, "batch": stages, "layers": layers}
        if layers < stages:
            with pytest.raises(StrategyError, match=rf"{layers} layers cannot fill {stages} stages"):
                plan_of(text, **options)
            continue
        plan = plan_of(text, **options)
        held = plan.pipeline.stage_of_layer
        sizes = [held.count(stage) for stage in range(stages)]
        assert len(held) == layers
        assert list(held) == sorted(held)
        assert max(sizes) - min(sizes) <= 1
        whole = plan.network.num_parameters()
        assert sum(_numel(parameter) for parameter in plan.parameters.values()) == whole
        assert {layer for block in plan.blocks for layer in block.layers} == set(range(layers))


def _numel(parameter: Any) -> int:
    found = 1
    for length in parameter.shape:
        found *= length
    return found


COMBINATIONS = [
    # stages, schedule, microbatches, batch, whether it can run
    (2, "1f1b", 1, 8, False),
    (2, "1f1b", 2, 8, True),
    (2, "1f1b", 3, 8, False),
    (2, "1f1b", 4, 8, True),
    (2, "1f1b", 8, 8, True),
    (2, "1f1b", 16, 8, False),
    (2, "gpipe", 1, 8, True),
    (2, "gpipe", 3, 8, False),
    (4, "1f1b", 2, 8, False),
    (4, "1f1b", 4, 8, True),
    (4, "1f1b", 8, 8, True),
    (4, "gpipe", 2, 8, True),
    (4, "gpipe", 5, 8, False),
    (2, "interleaved_1f1b(2)", 3, 9, True),
    (2, "interleaved_1f1b(2)", 4, 8, True),
    (2, "looped_bfs(2)", 4, 8, True),
    (2, "zbv", 3, 8, False),
    (2, "zbv", 4, 8, True),
    (2, "dualpipev", 4, 8, True),
    (2, "interleaved_zero_bubble(2)", 4, 8, True),
]


@pytest.mark.parametrize(("stages", "schedule", "microbatches", "batch", "can_run"), COMBINATIONS)
def test_microbatch_arithmetic(
    stages: int, schedule: str, microbatches: int, batch: int, can_run: bool, plan_of: PlanOf
) -> None:
    """S-NUM-13: refused when the plan is made, with the numbers, or a plan; never a hang on one stage."""
    text = f"MESH pp {stages}\nSPLIT layers OVER pp USING {schedule} MICROBATCHES {microbatches}"
    options: dict[str, Any] = {"devices": stages, "batch": batch, "layers": 8}
    if can_run:
        assert plan_of(text, **options).work.microbatches == microbatches
        return
    with pytest.raises(StrategyError) as caught:
        plan_of(text, **options)
    message = str(caught.value)
    assert f"batch {batch}" in message
    assert str(microbatches) in message
    assert "earest" in message


def test_stages_that_meet_on_one_node_and_others_that_do_not(plan_of: PlanOf) -> None:
    """On nodes of unequal size some neighbouring stages share a node: their bytes are not the network's."""
    plan = plan_of("MESH dp 6, pp 2\nSPLIT layers OVER pp USING gpipe MICROBATCHES 2", devices=12, batch=12)
    devices = tuple(replace(device, node=(device.rank + 1) // 4) for device in plan.bound.devices)
    sends = [
        traffic
        for traffic in traffic_of(replace(plan, bound=replace(plan.bound, devices=devices)))
        if traffic.operator.kind is OperatorKind.SEND
    ]
    for traffic in sends:
        assert sorted(index for indices, _ in traffic.sends for index in indices) == list(range(6))
        apart = {
            index
            for indices, _ in traffic.sends
            for index in indices
            if len({devices[rank].node for rank in traffic.groups[index]}) > 1
        }
        assert any(set(indices) == apart for indices, _ in traffic.sends)
