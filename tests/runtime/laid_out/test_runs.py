"""Does a run of ranks that hold pieces train, survive a loss, and go on in another layout, with the same bits?"""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = pytest.mark.process

STORED = "MESH dp 3; STORE params, grads, states OVER dp"
STAGES = "MESH pp 2; SPLIT layers OVER pp"
BUCKETS = "MESH dp 2; REDUCE grads OVER dp BUCKET 4KB"
COMPRESSED = (
    "MESH dp 2; STORE grads, states WHERE kind = 'embedding' OVER dp; REDUCE grads OVER dp COMPRESS int8; "
    "REDUCE grads WHERE dims LIKE '%,%' AND layer IS NOT NULL OVER dp COMPRESS powersgd(2)"
)
UNSHARED = ("--set", 'fault_tolerance.shares="off"')
UNCOPIED = ("--set", 'fault_tolerance.snapshots="off"')
ENDED = ("--inject", "kill:rank=0,step=6,phase=compute", "--set", "fault_tolerance.restarts.node_loss=0")
TENSORS = "MESH dp 2, tp 2; SPLIT heads, mlp, vocab OVER tp; STORE states OVER dp"


def run(trimtab: Trimtab, strategy: str, devices: int, *more: str, check: int = 0) -> Ran:
    """The tiny job with a strategy, saved every four steps."""
    return trimtab(
        "run", "tiny.yaml", "--json", "--set", f'parallelism="{strategy}"', "--set", f"orchestration.devices={devices}",
        "--set", "fault_tolerance.checkpoint.every=4", *more, check=check,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(trimtab: Trimtab) -> Ran:
    """Two stages, nothing goes wrong."""
    return run(trimtab, STAGES, 2)


def assert_same(ran: Ran, reference: Ran) -> None:
    assert ran.document["state"] == "done"
    for key in ("weights_sha256", "loss", "eval_loss", "steps"):
        assert ran.document[key] == reference.document[key], key


def test_a_plan_has_the_bits_of_plain_replicas(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Dropout, a tied matrix on two stages, two microbatches a share: masks and orders of addition are those of no layout."""
    plain = trimtab("run", "tiny.yaml", "--json", "--set", "orchestration.devices=2")
    assert_same(plain, undisturbed)


def test_a_rank_with_a_third_of_everything_is_lost(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Nobody has a copy in memory: the others go back to the newest checkpoint, and two steps are computed again."""
    ran = run(trimtab, STORED, 3, *UNCOPIED, "--inject", "kill:rank=1,step=6,phase=reduce")
    assert_same(ran, undisturbed)
    (recovery,) = ran.document["recoveries"]
    assert (recovery["rank"], recovery["steps_lost"]) == (1, 2)
    assert_saved_in_pieces(trimtab, ran)


def test_a_rank_is_lost_while_gradients_are_summed(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Buckets are on their way beside the backward pass when a rank dies: nobody hangs, and no bit of them is kept."""
    ran = run(trimtab, BUCKETS, 2, "--inject", "kill:rank=1,step=6,phase=compute")
    assert_same(ran, undisturbed)
    (recovery,) = ran.document["recoveries"]
    assert recovery["rank"] == 1
    ledger = ran.document["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]
    assert ledger["unattributed_fraction"] <= 0.02


def assert_saved_in_pieces(trimtab: Trimtab, ran: Ran) -> None:
    """Both that are left wrote the last checkpoint; what is exported of it has the hash that the run has told."""
    newest = ran.folder / "checkpoints" / f"step-{ran.document['steps']}"
    assert {path.name for path in newest.glob("model*")} == {f"model-{rank}.safetensors" for rank in (0, 2)}
    trimtab("checkpoints", "verify", ran.document["run"])
    exported = ran.cwd / "pieces.safetensors"
    trimtab("checkpoints", "export", ran.document["run"], "--to", str(exported))
    code = "import sys; from pathlib import Path; from same_bits import weights_sha256 as of; print(of(Path(sys.argv[1])))"
    referee = subprocess.run(
        [sys.executable, "-c", code, str(exported)],
        cwd=Path(__file__).parents[3] / "referee",
        capture_output=True,
        text=True,
        check=True,
    )
    assert referee.stdout.strip() == ran.document["weights_sha256"]


def test_a_save_that_one_rank_cannot_write_is_no_checkpoint(trimtab: Trimtab, undisturbed: Ran) -> None:
    """The run goes on, loudly, and later saves count."""
    ran = run(trimtab, STAGES, 2, "--inject", "torn-checkpoint:step=4")
    assert_same(ran, undisturbed)
    states = [(event["step"], event["state"]) for event in ran.events("checkpoint")]
    assert (4, "failed") in states
    assert (12, "saved") in states
    # A save that is due while a writer is being started again is skipped, which may be the next one.
    assert {path.name for path in (ran.folder / "checkpoints").iterdir()} - {"step-8"} == {"step-12"}


def test_a_stage_is_lost_before_the_first_checkpoint(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Then the run begins again: with the first weights, not with those of the moment."""
    ran = run(trimtab, STAGES, 2, *UNCOPIED, "--inject", "kill:rank=0,step=2,phase=compute")
    assert_same(ran, undisturbed)
    assert ran.document["recoveries"][0]["steps_lost"] == 2


@pytest.mark.slow
def test_one_that_comes_back_to_an_evaluated_step_is_not_left_alone_with_it(
    trimtab: Trimtab, undisturbed: Ran
) -> None:
    """OBS-07: the others have scored the checkpoint's step already; it waited for them, and they for its step."""
    evaluate = ("--set", "train.evaluate.every=4", "--set", "fault_tolerance.detection.evaluation=60s")
    ran = run(trimtab, STAGES, 2, *evaluate, "--inject", "kill:rank=1,step=6,phase=compute")
    assert_same(ran, undisturbed)
    assert [lost["cause"] for lost in ran.document["recoveries"]] == ["exited"]
    scores = {(event["step"], event["loss"]) for event in ran.events("evaluation", "rank-0-*")}
    assert sorted(step for step, _ in scores) == [4, 8, 12], "one score of each step"


def test_the_ledger_of_a_pipeline_adds_up(undisturbed: Ran) -> None:
    """Waiting for the stage before is a class of its own."""
    ledger = undisturbed.document["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]
    assert ledger["classes"]["bubble"] > 0
    assert ledger["unattributed_fraction"] <= 0.02


def test_a_run_goes_on_in_another_layout(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Ended in three pieces by a loss too many, resumed in two stages."""
    ended = run(
        trimtab, STORED, 3, "--inject", "kill:rank=0,step=6,phase=compute", "--set",
        "fault_tolerance.restarts.node_loss=0", check=1,
    )  # fmt: skip
    assert ended.document["state"] == "failed"
    ran = trimtab(
        "resume", ended.document["run"], "--json", "--set", f'parallelism="{STAGES}"', "--set",
        "orchestration.devices=2",
    )  # fmt: skip
    assert_same(ran, undisturbed)


@pytest.fixture(scope="module")
def compressed(trimtab: Trimtab) -> Ran:
    """Sums with loss, nothing goes wrong."""
    return run(trimtab, COMPRESSED, 2, *UNSHARED)


@pytest.mark.slow
def test_a_run_that_compresses_goes_on_as_if_never_ended(trimtab: Trimtab, compressed: Ran) -> None:
    """What was not sent yet is sent after the resume: without it the weights would be others."""
    ended = run(trimtab, COMPRESSED, 2, *UNSHARED, *ENDED, check=1)
    ran = trimtab("resume", ended.document["run"], "--json")
    assert_same(ran, compressed)
    assert warnings(ran) == []


@pytest.mark.slow
def test_a_run_that_compresses_survives_a_loss(trimtab: Trimtab, compressed: Ran) -> None:
    """All go back to the newest checkpoint, and to what had been left over then."""
    ran = run(trimtab, COMPRESSED, 2, *UNSHARED, "--inject", "kill:rank=1,step=6,phase=reduce")
    assert_same(ran, compressed)


@pytest.mark.slow
def test_what_was_left_over_in_another_layout_is_dropped_by_name(trimtab: Trimtab, compressed: Ran) -> None:
    """It belongs to other ranks' gradients; the user must hear that the run is not the same from here."""
    ended = run(trimtab, COMPRESSED, 2, *UNSHARED, *ENDED, check=1)
    ran = trimtab(
        "resume", ended.document["run"], "--json", "--set", f'parallelism="{COMPRESSED.replace("2", "4", 1)}"', "--set",
        "orchestration.devices=4",
    )  # fmt: skip
    assert ran.document["state"] == "done"
    assert ran.document["weights_sha256"] != compressed.document["weights_sha256"]
    (text,) = warnings(ran)
    assert text.startswith(
        "step-4 was saved under another strategy or on other ranks: what COMPRESS had left over"
    )


def warnings(ran: Ran) -> list[str]:
    """What the ranks of the last attempt have warned of."""
    return [event["text"] for event in ran.events("warning", "rank-*")]


@pytest.mark.slow
def test_experts_train_without_a_strategy(trimtab: Trimtab) -> None:
    """No module computes experts: the plan of plain replicas does, with the same bits on one device and on two."""
    model = "model={preset: moe-3m, layers: 2, embed: 64, heads: 4, kv_heads: 2, mlp: 32, experts: 4}"
    ran = [
        trimtab("run", "tiny.yaml", "--json", "--set", model, "--set", f"orchestration.devices={devices}")
        for devices in (1, 2)
    ]
    assert_same(*ran)
    assert ran[0].document["loss"] < math.log(256) - 0.5, "no better than chance"


@pytest.mark.slow
def test_tensors_split_come_close(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Other orders inside matrix products: not the same bits, and nearly the same numbers."""
    ran = run(trimtab, TENSORS, 4)
    assert ran.document["loss"] == pytest.approx(undisturbed.document["loss"], rel=1e-5)
    assert ran.document["weights_sha256"] != undisturbed.document["weights_sha256"]
