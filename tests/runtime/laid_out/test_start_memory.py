"""Does a rank that holds pieces ever hold the whole model while it starts?"""

import gc
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.checkpoint.conftest import Kit
from tests.runtime.lowering.small_plans import LEARNED, small_plan
from trimtab.plan.physical import Plan
from trimtab.runtime.checkpoint.contents import open_contents
from trimtab.runtime.checkpoint.loader import CheckpointState
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
        with open_contents(folder) as contents:
            LaidOutState(rank, lambda group: None).load(CheckpointState(contents))
        return rank

    assert_no_whole_copy(plan, resume)


class _Initial(Weights):
    """The first weights of a plan's network."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def read(self, name, box=None, *, dtype=None):  # type: ignore[no-untyped-def]
        whole = initial_tensor(self._plan.network, name, self._plan.parameters[name].shape, seed=7)
        return whole[tuple(slice(*pair) for pair in box)] if box else whole
