"""Which sums start while the backward pass goes on, and in an order in which no rank waits for ever?"""

import contextlib
from collections.abc import Callable, Sequence

import pytest

from tests.plan.random_plans import random_job
from trimtab.plan.early_sums import EarlySum, early_sums
from trimtab.plan.meshes import coordinates, groups
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action, ActionKind, actions_of
from trimtab.plan.program import Operator
from trimtab.spec import StrategyError

PlanOf = Callable[..., Plan]

NUM_PLANS = 80
"""Random plans whose sums are run in thought."""


def actions_at(plan: Plan, place: int) -> Sequence[Action]:
    """What a rank does in a share, by its place in the pipeline."""
    pipeline, work = plan.pipeline, plan.work
    if pipeline.axis is None:
        kinds = (ActionKind.FORWARD, ActionKind.BACKWARD)
        each = range(work.microbatches_per_part)
        return [Action(kind=kind, stage=0, microbatch=number) for number in each for kind in kinds]
    return actions_of(
        pipeline.schedule,
        ranks=plan.mesh.size(pipeline.axis),
        stages_per_rank=pipeline.stages_per_rank,
        microbatches=work.microbatches_per_part,
    )[place]


def early_at(plan: Plan, place: int = 0) -> tuple[EarlySum, ...]:
    return early_sums(plan, actions_at(plan, place))


def test_one_sum_of_all_gradients_starts_with_none_of_them(plan_of: PlanOf) -> None:
    """It waits for the embedding's, which is the last: nothing is left to hide it behind."""
    assert early_at(plan_of("MESH dp *")) == ()


def test_buckets_start_from_the_last_layer_to_the_first(plan_of: PlanOf) -> None:
    """Gradients are complete in that order; the bucket with the embedding stays in the update."""
    plan = plan_of("MESH dp *\nREDUCE grads OVER dp BUCKET 1MB", tied=False)
    found = early_at(plan)
    assert [early.after for early in found] == sorted((early.after for early in found), reverse=True)
    assert len(found) > 3
    embedded = [early for early in found if "acc:embedding.weight" in early.operator.inputs]
    assert embedded == []
    for early in found:
        blocks = [_block(plan, name) for name in early.operator.inputs]
        assert early.after == min(blocks)


def test_a_tied_matrix_waits_for_its_first_use(plan_of: PlanOf) -> None:
    """Its gradient in the head is made first, and is half of it."""
    plan = plan_of("MESH dp *\nREDUCE grads OVER dp BUCKET 1MB", tied=True)
    named = {name for early in early_at(plan) for name in early.operator.inputs}
    assert not any("embedding.weight" in name for name in named)
    assert named


def test_what_takes_a_sum_starts_after_it(plan_of: PlanOf) -> None:
    """Pieces of a sum over one axis are summed over the other on a thread that waits for the first."""
    text = (
        "MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\nSTORE states OVER dp\n"
        "REDUCE grads OVER replica, dp BUCKET 1MB"
    )
    found = [early.operator for early in early_at(plan_of(text, tied=False))]
    made: set[str] = set()
    for operator in found:
        assert all((name.startswith("acc:") and "@" not in name) or name in made for name in operator.inputs)
        made |= {*operator.outputs}
    assert {operator.transfer.axes for operator in found if operator.transfer} == {("dp",), ("replica",)}


def test_stages_sum_what_is_complete_on_them(plan_of: PlanOf) -> None:
    """A stage of a pipeline has its own layers, and its own end of the backward pass."""
    text = "MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 4\nREDUCE grads OVER dp BUCKET 500KB"
    plan = plan_of(text, layers=8, tied=False)
    for place in (0, 1):
        held = {1 + layer for layer, stage in enumerate(plan.pipeline.stage_of_layer) if stage == place}
        found = [early.after for early in early_at(plan, place)]
        assert found
        assert set(found) <= held | {9}
        assert (0 if place == 0 else min(held)) not in found


def _block(plan: Plan, name: str) -> int:
    parameter = plan.parameters[name.removeprefix("acc:")]
    if parameter.layer is not None:
        return 1 + parameter.layer
    return 0 if parameter.block == "embedding" else 1 + len(plan.pipeline.stage_of_layer)


@pytest.mark.parametrize("is_backwards", [False, True])
def test_no_rank_waits_for_ever(is_backwards: bool) -> None:
    """Two ranks that run two sums of one group in different orders wait for each other until somebody kills them.

    The second run shows that the first can tell: one rank starts its sums in another order.
    """
    stuck, run, seed = 0, 0, 0
    while run < NUM_PLANS:
        job = random_job(seed)
        seed += 1
        with contextlib.suppress(StrategyError):
            plan = job.compile()
            run += 1
            is_stuck = not _ends(plan, backwards=0 if is_backwards else None)
            assert is_backwards or not is_stuck, job
            stuck += is_stuck
    assert bool(stuck) == is_backwards


def _ends(plan: Plan, *, backwards: int | None) -> bool:
    """Whether the threads of all ranks come to an end.

    Args:
        plan: Whose early sums are run, a thread for each group of ranks.
        backwards: A rank that starts them in the opposite order.
    """
    axis = plan.pipeline.axis
    places = [coordinates(plan.mesh, rank)[axis] if axis else 0 for rank in range(plan.mesh.num_devices)]
    by_place = {place: early_at(plan, place) for place in set(places)}
    lanes: dict[tuple[int, tuple[int, ...]], list[Operator]] = {}
    for rank, place in enumerate(places):
        started = by_place[place]
        for early in reversed(started) if rank == backwards else started:
            lanes.setdefault((rank, _group(plan, early.operator, rank)), []).append(early.operator)
    made: set[tuple[int, str]] = set()
    summed = {name for early in by_place.values() for one in early for name in one.operator.outputs}
    while any(lanes.values()):
        ended = False
        for (rank, group), waiting in lanes.items():
            if not waiting or rank != group[0]:
                continue
            operator = waiting[0]
            all_there = all(lanes.get((member, group), [])[:1] == [operator] for member in group)
            taken = [(member, name) for member in group for name in operator.inputs if name in summed]
            if all_there and made.issuperset(taken):
                for member in group:
                    lanes[member, group].pop(0)
                made |= {(member, name) for member in group for name in operator.outputs}
                ended = True
        if not ended:
            return False
    return True


def _group(plan: Plan, operator: Operator, rank: int) -> tuple[int, ...]:
    """The ranks with which a rank runs a sum."""
    assert operator.transfer is not None
    return next(group for group in groups(plan.mesh, operator.transfer.axes) if rank in group)
