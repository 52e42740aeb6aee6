"""Does a run have the same bits at any number of replicas, any way of storing and any number of stages?"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from tests.runtime.lowering.small_plans import DROPPING, ROTARY, small_plan
from trimtab.plan.explanation.share_traffic import replica_of, share_traffic
from trimtab.plan.meshes import coordinates
from trimtab.plan.physical import Plan
from trimtab.plan.shares import assign_shares
from trimtab.runtime.lowering import Crew, Outcome, Rank, Rules, Wires
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.lowering.extents import Extent, assemble
from trimtab.runtime.lowering.verification import ragged_batch
from trimtab.runtime.optimizers import AdamW

pytestmark = pytest.mark.process

STEPS = 3
STORED = "STORE params, grads, states OVER dp"

LAYOUTS = {
    "two replicas": (2, "MESH dp 2"),
    "three replicas, one with two shares": (3, "MESH dp 3"),
    "four replicas": (4, "MESH dp 4"),
    "states stored": (2, "MESH dp 2\nSTORE states OVER dp"),
    "gradients stored, three replicas": (3, "MESH dp 3\nSTORE grads, states OVER dp"),
    "everything stored": (4, f"MESH dp 4\n{STORED}"),
    "everything stored, three replicas": (3, f"MESH dp 3\n{STORED}"),
    "hsdp": (4, f"MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\n{STORED}"),
    "two stages": (2, "MESH pp 2\nSPLIT layers OVER pp"),
    "two stages, gpipe": (2, "MESH pp 2\nSPLIT layers OVER pp USING gpipe"),
    "two stages, interleaved": (2, "MESH pp 2\nSPLIT layers OVER pp USING interleaved_1f1b(2)"),
    "two stages, zbv": (2, "MESH pp 2\nSPLIT layers OVER pp USING zbv"),
    "four stages": (4, "MESH pp 4\nSPLIT layers OVER pp"),
    "stages and replicas": (4, "MESH pp 2, dp 2\nSPLIT layers OVER pp"),
    "replicas and stored states": (4, "MESH pp 2, dp 2\nSPLIT layers OVER pp\nSTORE states OVER dp"),
    "stages and stored replicas": (4, f"MESH pp 2, dp 2\nSPLIT layers OVER pp\n{STORED}"),
    "computed again": (2, f"MESH dp 2\n{STORED}\nRECOMPUTE activations WHERE name <> 'logits'"),
    "buckets beside the backward pass": (3, "MESH dp 3\nREDUCE grads OVER dp BUCKET 8KB"),
    "buckets over two axes": (
        4,
        "MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\nSTORE states OVER dp\n"
        "REDUCE grads OVER replica, dp BUCKET 8KB",
    ),
    "another route": (4, "MESH dp 4\nREDUCE grads OVER dp USING tree"),
}
NETWORKS: Mapping[str, dict[str, Any]] = {"learned": DROPPING, "rotary": ROTARY}

Piece = tuple[torch.Tensor, Extent]


def plan_of(text: str, devices: int, network: str) -> Plan:
    """Four shares of four samples, four microbatches each."""
    return small_plan(text, devices, batch=16, microbatch=1, shares=4, **NETWORKS[network])


def train(wires: Wires, plan: Plan) -> tuple[dict[str, Piece], list[Outcome]]:
    """A rank's pieces after some steps, and what it knows of them."""
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=0.5)
    rank = Rank(plan, wires.rank, wires, rules, seed=7, adds_by_share=True)
    outcomes = [
        rank.step(microbatches_of(plan.work, *ragged_batch(plan, 3, step)), step) for step in range(STEPS)
    ]
    pieces = {}
    for name, tensor in rank.stored.items():
        parameter = plan.parameters[name]
        extent = rank.layouts.extent(parameter.dims, parameter.shape, parameter.stored["params"], rank.rank)
        pieces[name] = (tensor, extent)
    return pieces, outcomes


