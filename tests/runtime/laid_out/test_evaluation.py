"""Is the held-out loss of a plan that of all held-out batches?"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from tests.runtime.lowering.small_plans import LEARNED, small_plan
from trimtab.plan.physical import Plan
from trimtab.runtime.laid_out.evaluation import LaidOutEvaluator
from trimtab.runtime.lowering import Crew, Rank, Rules, Wires, own_columns
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.lowering.verification import ragged_batch
from trimtab.runtime.optimizers import AdamW

pytestmark = pytest.mark.process

LAYOUTS = {
    "one": (1, "MESH dp 1"),
    "replicas": (2, "MESH dp 2"),
    "sites": (2, "MESH site 2\nAVERAGE params OVER site EVERY 2 STEPS"),
    "sites of two": (
        4,
        "MESH site 2, dp 2\nSPLIT batch OVER site, dp\nAVERAGE params OVER site EVERY 2 STEPS",
    ),
    "stages in sites": (4, "MESH site 2, pp 2\nSPLIT layers OVER pp\nAVERAGE params OVER site EVERY 2 STEPS"),
    "sequences": (2, "MESH cp 2\nSPLIT sequence OVER cp USING ring"),
}


def score(wires: Wires, plan: Plan) -> tuple[float | None, int]:
    """Of the first weights, on three batches: no multiple of the replicas."""
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=None)
    rank = Rank(plan, wires.rank, wires, rules, seed=7, feed=own_columns)
    batches = microbatches_of(small_plan("MESH dp 1", 1, **LEARNED).work, *ragged_batch(plan, 3, 0))[:3]
    watch: Any = SimpleNamespace(enter=_nothing, move=_nothing, raise_if_fenced=_nothing)
    group: Any = SimpleNamespace(all_reduce=_all_reduce)
    return LaidOutEvaluator(rank=rank, batches=batches, watch=watch).score(group, 0)


def _nothing(*_: object) -> None:
    pass


def _all_reduce(tensor: Tensor) -> None:
    if dist.is_initialized():
        dist.all_reduce(tensor)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "one"])
def test_every_held_out_batch_counts(name: str, crew_of: Callable[[int], Crew]) -> None:
    """Sites that train apart each score a part; with only the first one's the loss would be half of what it is."""
    (expected, num_targets), *_ = crew_of(1).run(score, small_plan(LAYOUTS["one"][1], 1, **LEARNED))
    devices, text = LAYOUTS[name]
    for found, counted in crew_of(devices).run(score, small_plan(text, devices, **LEARNED)):
        assert counted == num_targets
        assert found == pytest.approx(expected, rel=1e-5)
