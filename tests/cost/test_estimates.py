from dataclasses import replace

import pytest

from tests.plan.conftest import MACHINE, PlanOf
from trimtab.catalog import THIS_MACHINE, FlopConvention, accelerator, cluster
from trimtab.cost.counts import counts_of
from trimtab.cost.estimates import FASTEST, SLOWEST, Estimate, estimate, price_for
from trimtab.cost.host_traffic import waiting_activation_bytes
from trimtab.cost.stage_times import pipeline_times, stage_passes
from trimtab.plan.pipelines import simulate

PP = "MESH pp 4, dp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 4"


def estimated(plan_of: PlanOf, text: str, on: str = "512xH100", **options: object) -> Estimate:
    plan = plan_of(text, on=on, compute="bf16", **options)
    return estimate(plan, cluster(on, machine=MACHINE), steps=100, usd_per_device_hour=3.6)


def test_parts_add_up_to_the_step(plan_of: PlanOf) -> None:
    """What no part claims would be time that nobody explains."""
    for text in ("MESH dp *", "STORE params, grads, states OVER dp", PP):
        found = estimated(plan_of, text, devices=8)
        assert found.step_s is not None
        for group in found.groups:
            parts = (
                group.compute_s,
                group.recompute_s,
                group.communication_s,
                group.waiting_s,
                group.optimizer_s,
            )
            assert min(parts) >= 0
            assert sum(parts) == pytest.approx(found.step_s.expected)


def test_a_pipeline_is_simulated_once_a_share(plan_of: PlanOf) -> None:
    """With two shares a replica the pipeline fills and drains twice."""
    options = {"model": "llama2-7b", "devices": 8, "batch": 64, "sequence": 1024, "compute": "bf16"}
    once = plan_of(PP.replace("MICROBATCHES 4", "MICROBATCHES 8"), shares=2, **options)
    twice = plan_of(PP, shares=4, **options)
    assert (once.work.microbatches, once.work.microbatch) == (8, 4)
    assert (twice.work.microbatches, twice.work.microbatch) == (8, 4)
    times = {}
    for name, plan in (("once", once), ("twice", twice)):
        counts = counts_of(plan)
        passes = stage_passes(plan, counts, cluster("512xH100"))
        assert counts.actions is not None
        assert passes is not None
        makespan_s = simulate(
            counts.actions, times=pipeline_times(plan, counts, cluster("512xH100"), passes)
        ).makespan_s
        times[name] = makespan_s * plan.work.parts_per_replica
        found = estimate(plan, cluster("512xH100")).step_s
        assert found is not None
        assert found.expected == pytest.approx(times[name], rel=0.05)  # and the update
    assert times["twice"] > 1.2 * times["once"]


def test_dollars_are_devices_times_time(plan_of: PlanOf) -> None:
    """8 devices at 3.6 dollars an hour are 8 thousandths of a dollar a second."""
    found = estimated(plan_of, "MESH dp *", devices=8)
    assert found.step_s is not None
    assert found.usd_per_step is not None
    assert found.usd is not None
    assert found.usd_per_step.expected == pytest.approx(found.step_s.expected * 0.008)
    assert found.usd.high == pytest.approx(100 * found.step_s.high * 0.008)


def test_the_catalog_prices_what_the_user_does_not(plan_of: PlanOf) -> None:
    """And says who asked for how much, and when."""
    plan = plan_of("MESH dp *", on="64xA100", compute="bf16")
    price = estimate(plan, cluster("64xA100")).price
    assert price is not None
    assert price.usd_per_device_hour > 0
    assert "as of" in price.source


def test_devices_of_several_kinds_have_their_own_prices(plan_of: PlanOf) -> None:
    """Old cards beside new ones cost what each of them costs."""
    plan = plan_of("MESH dp *", on="64xA100+64xH100", devices=128, batch=128, compute="bf16")
    mixed = price_for(plan, None)
    old, new = (price_for(plan_of("MESH dp *", on=on), None) for on in ("64xA100", "512xH100"))
    assert mixed is not None
    assert old is not None
    assert new is not None
    assert mixed.usd_per_device_hour == pytest.approx((old.usd_per_device_hour + new.usd_per_device_hour) / 2)
    assert mixed.source == f"{old.source}; {new.source}"


