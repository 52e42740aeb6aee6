"""Ranks that hang, spin, lie or lag, for real: each is told from the others, and none of it changes a bit."""

import re

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = pytest.mark.process

QUICK = tuple(
    argument
    for limit in ("heartbeat=2s", "progress=3s", "step=6s", "save=60s", "first_step=60s", "start=60s")
    for argument in ("--set", f"fault_tolerance.detection.{limit}")
)
THREE = ("--set", "orchestration.devices=3")
PROBED = ("--set", "fault_tolerance.detection.probe=1.0")


@pytest.fixture(scope="module")
def undisturbed(trimtab: Trimtab) -> Ran:
    """Nothing goes wrong; one rank, for their number changes no bit."""
    return trimtab("run", "tiny.yaml", "--json", "--set", "orchestration.devices=1")


def assert_same_bits(ran: Ran, reference: Ran) -> None:
    assert ran.document["state"] == "done"
    assert ran.document["weights_sha256"] == reference.document["weights_sha256"]


def test_a_hang_a_livelock_and_a_liar_are_told_apart(trimtab: Trimtab, undisturbed: Ran) -> None:
    """S-FT-02, S-FT-17: each is named with what it is, in one run that loses three of four ranks and no bit.

    The last two ranks are alone when one of them lies: that it gets other bits the second time tells who it is.
    """
    ran = trimtab(
        "run", "tiny.yaml", "--json", *QUICK, *PROBED, "--inject", "hang:rank=1,step=2", "--inject",
        "livelock:rank=2,step=5,phase=reduce", "--inject", "bit-flip:rank=3,step=8,bit=2,element=70",
    )  # fmt: skip
    assert_same_bits(ran, undisturbed)
    faults = {event["rank"]: event for event in ran.events("fault")}
    assert [faults[rank]["cause"] for rank in (1, 2, 3)] == ["stuck", "livelock", "corrupt"]
    assert "in phase compute of step 2; its last collective: all_" in faults[1]["detail"]
    assert "busy for" in faults[2]["detail"]
    # Which of its shares is looked at again depends on whose they are by then.
    share = re.search(r"share (\d), computed again by rank 3,", faults[3]["detail"])
    assert share is not None
    stacks = ran.events("stacks", "agent-*")[0]["logs"]
    assert set(stacks) == {"0", "1", "2", "3"}
    for rank in stacks:
        log = (ran.folder / "logs" / f"rank-{rank}-0.log").read_text(encoding="utf-8")
        assert "most recent call first" in log
    assert ran.document["ledger"]["classes"]["probe"] > 0
    assert [event["differing"] for event in ran.events("probe") if event["differing"]] == [[int(share[1])]]


def test_a_spoilt_replica_is_found_and_what_it_touched_is_done_again(
    trimtab: Trimtab, undisturbed: Ran
) -> None:
    """S-FT-17: its gradients have spoilt the others by then; going on with the majority would keep that."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", *THREE, "--set", "fault_tolerance.detection.compare=4", "--set",
        "fault_tolerance.checkpoint.every=2", "--set", "fault_tolerance.checkpoint.keep=9", "--inject",
        "bit-flip:rank=2,step=5,of=parameter,bit=20,element=7",
    )  # fmt: skip
    assert_same_bits(ran, undisturbed)
    (fault,) = ran.events("fault")
    assert (fault["rank"], fault["cause"]) == (2, "corrupt")
    assert "rank 2 differs in its parameters from 2 others that agree" in fault["detail"]
    (back,) = ran.events("rollback", "agent-*")
    assert back["to_step"] in (2, 4), "a save while the last is under way is left out"
    compared = [(event["step"], event["is_equal"]) for event in ran.events("compared")]
    assert (8, False) in compared
    assert compared[-1] == (8, True)


@pytest.mark.slow
def test_an_odd_norm_has_the_step_checked_before_it_is_applied(trimtab: Trimtab, undisturbed: Ran) -> None:
    """S-FT-17: whatever the rate of probes, a flip that makes the norm explode is found in its own step."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", *THREE, "--set", "fault_tolerance.detection.probe=0.000001", "--inject",
        "bit-flip:rank=0,step=7,element=300", "--set", "fault_tolerance.replace=true",
    )  # fmt: skip
    assert_same_bits(ran, undisturbed)
    assert [(event["rank"], event["cause"], event["step"]) for event in ran.events("fault")] == [
        (0, "corrupt", 7)
    ]
    (probe,) = ran.events("probe")
    assert probe["shares"] == [0, 1, 2, 3]
    assert "gradient norm is" in probe["why"]
