"""Does what OFFLOAD names wait in the host's memory, and change no bit on its way?

Devices are CPUs here: what would be two memories is one, and each byte that goes from one to the other is counted.
"""

import pytest
import torch

from tests.runtime.lowering.small_plans import ROTARY, small_plan
from trimtab.cost.counts import counts_of
from trimtab.cost.host_traffic import waiting_activation_bytes
from trimtab.plan.physical import Plan
from trimtab.runtime.assembly import refuse_offload
from trimtab.runtime.lowering import HostMemory, Rank, Rules, Wires
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.lowering.verification import ragged_batch
from trimtab.runtime.optimizers import AdamW
from trimtab.terms import InputError

STATES = "OFFLOAD states TO host"
ACTIVATIONS = "OFFLOAD activations WHERE kind IN ('linear', 'norm') TO host"
IN_BF16 = "KEEP params IN bf16\nCOMPUTE layers IN bf16"


def _plan(text: str) -> Plan:
    return small_plan(text, 1, batch=4, microbatch=2, **ROTARY)


def _trained(plan: Plan, steps: int = 2) -> Rank:
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda _: 1e-2, clip=0.5)
    rank = Rank(plan, 0, Wires(0, 1), rules, seed=3, host=HostMemory(torch.device("cpu")))
    for step in range(steps):
        rank.step(microbatches_of(plan.work, *ragged_batch(plan, 3, step)), step)
    return rank


def test_bits_do_not_tell_where_states_and_activations_waited() -> None:
    """A state that is updated on the device and not written back would be the one of the first step for ever."""
    plain, away = (_trained(_plan(f"{IN_BF16}\n{text}")) for text in ("", f"{STATES}\n{ACTIVATIONS}"))
    for name, tensor in plain.stored.items():
        assert torch.equal(tensor, away.stored[name]), name
    for part, tensors in plain.optimizer.states.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, away.optimizer.states[part][name]), (part, name)
    for name, tensor in plain.optimizer.masters.items():
        assert torch.equal(tensor, away.optimizer.masters[name]), name


def test_states_go_there_and_back_once_a_step() -> None:
    """As many bytes as the plan says that the host holds, both ways, and none of them stays on the device."""
    plan = _plan(f"{IN_BF16}\n{STATES}")
    rank = _trained(plan, steps=3)
    waiting = sum(table.host_bytes for table in counts_of(plan).holdings.of((0,)))
    assert waiting > 0
    assert (rank.host.to_host_bytes, rank.host.to_device_bytes) == (3 * waiting, 3 * waiting)
    assert rank.held()["states"] == []


def test_activations_go_there_and_back_once_a_microbatch() -> None:
    """More bytes than the plan counts would be time that nobody has priced."""
    plan = _plan(ACTIVATIONS)
    rank = _trained(plan)
    expected = 2 * plan.work.microbatches * waiting_activation_bytes(plan, (0,))
    assert expected > 0
    assert (rank.host.to_host_bytes, rank.host.to_device_bytes) == (expected, expected)


def test_without_offload_nothing_goes_to_the_host() -> None:
    """Copies that nobody asked for cost time."""
    host = _trained(_plan("MESH dp 1")).host
    assert (host.to_host_bytes, host.to_device_bytes) == (0, 0)


def test_some_parameters_states_stay_on_the_device() -> None:
    """Each statement speaks of the rows that it names."""
    plan = _plan("OFFLOAD states WHERE kind = 'embedding' TO host")
    rank = _trained(plan)
    held = {tensor.data_ptr() for tensor in rank.held()["states"]}
    for tensors in rank.optimizer.states.values():
        for name, tensor in tensors.items():
            assert (tensor.data_ptr() in held) is (name != "embedding.weight"), name


def test_a_rank_on_the_host_has_no_other_memory() -> None:
    """A cluster may be said to have accelerators; a rank that computes on the host would copy its states to where they are."""
    with pytest.raises(InputError, match=r"run\.trim:1  this rank's device is the host's memory"):
        refuse_offload(_plan(STATES), torch.device("cpu"))
    refuse_offload(_plan(STATES), torch.device("meta"))
    refuse_offload(_plan("MESH dp 1"), torch.device("cpu"))
