"""A step that is far from those before: marked, skipped, or gone back from, for real."""

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = [pytest.mark.process, pytest.mark.slow]

SPIKING = (
    *("--set", "train.steps=26", "--set", "orchestration.devices=2"),
    *("--set", "fault_tolerance.checkpoint.every=3", "--set", "train.on_spike.suspect=4"),
    *("--inject", "bit-flip:rank=1,step=22,element=300"),
)
"""The flip makes a gradient norm of some 10^36, which is finite; nobody looks for liars here."""


def answered(trimtab: Trimtab, answer: str, keep: int) -> Ran:
    keeps = ("--set", f"fault_tolerance.checkpoint.keep={keep}")
    return trimtab("run", "tiny.yaml", "--json", *SPIKING, *keeps, "--set", f"train.on_spike.answer={answer}")


def test_a_spike_is_marked_and_left_out_with_and_without_going_back(trimtab: Trimtab) -> None:
    """S-CKP-15 for finite numbers: what is skipped and what is gone back from end with the same bits.

    A spike that was applied would show in both; so would a step that was done twice, or other samples left out.
    """
    skipped, back = (answered(trimtab, *how) for how in (("skip", 3), ("rollback", 1)))
    for ran in (skipped, back):
        (spike,) = ran.events("spike", "agent-*")
        assert spike["step"] == 22
        assert "step 22 is a spike: the gradient norm is" in spike["reason"]
        assert all(step > 18 for step in spike["suspect"])
        assert spike["pinned"] is not None
        assert spike["pinned"] <= 18
        kept = {path.name for path in (ran.folder / "checkpoints").glob("step-*")}
        assert f"step-{spike['pinned']}" in kept, "it is older than the newest ones"
        assert ran.document["steps"] == 26
    (rollback,) = back.events("rollback", "agent-*")
    assert rollback["to_step"] == back.events("spike", "agent-*")[0]["pinned"]
    assert "its samples are left out" in back.events("skipped", "rank-0-*")[-1]["reason"]
    assert back.document["weights_sha256"] == skipped.document["weights_sha256"]
    assert back.document["ledger"]["classes"]["useful"] > 0
