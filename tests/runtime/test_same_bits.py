"""The first guarantee: the weights have the same bits at any number of ranks and through every kind of loss."""

from collections import Counter

import pytest

from tests.conftest import Ran, Trimtab

pytestmark = pytest.mark.process

PHASES = ("compute", "reduce", "gather", "apply")


@pytest.fixture(scope="module")
def undisturbed(trimtab: Trimtab) -> Ran:
    """Four ranks, nothing goes wrong."""
    return trimtab("run", "tiny.yaml", "--json")


def assert_same_weights(ran: Ran, reference: Ran) -> None:
    assert ran.document["state"] == "done"
    assert ran.document["weights_sha256"] == reference.document["weights_sha256"]
    assert ran.document["loss"] == reference.document["loss"]
    assert ran.document["eval_loss"] == reference.document["eval_loss"]


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_the_number_of_ranks_changes_no_bit(trimtab: Trimtab, undisturbed: Ran, devices: int) -> None:
    """Whoever resumes on fewer cards would otherwise train another model."""
    ran = trimtab("run", "tiny.yaml", "--json", "--set", f"orchestration.devices={devices}")
    assert_same_weights(ran, undisturbed)


def test_another_seed_gives_other_weights(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Equal hashes prove something only if different runs differ."""
    alone = ("--set", "orchestration.devices=1")  # the number of ranks changes nothing
    ran = trimtab("run", "tiny.yaml", "--json", "--set", "train.seed=1", *alone)
    assert ran.document["weights_sha256"] != undisturbed.document["weights_sha256"]


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(phase, marks=pytest.mark.slow) if phase in ("reduce", "gather") else phase
        for phase in PHASES
    ],
)
def test_a_kill_in_any_phase_costs_no_step_and_no_bit(trimtab: Trimtab, undisturbed: Ran, phase: str) -> None:
    """Survivors finish the step: no restart, the same pids, and only the lost shares are computed again."""
    ran = trimtab("run", "tiny.yaml", "--json", "--inject", f"kill:rank=1,step=5,phase={phase}")
    assert_same_weights(ran, undisturbed)
    spawned = ran.events("spawned")
    assert sorted(event["rank"] for event in spawned) == [0, 1, 2, 3], "nobody was restarted"
    (fault,) = ran.events("fault")
    assert (fault["rank"], fault["detail"]) == (1, "signal SIGKILL")
    (recovered,) = ran.events("recovered")
    assert recovered["steps_lost"] == 0


def test_each_share_is_computed_once_plus_the_lost_ones(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Survivors that recompute what they hold would pay for the whole step again."""
    ran = trimtab("run", "tiny.yaml", "--json", "--inject", "kill:rank=1,step=5,phase=reduce")
    for reference, extra in ((undisturbed, Counter()), (ran, Counter({(5, 1): 1}))):
        computed = Counter((event["step"], event["share"]) for event in reference.events("share"))
        once = Counter({(step, share): 1 for step in range(12) for share in range(4)})
        assert computed == once + extra


def test_two_losses_the_second_while_reforming(trimtab: Trimtab, undisturbed: Ran) -> None:
    """A second death must interrupt the recovery from the first, not hang it."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", "--inject", "kill:rank=1,step=5,phase=compute", "--inject",
        "kill:rank=2,step=5,phase=reform",
    )  # fmt: skip
    assert_same_weights(ran, undisturbed)
    assert [event["rank"] for event in ran.events("fault")] == [1, 2]


def test_a_stopped_rank_is_found_named_and_replaced_by_its_peers(trimtab: Trimtab, undisturbed: Ran) -> None:
    """SIGSTOP keeps every socket open: gloo alone would wait for 30 minutes."""
    ran = trimtab("run", "tiny.yaml", "--json", "--inject", "stop:rank=2,step=5,phase=reduce")
    assert_same_weights(ran, undisturbed)
    (fault,) = ran.events("fault")
    assert (fault["rank"], fault["cause"]) == (2, "stopped")


@pytest.mark.slow
def test_a_slow_rank_changes_no_bit(trimtab: Trimtab, undisturbed: Ran) -> None:
    """Order of arrival must not become order of addition."""
    ran = trimtab("run", "tiny.yaml", "--json", "--inject", "slow:rank=1,factor=4")
    assert_same_weights(ran, undisturbed)


@pytest.mark.parametrize("phase", ["gather", "apply"])
def test_a_ragged_commit_is_healed(trimtab: Trimtab, undisturbed: Ran, phase: str) -> None:
    """One rank misses a step that its peers applied: it must take their state, not apply the step twice."""
    ran = trimtab("run", "tiny.yaml", "--json", "--inject", f"disconnect:rank=1,step=5,phase={phase}")
    assert_same_weights(ran, undisturbed)
    assert not ran.events("fault"), "nobody died"
    if phase == "apply":
        assert [(event["behind"], event["step"]) for event in ran.events("healed")] == [(5, 6)]


@pytest.mark.parametrize("fault", ["kill", pytest.param("disconnect", marks=pytest.mark.slow)])
def test_a_step_that_its_lead_did_not_live_to_tell_is_told(
    trimtab: Trimtab, undisturbed: Ran, fault: str
) -> None:
    """The others have applied it: a curve without its loss would have lost what was computed."""
    ran = trimtab("run", "tiny.yaml", "--json", "--inject", f"{fault}:rank=0,step=5,phase=apply")
    assert_same_weights(ran, undisturbed)
    columns = "SELECT step, loss, grad_norm, targets FROM steps"
    rows, reference = (
        trimtab("query", "--format", "csv", of.document["run"], columns).stdout for of in (ran, undisturbed)
    )
    assert rows == reference
    assert len(rows.splitlines()) == 1 + ran.document["steps"]


@pytest.mark.slow
def test_a_replacement_joins_at_a_step_border(trimtab: Trimtab, undisturbed: Ran) -> None:
    """It takes a peer's state and its share of the work; the run must not wait for it."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", "--inject", "kill:rank=1,step=2,phase=compute", "--inject",
        "slow:rank=0,factor=100", "--set", "fault_tolerance.replace=true",
    )  # fmt: skip
    assert_same_weights(ran, undisturbed)
    members = [event["members"] for event in ran.events("formed")]
    assert members[0] == members[-1] == [0, 1, 2, 3]
    assert len(members) >= 2
    assert sorted(event["rank"] for event in ran.events("spawned")) == [0, 1, 1, 2, 3]
    assert [event["behind"] for event in ran.events("healed")] == [0]


