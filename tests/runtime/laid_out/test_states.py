"""Does the state of one layout come into any other without a difference?"""

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.lowering.small_plans import LEARNED, Named, small_plan
from trimtab.plan.physical import Plan
from trimtab.runtime.checkpoint.loader import shapes_of
from trimtab.runtime.checkpoint.pieces import split_box, whole_box
from trimtab.runtime.laid_out import LaidOutState
from trimtab.runtime.lowering import Crew, Rank, Rules, Wires
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.lowering.verification import ragged_batch
from trimtab.runtime.optimizers import AdamW

pytestmark = pytest.mark.process

STORED = "STORE params, grads, states OVER dp"
LAYOUTS = {
    "one": (1, "MESH dp 1"),
    "states stored": (2, "MESH dp 2\nSTORE states OVER dp"),
    "everything stored": (4, f"MESH dp 4\n{STORED}"),
    "tensors and stages": (4, "MESH pp 2, tp 2\nSPLIT layers OVER pp\nSPLIT heads, mlp, vocab OVER tp"),
    "tensors and storage": (4, f"MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\n{STORED}"),
    "kept in bf16": (2, "MESH dp 2\nSTORE params, grads, states OVER dp\nKEEP params IN bf16"),
}

Parts = dict[str, dict[str, Tensor]]


class Saved:
    """A state in memory, as a checkpoint would give it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def part(self, name: str) -> Named:
        return Named(self._parts[name])


def plan_of(layout: str) -> Plan:
    devices, text = LAYOUTS[layout]
    return small_plan(text, devices, shares=4, **LEARNED)


def apart() -> Plan:
    """Two sites that meet every second step, with a momentum of their own."""
    text = "MESH site 2\nAVERAGE params OVER site EVERY 2 STEPS USING nesterov(0.9)"
    return small_plan(text, 2, **LEARNED)


def go_on(wires: Wires, order: tuple[Plan, int, Parts | None]) -> Parts:
    """Load a state, if there is one, take some steps, and give what the rank saves then."""
    plan, steps, parts = order
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=None)
    rank = Rank(plan, wires.rank, wires, rules, seed=7, adds_by_share=plan.work.has_fixed_order)
    state = LaidOutState(rank, lambda group: None)
    if parts is not None:
        state.load(Saved(parts))
    for step in range(steps):
        rank.step(microbatches_of(plan.work, *ragged_batch(plan, 3, step)), step)
    group: Any = SimpleNamespace(members=tuple(range(wires.size)))
    expected = state.saved_by(group).get(wires.rank, {})
    found = {
        part: {name: tensor.clone() for name, tensor in by.items()} for part, by in state.saved().items()
    }
    assert shapes_of(found) == shapes_of(expected)
    return found


def together(plan: Plan, ranks: Sequence[Parts]) -> Parts:
    """The logical tensors that ranks save; each element is written by one of them."""
    whole: Parts = {}
    for parts in ranks:
        for part, tensors in parts.items():
            for stored, tensor in tensors.items():
                name, box = split_box(stored)
                shape = plan.parameters[name].shape
                into = whole.setdefault(part, {}).setdefault(name, torch.full(shape, math.nan))
                place = into[tuple(slice(*ends) for ends in box or whole_box(shape))]
                assert bool(place.isnan().all()), stored
                place.copy_(tensor)
    assert not any(bool(tensor.isnan().any()) for by_name in whole.values() for tensor in by_name.values())
    return whole


@pytest.fixture(scope="module")
def states(crew_of: Callable[[int], Crew]) -> dict[str, Parts]:
    """By layout, the state after two steps."""
    return {
        layout: together(plan_of(layout), crew_of(devices).run(go_on, (plan_of(layout), 2, None)))
        for layout, (devices, _) in LAYOUTS.items()
    }


@pytest.mark.parametrize(("source", "target"), list(permutations(LAYOUTS, 2)))
def test_a_state_comes_into_another_layout_bit_by_bit(
    source: str, target: str, states: dict[str, Parts], crew_of: Callable[[int], Crew]
) -> None:
    """Weights and both states of AdamW, read as the other layout needs them and collected again."""
    saved = states[source]
    plan = plan_of(target)
    found = together(plan, crew_of(LAYOUTS[target][0]).run(go_on, (plan, 0, saved)))
    assert found.keys() == saved.keys() == {"parameters", "exp_avg", "exp_avg_sq"}
    for part, tensors in saved.items():
        assert tensors.keys() == found[part].keys()
        assert all(torch.equal(tensor, found[part][name]) for name, tensor in tensors.items()), part
    assert all(bool(tensor.any()) for tensor in saved["exp_avg_sq"].values())


def test_replicas_that_train_apart_keep_a_state_each(crew_of: Callable[[int], Crew]) -> None:
    """Saved between two meetings: each site has weights of its own, and the last meeting is remembered."""
    plan, crew = apart(), crew_of(2)
    saved = together(plan, crew.run(go_on, (plan, 3, None)))
    assert saved.keys() == {
        "parameters", "parameters@site1", "exp_avg", "exp_avg@site1", "exp_avg_sq", "exp_avg_sq@site1",
        "outer_anchor_site", "outer_momentum_site",
    }  # fmt: skip
    name = "layers.0.mlp.up.weight"
    assert not torch.equal(saved["parameters"][name], saved["parameters@site1"][name])
    assert bool(saved["outer_momentum_site"][name].any())
    found = together(plan, crew.run(go_on, (plan, 0, saved)))
    assert all(
        torch.equal(tensor, found[part][name])
        for part, tensors in saved.items()
        for name, tensor in tensors.items()
    )
