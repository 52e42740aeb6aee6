"""The seven stage schedules do what torch's classes of the same name do, action by action.

Torch's schedules are run for every rank, with stages that compute nothing and write down what they are asked for.
Reading ``pipeline_order`` would not do: in torch 2.13 that of 1F1B numbers the last rank's forward passes from 1,
while what runs numbers them from 0.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from trimtab.plan.pipelines import (
    StageSchedule,
    actions_of,
    ranks_of_stages,
    refusal_of,
    stages_per_rank_of,
    transfers,
)

CLASSES = {
    StageSchedule.GPIPE: "GPipe",
    StageSchedule.ONE_F_ONE_B: "1F1B",
    StageSchedule.INTERLEAVED_1F1B: "Interleaved1F1B",
    StageSchedule.LOOPED_BFS: "LoopedBFS",
    StageSchedule.INTERLEAVED_ZERO_BUBBLE: "InterleavedZeroBubble",
    StageSchedule.ZBV: "ZBVZeroBubble",
    StageSchedule.DUALPIPEV: "DualPipeV",
}
RANKS = (1, 2, 3, 4, 5, 8)
MICROBATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 16, 17)
STAGES_PER_RANK = (1, 2, 3)


@dataclass
class Notes:
    """What one rank was asked for: its computations in order, its messages as (kind, peer)."""

    computed: list[str] = field(default_factory=list)
    messages: Counter[tuple[str, int]] = field(default_factory=Counter)


class NotingStage:
    """A stage as a schedule sees it; it notes and computes nothing."""

    submod = None

    def __init__(self, notes, *, index, rank, ranks, num_stages):
        self.notes = notes
        self.stage_index = index
        self.num_stages = num_stages
        self.group_rank = rank
        self.group_size = ranks
        self.is_first = index == 0
        self.is_last = index == num_stages - 1
        self.stage_index_to_group_rank = {stage: stage for stage in range(num_stages)}

    def forward_one_chunk(self, microbatch, args, kwargs, save_forward_output=True):
        self.notes.computed.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch, loss=None, full_backward=True, last_backward=False):
        self.notes.computed.append(f"{self.stage_index}{'B' if full_backward else 'I'}{microbatch}")

    def backward_weight_one_chunk(self, microbatch, last_backward=False):
        self.notes.computed.append(f"{self.stage_index}W{microbatch}")

    def get_fwd_recv_ops(self, microbatch):
        return self._message("receive activation", self.stage_index - 1)

    def get_fwd_send_ops(self, microbatch):
        return self._message("send activation", self.stage_index + 1)

    def get_bwd_recv_ops(self, microbatch):
        return self._message("receive gradient", self.stage_index + 1)

    def get_bwd_send_ops(self, microbatch):
        return self._message("send gradient", self.stage_index - 1)

    def _message(self, kind, stage):
        if 0 <= stage < self.num_stages:
            self.notes.messages[kind, self.stage_index_to_group_rank[stage]] += 1
        return []

    def perform_reduce_grad(self, factor): ...

    def set_local_fwd_input(self, output, microbatch): ...

    def set_local_bwd_input(self, gradient, microbatch): ...

    def get_local_bwd_output(self, microbatch): ...


def run_in_torch(schedule, rank, *, ranks, stages_per_rank, microbatches):
    """What torch's schedule asks of one rank's stages; whatever it raises is its refusal."""
    notes = Notes()
    torch_class = get_schedule_class(CLASSES[schedule])
    placement = ranks_of_stages(schedule, ranks=ranks, stages_per_rank=stages_per_rank)
    stages = [
        NotingStage(notes, index=stage, rank=rank, ranks=ranks, num_stages=len(placement))
        for stage, holder in enumerate(placement)
        if holder == rank
    ]
    is_single = issubclass(torch_class, PipelineScheduleSingle)
    running = torch_class(
        stages[0] if is_single else stages, microbatches, loss_fn=lambda output, target: 0.0
    )
    # Stages that are initialized ask no process group for shapes.
    prefix = "_stage" if is_single else "_stages"
    setattr(running, f"{prefix}_forward_initialized", True)
    setattr(running, f"{prefix}_backward_initialized", True)
    running._step_microbatches(
        [()] * microbatches, [{} for _ in range(microbatches)], [None] * microbatches, return_outputs=False
    )
    return notes


def shapes(schedule):
    """Ranks, stages per rank and microbatches; torch's one-stage classes can only be given one."""
    fixed = stages_per_rank_of(schedule)
    return [
        {"ranks": ranks, "stages_per_rank": stages_per_rank, "microbatches": microbatches}
        for ranks in RANKS
        for stages_per_rank in ((1,) if fixed == 1 else STAGES_PER_RANK)
        for microbatches in MICROBATCHES
    ]


@pytest.mark.parametrize("schedule", StageSchedule)
def test_torch_runs_the_same_actions(schedule):
    """A plan that draws, prices or simulates another order than the runtime's would be fiction."""
    compared = 0
    for shape in shapes(schedule):
        if refusal_of(schedule, **shape) is not None:
            continue
        actions = actions_of(schedule, **shape)
        in_torch = [run_in_torch(schedule, rank, **shape) for rank in range(shape["ranks"])]
        for rank, (order, notes) in enumerate(zip(actions, in_torch, strict=True)):
            assert [str(action) for action in order] == notes.computed, (schedule, shape, rank)
        sent = {
            (kind, rank, peer): count
            for rank, notes in enumerate(in_torch)
            for (kind, peer), count in notes.messages.items()
        }
        planned = transfers(actions)
        assert sent == {
            **{("send activation", *ends): count for ends, count in planned.activations.items()},
            **{("receive activation", *ends[::-1]): count for ends, count in planned.activations.items()},
            **{("send gradient", *ends): count for ends, count in planned.gradients.items()},
            **{("receive gradient", *ends[::-1]): count for ends, count in planned.gradients.items()},
        }, (schedule, shape)
        compared += 1
    assert compared >= 20


@pytest.mark.parametrize("schedule", StageSchedule)
def test_torch_refuses_the_same_numbers(schedule):
    """What we let pass and torch refuses fails on every rank after the start; the reverse takes plans away."""
    for shape in shapes(schedule):
        is_refused = False
        try:
            run_in_torch(schedule, 0, **shape)
        except (ValueError, AssertionError):
            is_refused = True
        assert is_refused == (refusal_of(schedule, **shape) is not None), (schedule, shape)
