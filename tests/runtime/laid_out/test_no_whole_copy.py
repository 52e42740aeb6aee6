"""Does a rank that holds pieces ever hold the whole model while it starts, or while it saves?"""

import gc
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.checkpoint.conftest import Kit
from tests.runtime.lowering.small_plans import LEARNED, small_plan
from trimtab.plan.physical import Plan
from trimtab.runtime.checkpoint.contents import open_contents
from trimtab.runtime.checkpoint.loader import CheckpointState, shapes_of
from trimtab.runtime.checkpoint.staging import Layout
from trimtab.runtime.decoder import initial_tensor
from trimtab.runtime.laid_out import LaidOutState
from trimtab.runtime.lowering import Rank, Rules, Wires
from trimtab.runtime.lowering.measurement.storages import StorageTracker
from trimtab.runtime.optimizers import AdamW
from trimtab.runtime.weights.reading import Weights, open_weights
from trimtab.runtime.weights.writing import write_folder

NETWORK = {**LEARNED, "layers": 12}
PLANS = {
    "stored": (4, "MESH dp 4\nSTORE params, grads, states OVER dp"),
    "split": (4, "MESH tp 4\nSPLIT heads, mlp, vocab OVER tp"),
    "stages": (4, "MESH pp 4\nSPLIT layers OVER pp"),
}


def plan_of(layout: str) -> Plan:
    devices, text = PLANS[layout]
    return small_plan(text, devices, batch=16, shares=4, **NETWORK)


def rank_of(plan: Plan, weights: Weights | None = None) -> Rank:
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=None)
    wires = Wires(1, plan.mesh.num_devices, is_connected=False)
    return Rank(plan, 1, wires, rules, seed=7, weights=weights)


def assert_no_whole_copy(plan: Plan, start: Callable[[], Rank]) -> None:
    """At most what the rank holds afterwards, and twice the largest tensor; far less than the model."""
    with StorageTracker() as tracker:
        rank = start()
        gc.collect()
        peak = tracker.peak.total_bytes
        held = {id(piece.untyped_storage()): piece for pieces in rank.held().values() for piece in pieces}
    sizes = [4 * math.prod(parameter.shape) for parameter in plan.parameters.values()]
    model, largest = sum(sizes), max(sizes)
    held_bytes = sum(piece.untyped_storage().nbytes() for piece in held.values())
    pieces_bytes = sum(piece.untyped_storage().nbytes() for piece in rank.stored.values())
    assert pieces_bytes < 0.5 * model
    assert peak - held_bytes <= 2 * largest < 0.2 * model


@pytest.mark.parametrize("layout", PLANS)
def test_a_fresh_start_draws_one_tensor_at_a_time(layout: str) -> None:
    """A model that fits in pieces only could never begin."""
    plan = plan_of(layout)
    assert_no_whole_copy(plan, lambda: rank_of(plan))


@pytest.mark.parametrize("layout", PLANS)
def test_a_start_from_a_folder_reads_pieces(layout: str, tmp_path: Path) -> None:
    """Nor could it be tuned further."""
    plan = plan_of(layout)
    write_folder(tmp_path / "model", plan.network, _Initial(plan))
    weights = open_weights(tmp_path / "model", plan.network, "gpt2")
    assert_no_whole_copy(plan, lambda: rank_of(plan, weights))


@pytest.mark.parametrize("layout", PLANS)
def test_a_resume_reads_pieces(layout: str, tmp_path: Path) -> None:
    """Nor could it go on: a checkpoint holds optimizer states, too."""
    plan = plan_of(layout)
    shapes = {name: parameter.shape for name, parameter in plan.parameters.items()}
    folder = Kit().write(tmp_path, 2, Kit().state(shapes))

    def resume() -> Rank:
        rank = rank_of(plan)
        with open_contents(folder, None) as contents:
            LaidOutState(rank, lambda group: None).load(CheckpointState(contents), is_same_layout=True)
        return rank

    assert_no_whole_copy(plan, resume)


@pytest.mark.parametrize("layout", PLANS)
def test_a_save_takes_what_the_rank_holds(layout: str) -> None:
    """The lead would need room for everything: views are handed over, and staging has room for the rank's own files."""
    plan = plan_of(layout)
    rank = rank_of(plan)
    state = LaidOutState(rank, lambda group: None)
    group: Any = SimpleNamespace(members=tuple(range(plan.mesh.num_devices)))
    with StorageTracker() as tracker:
        tracker.leave_out(piece for pieces in rank.held().values() for piece in pieces)
        saved = state.saved()
        assert tracker.peak.total_bytes == 0
    layouts = {number: Layout.of(parts, number) for number, parts in state.saved_by(group).items()}
    whole = Layout.of(state.shapes()).parts
    assert shapes_of(saved) == shapes_of(state.saved_by(group)[rank.rank])
    assert layouts.keys() == {0, 1, 2, 3}
    for part in whole:
        by_rank = [
            found.size_bytes for each in layouts.values() for found in each.parts if found.name == part.name
        ]
        assert sum(by_rank) == part.size_bytes
        assert max(by_rank) < 0.5 * part.size_bytes


class _Initial(Weights):
    """The first weights of a plan's network."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def read(self, name, box=None, *, dtype=None):  # type: ignore[no-untyped-def]
        whole = initial_tensor(self._plan.network, name, self._plan.parameters[name].shape, seed=7)
        return whole[tuple(slice(*pair) for pair in box)] if box else whole
