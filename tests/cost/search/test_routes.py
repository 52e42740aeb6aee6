"""How gradients are summed: the same figures, and the same order, as the formulas compiled and explained."""

from collections.abc import Callable

import pytest

from trimtab.catalog import cluster
from trimtab.cost.counts import counts_of
from trimtab.cost.early_times import update_communication
from trimtab.cost.search import Layout, Question, SumTime, better_sum, formulas_of, plan_of, sum_times
from trimtab.cost.stage_times import stage_passes

QuestionMaker = Callable[..., Question]

CASES = [
    ("64xA100", Layout(devices=64)),
    ("512xA100-100Gb", Layout(devices=64)),
    ("64xA100", Layout(devices=32, pipeline=2, context=2, store=1)),
]


def explained_s(question: Question, layout: Layout, where: str, reduce: str) -> tuple[float, float]:
    """What ``explain`` counts of the update's collectives when the formulas say it."""
    changed = {field: getattr(layout, field) for field in Layout.__dataclass_fields__} | {"reduce": reduce}
    place = cluster(where)
    plan = plan_of(question, Layout(**changed), place, shares=layout.data)
    counts = counts_of(plan)
    passes = stage_passes(plan, counts, place)
    assert passes is not None
    return max(
        update_communication(plan, counts, number, place, passes) for number in range(len(counts.groups))
    )


@pytest.mark.parametrize(("where", "layout"), CASES, ids=["fast", "slow between nodes", "pipeline, pieces"])
def test_they_are_ordered_as_explain_orders_them(question: QuestionMaker, where: str, layout: Layout) -> None:
    """Each figure is that of the compiled formula, so no order can differ; the first is the least."""
    asked = question(network="gpt2-124m", cluster=where, devices=(layout.devices,), sequence=1024)
    times = sum_times(asked, layout, cluster(where), shares=layout.data)
    assert len({time.route for time in times}) == (4 if layout.store else 6)
    assert [time.exposed_s for time in times] == sorted(time.exposed_s for time in times)
    for time in (*times[:3], times[len(times) // 2], times[-1]):
        found = explained_s(asked, layout, where, time.clause)
        assert (time.exposed_s, time.hidden_s) == pytest.approx(found, rel=1e-12), time


def test_routes_are_those_of_the_page_on_choosing(question: QuestionMaker) -> None:
    """docs/choosing-all-reduce.md: native inside fast networks, nodes first where little goes between them."""
    layout = Layout(devices=64)
    first = {}
    for where in ("64xA100", "512xA100-100Gb"):
        asked = question(network="gpt2-124m", cluster=where, devices=(64,), sequence=1024)
        times = sum_times(asked, layout, cluster(where), shares=64)
        first[where] = times[0].route
        whole = [time.route for time in times if not time.bucket]
        assert whole.index("native") < whole.index("ring") < whole.index("tree")
        assert whole.index("hierarchical(node)") < whole.index("ring")
    assert first == {"64xA100": "native", "512xA100-100Gb": "hierarchical(node)"}


def test_sums_of_every_microbatch_and_of_experts_are_left_alone(question: QuestionMaker) -> None:
    place = cluster("64xA100")
    for layout in (Layout(devices=8, store=2), Layout(devices=8, tensor=8)):
        assert sum_times(question(), layout, place, shares=None) == ()
    experts = question(network="mixtral-8x7b")
    assert sum_times(experts, Layout(devices=8, expert=8), place, shares=None) == ()


def test_a_route_has_to_save_a_hundredth_of_the_step(question: QuestionMaker) -> None:
    def times(saved_s: float) -> tuple[SumTime, ...]:
        return (
            SumTime(route="tree", bucket="25MB", exposed_s=1 - saved_s, hidden_s=0),
            SumTime(route="native", bucket="", exposed_s=1.0, hidden_s=0),
        )

    assert better_sum(times(0.009), step_s=1.0) is None
    better = better_sum(times(0.011), step_s=1.0)
    assert better is not None
    assert better.clause == "USING tree BUCKET 25MB"
    assert better_sum((), step_s=1.0) is None
    in_buckets = SumTime(route="native", bucket="25MB", exposed_s=0.985, hidden_s=0)
    one, two = times(0.02)
    assert better_sum((one, in_buckets, two), step_s=1.0) == in_buckets
    layout = Layout(devices=8, context=2, reduce=better.clause)
    assert "REDUCE grads OVER dp, cp USING tree BUCKET 25MB  " in formulas_of(question(), layout)
