"""Each warning with its figures and its line, and none where all is well."""

from dataclasses import replace

import pytest

from tests.cost.explanation.conftest import Explain, asked_of
from trimtab.catalog import cluster
from trimtab.cost.explanation import explanation
from trimtab.cost.explanation.document import Caution, CautionKind, Explanation
from trimtab.spec import parse_strategy
from trimtab.terms import OnLoss

TP = "SPLIT heads, mlp, vocab OVER tp"


def of_kind(found: Explanation, kind: CautionKind) -> list[Caution]:
    return [caution for caution in found.warnings if caution.kind is kind]


def test_a_good_plan_has_none(explain: Explain) -> None:
    """Warnings that are always there are read by nobody."""
    text = f"MESH dp *, tp 8 WITHIN node\nSPLIT batch OVER dp\n{TP}"
    _, found = explain(text, model="llama2-7b", devices=64, batch=64, sequence=1024)
    assert found.warnings == ()


def test_tensor_parallelism_across_the_border(explain: Explain) -> None:
    """With the bytes that a device sends, the link and the line."""
    text = f"MESH tp 2, dp 8\nSPLIT batch OVER dp\n{TP}"
    _, found = explain(text, model="llama2-7b", devices=16, batch=32, sequence=1024)
    (caution,) = of_kind(found, CautionKind.BORDER)
    across = sum(
        facts.rank_bytes.site for facts in found.groups[0].collectives if facts.reason == "tensor parallelism"
    )
    assert caution.at == "run.trim:3"
    assert caution.message == (
        f"tensor parallelism crosses the node border: {across / 1e9:.3g} GB per step and device over 50 GB/s"
    )


def test_experts_across_the_border_only_where_they_wait_long(explain: Explain) -> None:
    """Expert parallelism is meant to cross it; a tenth of the step is what it may take."""
    text = "MESH dp {}, ep {}\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep"
    options = {"model": "qwen3-30b-a3b", "devices": 32, "batch": 512, "microbatch": 8, "sequence": 2048}
    _, far = explain(text.format(2, 16), **options)
    assert [caution.at for caution in of_kind(far, CautionKind.BORDER)] == ["run.trim:3"]
    _, near = explain(text.format(4, 8), **options)
    assert of_kind(near, CautionKind.BORDER) == []


def test_what_does_not_fit(explain: Explain) -> None:
    """The rank that needs most, its moment and its largest class."""
    _, found = explain("MESH dp *", model="llama2-7b", devices=8, batch=8, sequence=4096)
    (caution,) = of_kind(found, CautionKind.MEMORY)
    assert found.fits is False
    assert "and does not fit; most of it is " in caution.message
    assert "(all ranks) needs " in caution.message


def test_each_group_fits_its_own_device(explain: Explain) -> None:
    """The cards with less memory are those that do not fit, whatever the others have."""
    plan, _ = explain("MESH dp *", devices=4)
    small = [replace(device, memory_bytes=10**7) for device in plan.bound.devices[2:]]
    bound = replace(plan.bound, devices=(*plan.bound.devices[:2], *small))
    program = parse_strategy("MESH dp *", source="run.trim")
    plan = replace(plan, bound=bound)
    found = explanation(plan, asked_of(plan, program, cluster("512xH100")))
    assert [(group.ranks, group.memory.fits) for group in found.groups] == [("0-1", True), ("2-3", False)]
    (caution,) = of_kind(found, CautionKind.MEMORY)
    assert caution.message.startswith("a rank of B (all ranks) needs ")
    assert "of 10 MB" in caution.message
    assert found.fits is False


def test_what_only_just_fits(explain: Explain) -> None:
    """A plan that leaves nothing for the context dies in its first step."""
    text = "STORE params, grads, states OVER dp\nRECOMPUTE activations WHERE layer >= 0"
    _, found = explain(text, model="llama2-7b", devices=2, batch=22, microbatch=11, sequence=4096)
    (caution,) = of_kind(found, CautionKind.MEMORY)
    assert found.fits is True
    assert "leaves" in caution.message


def test_a_bubble_above_thirty_per_cent(explain: Explain) -> None:
    """4 microbatches for 4 stages wait 3 of 7 times; 32 are enough."""
    text = "MESH pp 4, dp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES {}"
    options = {"model": "llama2-7b", "devices": 8, "batch": 64, "sequence": 1024}
    _, few = explain(text.format(4), **options)
    (caution,) = of_kind(few, CautionKind.BUBBLE)
    assert caution.at == "run.trim:2"
    assert "4 microbatches for 4 stages" in caution.message
    _, many = explain(text.format(32), **options)
    assert of_kind(many, CautionKind.BUBBLE) == []


def test_a_padded_vocabulary(explain: Explain) -> None:
    """32001 rows in 8 pieces are 8 x 4001."""
    text = f"MESH dp *, tp 8\nSPLIT batch OVER dp\n{TP}"
    _, found = explain(text, model="llama2-7b", devices=8, batch=8, sequence=64, vocab=32001)
    (caution,) = of_kind(found, CautionKind.PADDING)
    assert caution.message == "a vocabulary of 32001 in 8 pieces over tp: each has 4001, and 7 are padding"
    assert caution.at == "run.trim:3"


def test_work_that_ranks_repeat(explain: Explain) -> None:
    """An axis that splits a part of the network repeats the rest."""
    _, found = explain("MESH dp 4, tp 2\nSPLIT batch OVER dp\nSPLIT heads OVER tp", devices=8)
    (caution,) = of_kind(found, CautionKind.REPEATED_WORK)
    assert "over tp" in caution.message
    assert found.work is not None
    assert 0.2 < found.work.repeated_share < 0.5


def test_uneven_stages(explain: Explain) -> None:
    """By hand, one stage may get three layers of four."""
    text = "MESH pp 2, dp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 8\nPLACE layers BETWEEN 0 AND 2 ON pp 0"
    _, found = explain(text)
    (caution,) = of_kind(found, CautionKind.UNEVEN)
    assert caution.message.startswith("stage 0 computes 1.")
    assert caution.at == "run.trim:2"


def test_uneven_shares(explain: Explain) -> None:
    """6 shares for 4 replicas: two compute two, two wait."""
    _, found = explain("MESH dp *", batch=24, shares=6)
    (caution,) = of_kind(found, CautionKind.UNEVEN)
    assert caution.message == "6 shares for 4 replicas: the busiest computes 2 while others wait"
    assert caution.at == "run.yaml:9"


def test_statements_without_effect(explain: Explain) -> None:
    """A line that a later one overrides for every row is a misunderstanding."""
    _, found = explain("MESH dp *\nREDUCE grads OVER dp USING tree\nREDUCE grads OVER dp USING ring")
    (caution,) = of_kind(found, CautionKind.NO_EFFECT)
    assert caution.at == "run.trim:2"


def test_a_rollback_to_nothing(explain: Explain) -> None:
    """The day a card dies is the wrong day to learn that nothing was saved."""
    _, found = explain("MESH dp *", every="off")
    (caution,) = of_kind(found, CautionKind.ON_LOSS)
    assert caution.at == "run.yaml:8"
    _, survives = explain("MESH dp *", every="off", rule=OnLoss.EXACT)
    assert of_kind(survives, CautionKind.ON_LOSS) == []


@pytest.mark.parametrize("devices", [1, 2])
def test_small_plans_are_checked_too(devices: int, explain: Explain) -> None:
    """Nothing divides by an axis that is not there."""
    _, found = explain("", devices=devices)
    assert found.warnings == ()
