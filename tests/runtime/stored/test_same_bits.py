"""Does a class that is stored in pieces train to the bits of one that is whole, whatever its forward pass does?"""

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.runtime.stored.crews import Rank, job_of, on_ranks, whole_run
from trimtab.runtime.checkpoint.pieces import split_box, whole_box

STEPS = 3
EVERYTHING = "STORE params, grads, states OVER dp"


def assert_same_bits(name: str, devices: int, storage: str, folder, **train: object) -> None:
    """Loss, norm, weights and states of a few steps, against one rank that has everything."""
    expected, state, alone = whole_run(job_of(name, devices=1, **train), folder, STEPS)
    job = job_of(name, devices=devices, strategy=f"MESH dp {devices}; {storage}", **train)

    def act(rank: Rank) -> object:
        results = rank.steps(STEPS)
        return results, rank.state.digest(rank.group), rank.state.saved()

    found = on_ranks(job, folder, act)
    for results, digest, _ in found:
        assert results == expected
        assert digest == state.digest(alone)
    for part, tensors in state.saved().items():
        for tensor_name, tensor in tensors.items():
            assert put_together(tensor, tensor_name, [saved[part] for *_, saved in found if part in saved])


def put_together(expected: Tensor, name: str, saved: list[Mapping[str, Tensor]]) -> bool:
    """Whether the boxes of all ranks are this tensor, each element once."""
    seen = torch.full_like(expected, math.nan)
    for by_box in saved:
        for box_name, tensor in by_box.items():
            logical, box = split_box(box_name)
            if logical == name:
                where = tuple(slice(*ends) for ends in box or whole_box(expected.shape))
                assert bool(seen[where].isnan().all()), f"{box_name} is saved twice"
                seen[where] = tensor
    return seen.equal(expected)


@pytest.mark.parametrize(
    ("storage", "devices"),
    [
        ("STORE states OVER dp", 3),
        ("STORE grads OVER dp", 2),
        ("STORE grads, states OVER dp", 4),
        (EVERYTHING, 1),
        (EVERYTHING, 3),
        (
            "STORE params WHERE layer < 2 OVER dp; STORE states WHERE kind = 'embedding' OVER dp; "
            "STORE grads WHERE layer IS NULL OVER dp",
            3,
        ),
    ],
)
def test_what_is_stored_changes_no_bit(tmp_path, storage: str, devices: int) -> None:
    """Three ranks share four shares unevenly: one of them computes a microbatch more."""
    assert_same_bits("Plain", devices, storage, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "Recomputed",
        "RecomputedReentrant",
        "Repeated",
        "Tied",
        "Adapted",
        "Named",
        "Balancing",
        "Recurrent",
        "Stackless",
    ],
)
def test_forward_passes_of_many_kinds(tmp_path, name: str) -> None:
    """Layers computed again, used twice, tied, frozen, never called themselves, with outputs aside, recurrent; or none."""
    assert_same_bits(name, 2, EVERYTHING, tmp_path)


def test_layers_may_depend_on_samples_where_parameters_are_whole(tmp_path) -> None:
    """Gradients leave in one order on all ranks, also those of a layer that a rank did not use."""
    assert_same_bits("Routed", 3, "STORE grads, states OVER dp", tmp_path)


def test_hooks_on_gradients_stay_where_parameters_are_whole(tmp_path) -> None:
    """The user's parameter is then still the one that the user had."""
    assert_same_bits("Listening", 2, "STORE grads, states OVER dp", tmp_path)


@pytest.mark.parametrize("changes", [{"optimizer.sgd.lr": 0.1}, {"compute": "bf16"}, {"microbatch": 2}])
def test_other_steps(tmp_path, changes) -> None:
    """An optimizer without states, autocast, shares of one microbatch."""
    assert_same_bits("Plain", 2, EVERYTHING, tmp_path, **changes)