def test_mfu_counts_useful_work_once(plan_of: PlanOf) -> None:
    """Recompute makes the step longer and the work no larger."""
    plain, again = (
        estimated(plan_of, text, model="llama2-7b", devices=8, batch=8, sequence=2048)
        for text in ("MESH dp *", "RECOMPUTE activations WHERE layer >= 0")
    )
    before, after = dict(plain.mfu)[FlopConvention.CAUSAL], dict(again.mfu)[FlopConvention.CAUSAL]
    assert 0.2 < after.expected < before.expected < 0.62
    assert dict(plain.mfu)[FlopConvention.FULL].expected > before.expected
    assert before.low == pytest.approx(before.expected / SLOWEST)
    assert before.high == pytest.approx(before.expected / FASTEST)


def test_what_is_not_known_is_not_invented(plan_of: PlanOf) -> None:
    """A CPU whose rate nobody measured has no step time, and a pipeline on it has a bubble all the same."""
    plan = plan_of(PP, on=THIS_MACHINE, devices=8)
    found = estimate(plan, cluster(THIS_MACHINE, machine=MACHINE), usd_per_device_hour=1.0)
    assert found.step_s is None
    assert found.usd_per_step is None
    assert found.mfu == ()
    assert found.unknown == "the rate of CPU is not known"
    assert found.timeline is not None
    assert not found.is_timeline_in_seconds
    assert 0.3 < found.timeline.bubble_share < 0.6


def test_buckets_hide_behind_the_last_backward_pass(plan_of: PlanOf) -> None:
    """One large sum waits for the last gradient; buckets leave one after the other while it is computed."""
    options = {"model": "llama2-7b", "devices": 8, "batch": 8, "sequence": 2048}
    whole = estimated(plan_of, "MESH dp *", **options)
    cut = estimated(plan_of, "MESH dp *\nREDUCE grads OVER dp BUCKET 100MB", **options)
    assert cut.groups[0].communication_s < whole.groups[0].communication_s / 5
    assert cut.groups[0].hidden_communication_s > whole.groups[0].communication_s / 2


def test_more_ranks_take_less_time_for_the_same_batch(plan_of: PlanOf) -> None:
    """The shape of the model: more devices never make a step of this size slower."""
    options = {"model": "llama2-7b", "batch": 64, "sequence": 2048}
    steps = [estimated(plan_of, "MESH dp *", devices=devices, **options).step_s for devices in (1, 2, 8, 64)]
    expected = [step.expected for step in steps if step is not None]
    assert expected == sorted(expected, reverse=True)


def test_what_waits_in_host_memory_is_paid_for(plan_of: PlanOf) -> None:
    """A plan that fits because its states are elsewhere, and is said to be as fast, would be chosen for nothing."""
    plain, away = (
        plan_of(text, devices=8, on="512xH100", compute="bf16")
        for text in ("", "OFFLOAD states TO host\nOFFLOAD activations WHERE kind = 'linear' TO host")
    )
    before, after = (estimate(plan, cluster("512xH100")).groups[0] for plan in (plain, away))
    rate = accelerator("H100-SXM-80GB").host_bytes_per_s
    states = sum(table.host_bytes for table in counts_of(away).holdings.of((0,)))
    activations = waiting_activation_bytes(away, (0,)) * away.work.microbatches
    assert after.optimizer_s - before.optimizer_s == pytest.approx(2 * states / rate)
    assert after.communication_s - before.communication_s == pytest.approx(2 * activations / rate)


def test_a_link_that_nobody_knows_has_no_price(plan_of: PlanOf) -> None:
    """A time that leaves the way to the host out would be the time of another plan."""
    unknown = replace(accelerator("H100-SXM-80GB"), host_bytes_per_s=None)
    known = cluster("512xH100")
    nodes = tuple(replace(node, accelerator=unknown) for node in known.nodes)
    plan = plan_of("OFFLOAD states TO host", devices=8, on="512xH100", compute="bf16")
    assert "host memory is not known" in estimate(plan, replace(known, nodes=nodes)).unknown
