"""What one rank holds under each preset, against arithmetic done by hand.

The network is Llama-2 7B: 32 layers of width 4096 with 4 attention matrices of 4096 x 4096 and 3 MLP matrices of
11008 x 4096, 2 norms of 4096 each; an embedding and a head of 32000 x 4096; a final norm. Everything is fp32, the
optimizer keeps 2 elements for each.
"""

from math import ceil

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.physical import Plan
from trimtab.plan.tables import Table

ATTENTION, MLP, NORM, VOCAB = 4096 * 4096, 11008 * 4096, 4096, 32000 * 4096
LAYER = [ATTENTION] * 4 + [MLP] * 3 + [NORM] * 2
ALL = LAYER * 32 + [VOCAB, VOCAB, NORM]
WHOLE = 6_738_415_616
"""Parameters of Llama-2 7B as published by its weights."""


def pieces(tensors: list[int], count: int) -> int:
    """Elements of one rank when each tensor is cut into pieces that begin at multiples of 16."""
    return sum(ceil(numel / (count * 16)) * 16 for numel in tensors) if count > 1 else sum(tensors)


def held(plan: Plan, stage: int = 0) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and states of a rank of a stage."""
    mine = [parameter for parameter in plan.parameters.values() if stage in parameter.stages]
    params, grads, states = (
        sum(parameter.held_bytes(table, plan.axis_sizes) for parameter in mine)
        for table in (Table.PARAMS, Table.GRADS, Table.STATES)
    )
    return params, grads, states


def test_the_network_is_the_published_one() -> None:
    """Arithmetic about another network would prove nothing."""
    assert sum(ALL) == WHOLE


@pytest.mark.parametrize("devices", [8, 64, 512])
class TestBytes:
    """Each preset at 8, 64 and 512 ranks."""

    def plan(self, plan_of: PlanOf, preset: str, devices: int, **options: object) -> Plan:
        return plan_of(f"USE '{preset}'", model="llama2-7b", devices=devices, batch=512, **options)

    @pytest.mark.parametrize("preset", ["ddp", "hierarchical", "context-parallel"])
    def test_replicated(self, preset: str, devices: int, plan_of: PlanOf) -> None:
        """Nothing is cut: 4 + 4 + 8 bytes a parameter."""
        assert held(self.plan(plan_of, preset, devices)) == (4 * WHOLE, 4 * WHOLE, 8 * WHOLE)

    def test_zero1(self, devices: int, plan_of: PlanOf) -> None:
        """States in pieces."""
        assert held(self.plan(plan_of, "zero1", devices)) == (4 * WHOLE, 4 * WHOLE, 8 * pieces(ALL, devices))

    def test_zero2(self, devices: int, plan_of: PlanOf) -> None:
        """States and gradients in pieces."""
        piece = pieces(ALL, devices)
        assert held(self.plan(plan_of, "zero2", devices)) == (4 * WHOLE, 4 * piece, 8 * piece)

    def test_zero3(self, devices: int, plan_of: PlanOf) -> None:
        """Everything in pieces."""
        piece = pieces(ALL, devices)
        assert held(self.plan(plan_of, "zero3", devices)) == (4 * piece, 4 * piece, 8 * piece)

    def test_hsdp(self, devices: int, plan_of: PlanOf) -> None:
        """Everything in 8 pieces, whatever the number of replicas."""
        piece = pieces(ALL, 8)
        assert held(self.plan(plan_of, "hsdp", devices)) == (4 * piece, 4 * piece, 8 * piece)

    @pytest.mark.parametrize("preset", ["megatron-tp", "sequence-parallel"])
    def test_tensor_parallel(self, preset: str, devices: int, plan_of: PlanOf) -> None:
        """An eighth of every matrix and all of every norm; sequence parallelism cuts activations only."""
        mine = (32 * (4 * ATTENTION + 3 * MLP) + 2 * VOCAB) // 8 + 65 * NORM
        assert held(self.plan(plan_of, preset, devices)) == (4 * mine, 4 * mine, 8 * mine)

    def test_megatron_3d(self, devices: int, plan_of: PlanOf) -> None:
        """Two stages of 16 layers, matrices cut over tp, states in pieces over the rest."""
        tp = 2 if devices == 8 else 8
        plan = plan_of(f"USE 'megatron-3d'(tp = {tp})", model="llama2-7b", devices=devices, batch=512)
        dp = devices // (2 * tp)
        half = [numel // tp for numel in [ATTENTION] * 4 + [MLP] * 3] + [NORM] * 2
        first, last = half * 16 + [VOCAB // tp], half * 16 + [VOCAB // tp, NORM]
        for stage, mine in ((0, first), (1, last)):
            assert held(plan, stage) == (4 * sum(mine), 4 * sum(mine), 8 * pieces(mine, dp))

    def test_diloco(self, devices: int, plan_of: PlanOf) -> None:
        """As replicated, and the outer optimizer keeps the parameters of the last meeting and a momentum."""
        assert held(self.plan(plan_of, "diloco", devices)) == (4 * WHOLE, 4 * WHOLE, (8 + 8) * WHOLE)

    def test_powersgd(self, devices: int, plan_of: PlanOf) -> None:
        """As replicated, and what the thin matrices left over is kept for every matrix."""
        matrices = WHOLE - 65 * NORM
        assert held(self.plan(plan_of, "powersgd", devices)) == (
            4 * WHOLE,
            4 * WHOLE,
            8 * WHOLE + 4 * matrices,
        )

    def test_expert_parallel(self, devices: int, plan_of: PlanOf) -> None:
        """Mixtral 8x7B, one expert of eight a rank: attention with 8 of 32 heads for keys, a router, two norms."""
        plan = plan_of("USE 'expert-parallel'", model="mixtral-8x7b", devices=devices, batch=512)
        attention = 2 * 4096 * 4096 + 2 * 1024 * 4096
        experts = 3 * 8 * 14336 * 4096
        mine = 32 * (attention + 8 * 4096 + 2 * NORM + experts // 8) + 2 * VOCAB + NORM
        assert held(plan) == (4 * mine, 4 * mine, 8 * mine)
