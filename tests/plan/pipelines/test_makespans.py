"""A pipeline worked out once gives the times of one that is simulated each time."""

import random

import pytest

from trimtab.plan.pipelines import (
    DeadlockError,
    StageSchedule,
    StageTimes,
    actions_of,
    ranks_of_stages,
    simulate,
    stages_per_rank_of,
    wired,
    wired_pipeline,
)


@pytest.mark.parametrize("schedule", StageSchedule)
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_the_end_is_that_of_the_simulation_whatever_the_times(schedule: StageSchedule, ranks: int) -> None:
    """The planner would order layouts by times that the schedule does not have."""
    pieces = stages_per_rank_of(schedule) or 2
    microbatches = 2 * ranks
    actions = actions_of(schedule, ranks=ranks, stages_per_rank=pieces, microbatches=microbatches)
    pipeline = wired_pipeline(schedule, ranks=ranks, stages_per_rank=pieces, microbatches=microbatches)
    assert ranks_of_stages(schedule, ranks=ranks, stages_per_rank=pieces)
    rng = random.Random(ranks)
    stages = ranks * pieces

    def some(count: int) -> tuple[float, ...]:
        return tuple(rng.choice((0.0, rng.expovariate(1.0))) for _ in range(count))

    for _ in range(5):
        times = StageTimes(
            forward_s=some(stages),
            backward_input_s=some(stages),
            backward_weight_s=some(stages),
            hop_s=some(stages - 1),
        )
        assert pipeline.makespan_s(times) == simulate(actions, times=times).makespan_s


def test_what_waits_for_ever_is_refused() -> None:
    first, second = actions_of(StageSchedule.ONE_F_ONE_B, ranks=2, stages_per_rank=1, microbatches=2)
    with pytest.raises(DeadlockError):
        wired((tuple(reversed(first)), second), num_stages=2)