def digest_of(plan: Plan, ran: list[tuple[dict[str, Piece], list[Outcome]]]) -> str:
    """Of whole weights, losses and norms."""
    digest = hashlib.sha256()
    for name, parameter in sorted(plan.parameters.items()):
        found = [pieces[name] for pieces, _ in ran if name in pieces]
        whole = Extent.of(parameter.shape)
        digest.update(assemble(found, whole).numpy().tobytes())
    known = next(outcomes for _, outcomes in ran if outcomes[0].loss is not None)
    digest.update(repr([(each.num_tokens, each.loss, each.norm) for each in known]).encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """By network, what one device makes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # As every rank of a crew: a constant of the run.
    with Crew(1) as crew:
        found = {}
        for network in NETWORKS:
            plan = plan_of("MESH dp 1", 1, network)
            found[network] = digest_of(plan, crew.run(train, plan))
    torch.set_num_threads(threads)
    return found


@pytest.mark.parametrize(
    ("layout", "network"),
    [
        *((layout, "learned") for layout in LAYOUTS),
        *(
            (layout, "rotary")
            for layout in ("everything stored, three replicas", "hsdp", "stages and stored replicas")
        ),
    ],
)
def test_bits_do_not_tell_the_layout(
    layout: str, network: str, alone: dict[str, str], crew_of: Callable[[int], Crew]
) -> None:
    """Weights, losses and norms of ragged batches after some steps."""
    devices, text = LAYOUTS[layout]
    plan = plan_of(text, devices, network)
    assert digest_of(plan, crew_of(devices).run(train, plan)) == alone[network]


def test_the_order_of_the_backend_has_other_bits(alone, crew_of):
    """So the test above can tell."""
    plan = plan_of("MESH dp 4", 4, "rotary")
    assert digest_of(plan, crew_of(4).run(train_natively, plan)) != alone["rotary"]


def train_natively(wires: Wires, plan: Plan) -> tuple[dict[str, Piece], list[Outcome]]:
    """As ``train``, gradients added by the backend."""
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=0.5)
    rank = Rank(plan, wires.rank, wires, rules, seed=7)
    outcomes = [
        rank.step(microbatches_of(plan.work, *ragged_batch(plan, 3, step)), step) for step in range(STEPS)
    ]
    whole = {name: (tensor, Extent.of(tensor.shape)) for name, tensor in rank.stored.items()}
    return whole, outcomes


UNEVEN = {
    "whole, two subtrees on some": (3, 8, "MESH dp 3"),
    "states stored, two subtrees on some": (3, 8, "MESH dp 3\nSTORE states OVER dp"),
    "gradients stored, one share less on some": (3, 4, f"MESH dp 3\n{STORED}"),
    "three shares each": (2, 6, "MESH dp 2\nREDUCE grads OVER dp BUCKET 8KB"),
    "hsdp, three shares each": (4, 12, f"MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\n{STORED}"),
    "stages, two subtrees on some": (6, 8, "MESH pp 2, dp 3\nSPLIT layers OVER pp"),
}


def sent(wires: Wires, plan: Plan) -> tuple[int, int, int]:
    """The rank's replica and shares, and the bytes that it sends in one step, single numbers left out."""
    rules = Rules(optimizer=AdamW(lr=1e-2), learning_rate=lambda step: 1e-2, clip=0.5)
    rank = Rank(plan, wires.rank, wires, rules, seed=7, adds_by_share=True, sends_beside=False)
    wires.counts.clear()
    rank.step(microbatches_of(plan.work, *ragged_batch(plan, 3, 0)), 0)
    num_bytes = sum(
        count.sent_bytes
        for what, count in wires.counts.items()
        if not any(name.startswith(NUMBERS) for name in what.tensors)
    )
    return rank.ownership.of(wires.rank)[0], len(rank.ownership.of(wires.rank)), num_bytes


NUMBERS = ("loss", "num_tokens", "norm_square")


@pytest.mark.parametrize("layout", UNEVEN)
def test_what_uneven_shares_cost_is_told_beforehand(layout: str, crew_of: Callable[[int], Crew]) -> None:
    """Every byte that a rank sends is in the plan's traffic or in the price of the tree."""
    devices, shares, text = UNEVEN[layout]
    plan = small_plan(text, devices, batch=2 * shares, microbatch=1, shares=shares, **ROTARY)
    priced = share_traffic(plan)
    listed = [traffic for traffic in plan.traffic if not traffic.tensors[0].startswith(NUMBERS)]
    ran = crew_of(devices).run(sent, plan)
    assert any(each.tree_bytes or each.idle_bytes for each in priced)
    for rank, (first, num_shares, num_bytes) in enumerate(ran):
        place = coordinates(plan.mesh, rank).get(plan.pipeline.axis or "", 0)
        of_plan = sum(traffic.runs.get(place, 0) * traffic.sent_bytes(rank) for traffic in listed)
        assert priced[rank].shares == num_shares
        assert num_bytes == of_plan + priced[rank].tree_bytes
        owned = assign_shares(shares, range(plan.work.replicas))
        assert owned[first] == replica_of(plan, rank)
