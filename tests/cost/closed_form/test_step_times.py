"""Time by closed forms, against published arithmetic and figures."""

from collections.abc import Callable

import numpy as np
import pytest

from trimtab.cost.closed_form import (
    TIME_CONSTANTS,
    Cases,
    StepTimes,
    expected,
    layer_times,
    step_times,
)
from trimtab.cost.closed_form.step_times import stage_layers

CaseMaker = Callable[..., Cases]


def priced(cases: Cases, **changes: float) -> StepTimes:
    values = {**expected(TIME_CONSTANTS), **{name: np.asarray(value) for name, value in changes.items()}}
    return step_times(cases, layer_times(cases, values), values)


ONLY_LAYERS = {"hop_s": 0.0, "hop_exposed": 0.0, "microbatch_s": 0.0, "head_passes": 0.0}


@pytest.mark.parametrize(
    ("stages", "microbatches", "share"), [(16, 4, 0.789), (8, 16, 0.304), (8, 64, 0.0986)]
)
def test_the_bubble_is_that_of_the_formula(
    case: CaseMaker, stages: int, microbatches: int, share: float
) -> None:
    """(p - 1) / (m + p - 1): 16 stages and 4 microbatches wait 79 % of the time, as BigScience's did."""
    cases = case(pipeline=stages, devices=8 * stages, batch=microbatches, vocab=1, layers=96)
    times = priced(cases, **ONLY_LAYERS)
    passes = times.compute_s + times.recompute_s + times.collectives_s + times.bubble_s
    assert float(times.bubble_s / passes) == pytest.approx(
        (stages - 1) / (microbatches + stages - 1), rel=3e-3
    )
    assert float(times.bubble_s / passes) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("stages", [4, 8, 16, 64])
def test_bubbles_above_30_percent_need_fewer_than_seven_thirds_microbatches_a_stage(
    case: CaseMaker, stages: int
) -> None:
    def share(microbatches: float) -> float:
        cases = case(pipeline=stages, devices=8 * stages, batch=microbatches, vocab=1, layers=stages * 4)
        times = priced(cases, **ONLY_LAYERS)
        return float(
            times.bubble_s / (times.compute_s + times.recompute_s + times.collectives_s + times.bubble_s)
        )

    border = 7 / 3 * (stages - 1)
    assert share(np.ceil(border) + 1) < 0.30 < share(np.floor(border) - 1)


def test_interleaving_divides_the_fill(case: CaseMaker) -> None:
    plain, cut = (priced(case(virtual=pieces, vocab=1), **ONLY_LAYERS).bubble_s.item() for pieces in (1, 4))
    assert cut == pytest.approx(plain / 4, rel=0.02)  # the head of a vocabulary of one is left


def test_parts_add_up(case: CaseMaker) -> None:
    times = priced(case(store=3, context=2, devices=2048))
    assert times.total_s.item() == pytest.approx(
        sum(getattr(times, name).item() for name in StepTimes.__dataclass_fields__)
    )


def test_gpt3_on_1024_devices_takes_what_was_published(case: CaseMaker) -> None:
    """140 teraFLOP/s a device were measured, recompute counted (Narayanan et al. 2021, section 5.1: 175B, batch 1536).

    With constants that nobody fitted: within a quarter.
    """
    cases = case()
    flops = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    assert priced(cases).total_s.item() == pytest.approx(flops / (140e12 * 1024), rel=0.25)


def test_full_recompute_adds_one_forward_pass(case: CaseMaker) -> None:
    values = expected(TIME_CONSTANTS)
    with_it, without = (layer_times(case(recompute=flag), values) for flag in (1, 0))
    assert with_it.again_s == with_it.forward_s
    assert with_it.again_wait_s == with_it.forward_wait_s
    assert without.again_s == without.again_wait_s == 0


def test_a_small_layer_takes_its_launches(case: CaseMaker) -> None:
    values = {**expected(TIME_CONSTANTS), "kernel_s": np.asarray(1e-5)}
    tiny = layer_times(case(embed=256, heads=4, head_size=64, mlp=1024, sequence=128), values)
    assert tiny.forward_s.item() == pytest.approx(24e-5, rel=0.05)


def test_tensor_parallelism_over_nodes_is_priced_and_slow(case: CaseMaker) -> None:
    inside, across = (priced(case(tensor=ranks)).collectives_s.item() for ranks in (8, 16))
    assert across > 4 * inside


def test_where_embedding_and_head_stand_for_layers_the_ends_hold_fewer(case: CaseMaker) -> None:
    """Llama 3.1 405B: 126 layers on 8 stages are 16 a stage, and 15 at the ends."""
    held, last = stage_layers(case(layers=126, pipeline=8))
    assert (held.item(), last.item()) == (16, 15)
    held, last = stage_layers(case(layers=78, pipeline=12))
    assert (held.item(), last.item()) == (7, 6)


def test_odd_widths_are_slower(case: CaseMaker) -> None:
    """14400 over 8 ranks is no multiple of 64 (BigScience: 94 TFLOP/s where 13824 has 120)."""

    def rate(width: int) -> float:
        cases = case(embed=width, mlp=4 * width, heads=96, head_size=width / 96)
        return width**2 / layer_times(cases, expected(TIME_CONSTANTS)).forward_s.item()

    assert rate(14400) < 0.95 * rate(13824)


@pytest.mark.parametrize("name", ["batch", "sequence", "layers", "embed", "mlp"])
def test_more_work_takes_longer(case: CaseMaker, name: str) -> None:
    base = getattr(case(), name).item()
    times = [priced(case(**{name: base * factor})).total_s.item() for factor in (1, 2, 4)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_many_plans_are_priced_as_each_alone(case: CaseMaker) -> None:
    tensors, microbatches = [1, 2, 4, 8], [1, 2, 4, 8]
    together = priced(case(tensor=tensors, microbatch=microbatches)).total_s
    alone = [
        priced(case(tensor=tensor, microbatch=microbatch)).total_s.item()
        for tensor, microbatch in zip(tensors, microbatches, strict=True)
    ]
    assert together.tolist() == alone
