"""What is stored in pieces, how gradients travel, what is kept in which type and goes to the host."""

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.spec.migration import Fate

DP = "MESH dp *\nSPLIT batch OVER dp\n"


def beyond_the_mesh(migration):
    """The formulas that follow the mesh and the batch."""
    loaded(migration)
    return migration.formulas.removeprefix(DP).splitlines()


@pytest.mark.parametrize(
    ("flags", "formulas"),
    [
        ("", []),
        ("--use-distributed-optimizer", ["STORE states OVER dp"]),
        ("--use-megatron-fsdp", ["STORE params, grads, states OVER dp"]),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
            ["STORE grads, states OVER dp"],
        ),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", ["STORE states OVER dp"]),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", []),
        ("--data-parallel-sharding-strategy optim", []),
        ("--use-torch-fsdp2", ["STORE params, grads, states OVER dp"]),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", ["STORE grads, states OVER dp"]),
        ("--deepspeed --zero-stage 1", ["STORE states OVER dp"]),
        ("--deepspeed --zero-stage 2", ["STORE grads, states OVER dp"]),
        ("--deepspeed --zero-stage 3", ["STORE params, grads, states OVER dp"]),
        ("--deepspeed --zero-stage 0", []),
        ("--deepspeed --zero-stage 0 --bf16", ["STORE states OVER dp"]),
        ("--grad-reduce-in-bf16", ["REDUCE grads OVER dp IN bf16"]),
        ("--ddp-bucket-size 10000000", ["REDUCE grads OVER dp BUCKET 40MB"]),
        ("--ddp-bucket-size 262144 --grad-reduce-in-bf16", ["REDUCE grads OVER dp BUCKET 1MiB IN bf16"]),
        ("--accumulate-allreduce-grads-in-fp32", []),
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", ["KEEP states IN bf16"]),
        ("--exp-avg-dtype bf16", []),
        ("--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8", []),
        ("--main-grads-dtype bf16", ["KEEP grads IN bf16"]),
        ("--optimizer-cpu-offload", ["OFFLOAD states TO host"]),
        ("--cpu-offloading --cpu-offloading-num-layers 3", ["OFFLOAD activations WHERE layer < 3 TO host"]),
        ("--cpu-offloading --cpu-offloading-num-layers 0", []),
        ("--no-cpu-offloading --cpu-offloading-num-layers 3", []),
        (
            "--fine-grained-activation-offloading --offload-modules core_attn attn_norm",
            ["OFFLOAD activations WHERE kind IN ('attention', 'norm') TO host"],
        ),
        ("--offload-modules core_attn", []),
    ],
)
def test_formulas(migrate, flags, formulas):
    """A table that is divided there and whole here does not fit the memory any more, or fits and says so nowhere."""
    assert beyond_the_mesh(migrate(flags)) == formulas


def test_gradients_of_experts_are_summed_over_fewer_ranks(migrate):
    """Each device of the expert axis holds other experts: their gradients must not be added up over it."""
    migration = migrate("--num-experts 8 --expert-model-parallel-size 4 --grad-reduce-in-bf16", devices=8)
    assert migration.formulas.splitlines()[-2:] == [
        "REDUCE grads WHERE kind <> 'expert' OVER dp, ep IN bf16",
        "REDUCE grads WHERE kind = 'expert' OVER dp IN bf16",
    ]


def test_state_is_divided_over_the_context_axis_too(migrate):
    """Megatron divides the optimizer over data and context ranks together: half of it on each otherwise."""
    migration = migrate("--use-distributed-optimizer --context-parallel-size 2", devices=8)
    assert "STORE states OVER dp, cp" in migration.formulas


def test_copies_that_divide_their_states_too(migrate):
    """Parameters inside a copy, states over all copies."""
    flags = "--use-megatron-fsdp --num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim"
    formulas = migrate(flags, devices=8).formulas
    assert "STORE params, grads, states OVER dp\nSTORE states OVER replica, dp\n" in formulas


def test_moments_of_two_types_are_told(migrate):
    """One formula names one type; a job that kept both in fp32 would need memory that nobody asked for."""
    found = fates(migrate("--exp-avg-dtype bf16 --exp-avg-sq-dtype fp32"))
    assert found["--exp-avg-dtype"].fate is Fate.IMPOSSIBLE
    assert found["--exp-avg-sq-dtype"].fate is Fate.IRRELEVANT


def test_a_fraction_of_the_states_is_told(migrate):
    """All of it goes to the host then, which is slower than what was asked for."""
    found = fates(migrate("--optimizer-cpu-offload --optimizer-offload-fraction 0.5"))
    assert found["--optimizer-offload-fraction"].fate is Fate.IMPOSSIBLE
    assert found["--optimizer-cpu-offload"].fate is Fate.CARRIED