@pytest.mark.slow
def test_an_exception_that_is_borne_costs_no_bit(trimtab: Trimtab, undisturbed: Ran) -> None:
    """FT-08: a record that could not be read once is no reason to lose a night; a new process takes the place."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", "--inject", "raise:rank=1,step=5", "--set",
        "fault_tolerance.restarts.user_error=1",
    )  # fmt: skip
    assert_same_weights(ran, undisturbed)
    (lost,) = ran.document["recoveries"]
    assert (lost["rank"], lost["cause"]) == (1, "user_error")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(("model.preset=llama-3m", "model.kv_heads=2"), marks=pytest.mark.slow),
        pytest.param(("train.compute=bf16",), marks=pytest.mark.slow),
        ("model.preset=llama-3m", "model.kv_heads=2", "train.compute=bf16"),
    ],
    ids=["llama-fp32", "gpt-bf16", "llama-bf16"],
)
def test_other_networks_and_types_keep_the_guarantee(trimtab: Trimtab, changes: tuple[str, ...]) -> None:
    """RMSNorm, GQA, SwiGLU and bf16 autocast take other kernels; each must be deterministic."""
    sets = [argument for change in changes for argument in ("--set", change)]
    alone = trimtab("run", "tiny.yaml", "--json", *sets, "--set", "orchestration.devices=1")
    broken = trimtab("run", "tiny.yaml", "--json", *sets, "--inject", "kill:rank=3,step=5,phase=gather")
    assert_same_weights(broken, alone)
