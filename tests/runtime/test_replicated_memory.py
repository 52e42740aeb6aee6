"""Is the peak of a rank that trains the module what ``explain`` and ``plan`` say?"""

import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.plan.conftest import PlanOf, plan_of
from tests.runtime.test_step import Unwatched
from trimtab.catalog import network
from trimtab.cost.counts import counts_of
from trimtab.cost.replicated import rank_memory
from trimtab.cost.run_memory import RunMemory
from trimtab.plan.layout import ReplicatedLayout
from trimtab.runtime.faults import Faults
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.lowering.measurement.storages import StorageTracker
from trimtab.runtime.models import build_model
from trimtab.runtime.optimizers import AdamW, build_optimizer
from trimtab.runtime.process_groups import Group, Interrupt
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.step import Requests, StepRules, StepRunner
from trimtab.terms import ComputeType

__all__ = ["plan_of"]

PEAK = 0.10
"""Part of a predicted peak that a measured one may differ by; ``explain`` names it."""

BATCH, SEQUENCE = 4, 64
SMALL = {"layers": 2, "embed": 128, "heads": 4, "kv_heads": 4, "head_size": 32, "mlp": 256, "dropout": 0.0}


def measured_bytes(folder: Path, model: str, *, microbatch: int, shares: int, compute: str) -> int:
    """The most that lives at once in the second step of one rank that owns everything."""
    chosen, keyed, tracker = network(model, **SMALL), KeyedRandom(), StorageTracker()
    tokens = torch.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % chosen.vocab
    tracker.leave_out([tokens])

    def load(step: int, first: int, count: int) -> list[tuple[Tensor, Tensor]]:
        return [(part, part) for part in torch.split(tokens[first : first + count], microbatch)]

    with tracker:
        built = build_model(
            chosen,
            arguments={},
            seed=3,
            keyed=keyed,
            compute=ComputeType(compute),
            is_cut_into_shares=shares > 0,
        )
        state = FlatState(built.logical_parameters())
        decayed, others = state.groups(state.parameters)
        runner = StepRunner(
            rules=StepRules(num_shares=shares, batch=BATCH, seed=0, clip=1.0, max_devices=1),
            model=built,
            state=state,
            optimizer=build_optimizer(AdamW(lr=1e-3), decayed=[decayed], undecayed=[others]),
            keyed=keyed,
            load=load,
            learning_rate=lambda step: 1e-3,
            recorder=Recorder(folder, rank=0, incarnation=0),
            faults=Faults((), rank=0, folder=folder, announce=lambda fields: None),
            watch=Unwatched(),
        )
        group = Group(members=(0,), rank=0, epoch=1, store=None, kind="cpu", interrupt=Interrupt())
        runner.enter(group, step=0, owners=(0,) * shares)
        runner.run(0, Requests())
        gc.collect()
        tracker.begin()
        runner.run(1, Requests())
    return tracker.peak.total_bytes


@pytest.mark.parametrize(
    ("model", "microbatch", "shares", "compute"),
    [
        ("gpt-3m", 4, 0, "fp32"),
        ("gpt-3m", 4, 0, "bf16"),
        ("llama-3m", 4, 0, "bf16"),
        ("llama-3m", 2, 2, "fp32"),
    ],
)
def test_the_peak_is_what_is_told(
    model: str, microbatch: int, shares: int, compute: str, tmp_path: Path, plan_of: PlanOf
) -> None:
    """A run that was said to fit would be killed in its second step: sums of own shares stay from the first one on."""
    plan = plan_of(
        "",
        model=model,
        devices=1,
        batch=BATCH,
        microbatch=microbatch,
        shares=shares or None,
        compute=compute,
        sequence=SEQUENCE,
        **SMALL,
    )
    layout = ReplicatedLayout(
        devices=1,
        num_parts=shares or 1,
        has_fixed_order=shares > 0,
        batch=BATCH,
        microbatch=microbatch,
        sequence=SEQUENCE,
        tensor_numels=tuple(tensor.numel for tensor in plan.network.tensors()),
    )
    allocated = rank_memory(
        layout, ranks=1, own_parts=shares or 1, own_blocks=1, all_blocks=1, states=2, is_saving=False
    )
    told = RunMemory(plan, counts_of(plan), num_leaves=1, allocated=allocated).largest().peak_bytes
    measured = measured_bytes(tmp_path, model, microbatch=microbatch, shares=shares, compute=compute)
    assert measured == pytest.approx(told, rel=PEAK)
