"""Does a run of ranks that hold pieces survive losses, in whatever phase, with the bits of a run that lost nobody?"""

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = pytest.mark.process

HSDP = "MESH replica 2, dp 2; SPLIT batch OVER replica, dp; STORE params, grads, states OVER dp"
PIPES = "MESH pp 2, dp 2; SPLIT layers OVER pp; SPLIT batch OVER dp"
FSDP = "MESH dp 4; STORE params, grads, states OVER dp"
ZERO1 = "MESH dp 4; STORE states OVER dp"
STORED_PIPES = f"{PIPES}; STORE params, grads, states OVER dp"
TENSORS = "MESH dp 2, tp 2; SPLIT batch OVER dp; SPLIT heads, mlp, vocab OVER tp"
LAYOUTS = {"hsdp": HSDP, "pipes": PIPES, "fsdp": FSDP, "zero1": ZERO1, "stored pipes": STORED_PIPES}
WITH_COPIES = ("--set", "fault_tolerance.snapshots=2")


def run(trimtab: Trimtab, strategy: str, *more: str, devices: int = 4) -> Ran:
    """The tiny job with a strategy; nothing is saved unless more says so."""
    return trimtab(
        "run", "tiny.yaml", "--json", "--set", f'parallelism="{strategy}"', "--set", f"orchestration.devices={devices}", *more
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(trimtab: Trimtab) -> Ran:
    """One device that nothing happens to: the bits of all layouts."""
    return trimtab("run", "tiny.yaml", "--json", "--set", "orchestration.devices=1")


def assert_same(ran: Ran, reference: Ran) -> None:
    assert ran.document["state"] == "done"
    for key in ("weights_sha256", "loss", "eval_loss", "steps"):
        assert ran.document[key] == reference.document[key], key


def lost(ran: Ran) -> list[int]:
    return [recovery["steps_lost"] for recovery in ran.document["recoveries"]]


def formed(ran: Ran) -> list[list[int]]:
    """Who took part in each epoch, by position."""
    return [event["active"] for event in ran.events("formed", "agent-*")]


def test_two_copies_of_the_state_are_broken_one_after_the_other(trimtab: Trimtab, undisturbed: Ran) -> None:
    """The second dies while the rest form anew: what lives of both makes one whole copy, and no step is lost."""
    ran = run(
        trimtab, HSDP, "--inject", "kill:rank=0,step=4,phase=apply", "--inject", "kill:rank=3,step=5,phase=reform"
    )  # fmt: skip
    assert_same(ran, undisturbed)
    assert lost(ran) == [0, 0]
    assert formed(ran) == [[0, 1, 2, 3], [2, 3], [2, 1]]
    moved = ran.events("moved", "agent-*")
    assert moved
    assert not any(event["bytes"] for event in moved), "each had the piece that it goes on with"


def test_a_stage_of_one_pipeline_dies_that_is_stored_in_pieces(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Its microbatches are the other pipeline's from then on, whose ranks are alone with what was in pieces."""
    ran = run(trimtab, STORED_PIPES, *WITH_COPIES, "--inject", "kill:rank=3,step=3,phase=reduce")
    assert_same(ran, undisturbed)
    assert formed(ran) == [[0, 1, 2, 3], [0, 1]]
    assert max(lost(ran)) <= 2


def test_pieces_that_only_a_buddy_has_are_cut_anew(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Four ranks hold a quarter each, one dies, then another; nothing was ever saved."""
    ran = run(
        trimtab, FSDP, *WITH_COPIES, "--inject", "kill:rank=1,step=6,phase=apply", "--inject", "kill:rank=3,step=10,phase=compute"
    )  # fmt: skip
    assert_same(ran, undisturbed)
    assert formed(ran) == [[0, 1, 2, 3], [0, 2, 3], [0, 2]]
    assert max(lost(ran)) <= 2
    assert not ran.events("checkpoint")


def test_a_checkpoint_that_is_newer_than_the_copies_is_taken(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Copies may be rare; what has been saved since is not computed again."""
    ran = run(
        trimtab, FSDP, "--set", "fault_tolerance.snapshots=11", "--set", "fault_tolerance.checkpoint.every=4",
        "--inject", "kill:rank=1,step=10,phase=compute",
    )  # fmt: skip
    assert_same(ran, undisturbed)
    assert [event["to_step"] for event in ran.events("rollback", "agent-*")] == [8]
    assert ran.events("moved", "agent-*") == []


@pytest.mark.slow
def test_a_part_of_a_save_that_died_with_its_rank_is_not_waited_for(
    trimtab: Trimtab, undisturbed: Ran
) -> None:
    """The lead would wait for it until it counts as stuck itself, and be the next to be lost."""
    ran = run(
        trimtab, FSDP, *WITH_COPIES, "--set", "fault_tolerance.checkpoint.every=4",
        "--inject", "kill:rank=2,step=4,phase=checkpoint",
    )  # fmt: skip
    assert_same(ran, undisturbed)
    assert [recovery["rank"] for recovery in ran.document["recoveries"]] == [2]
    saved = [event["step"] for event in ran.events("checkpoint", "agent-*") if event["state"] == "saved"]
    assert {8, 12} <= {*saved}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["pipes", "fsdp"])
def test_who_is_lost_is_replaced_and_all_take_part_again(trimtab: Trimtab, layout: str) -> None:
    """The others go on meanwhile; the new process, and who stood by, get their pieces at a step border."""
    longer = ("--set", "train.steps=200")
    calm = run(trimtab, LAYOUTS[layout], *longer)
    ran = run(
        trimtab, LAYOUTS[layout], *longer, *WITH_COPIES, "--set", "fault_tolerance.replace=true",
        "--inject", "kill:rank=3,step=3,phase=reduce",
    )  # fmt: skip
    assert_same(ran, calm)
    epochs = formed(ran)
    assert epochs[1] == {"pipes": [0, 2], "fsdp": [0, 1, 2]}[layout]
    assert sorted(epochs[-1]) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["compute", "reduce", "apply"])
@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_one_victim_in_every_phase(trimtab: Trimtab, undisturbed: Ran, layout: str, phase: str) -> None:
    """No phase of a step may be one in which the survivors part."""
    ran = run(trimtab, LAYOUTS[layout], *WITH_COPIES, "--inject", f"kill:rank=2,step=7,phase={phase}")
    assert_same(ran, undisturbed)
    assert max(lost(ran)) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_two_victims_in_one_step(trimtab: Trimtab, undisturbed: Ran, layout: str) -> None:
    """Not neighbours: what both held is with two others, or in another copy."""
    ran = run(
        trimtab, LAYOUTS[layout], *WITH_COPIES,
        "--inject", "kill:rank=0,step=7,phase=reduce", "--inject", "kill:rank=2,step=7,phase=reduce",
    )  # fmt: skip
    assert_same(ran, undisturbed)


@pytest.mark.slow
def test_a_rank_and_its_buddy_go_and_a_checkpoint_is_what_is_left(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Nobody guesses: the newest checkpoint holds what no memory holds any more."""
    ran = run(
        trimtab, FSDP, *WITH_COPIES, "--set", "fault_tolerance.checkpoint.every=4",
        "--inject", "kill:rank=1,step=7,phase=reduce", "--inject", "kill:rank=2,step=7,phase=reduce",
    )  # fmt: skip
    assert_same(ran, undisturbed)
    assert max(event["to_step"] for event in ran.events("rollback", "agent-*")) == 4


@pytest.mark.slow
def test_a_broken_group_of_tensor_parallel_ranks_is_one_unit(trimtab: Trimtab) -> None:
    """Other bits than one device has, by the order inside a product; the same as undisturbed."""
    calm = run(trimtab, TENSORS)
    ran = run(trimtab, TENSORS, "--inject", "kill:rank=2,step=6,phase=reduce")
    assert_same(ran, calm)
    assert lost(ran) == [0]
    assert formed(ran) == [[0, 1, 2, 3], [0, 1]]
