"""What is read from a row of a measured run, and what is refused."""

import pytest

from trimtab.catalog import published_runs
from trimtab.cost.calibration import MeasuredRun, measured_runs
from trimtab.cost.calibration.rows import model_flops
from trimtab.terms import InputError


def row(**changes: str) -> dict[str, str]:
    """Narayanan et al. 2021, GPT 1.7B, changed."""
    return {**published_runs()[0], **changes}


def read(**changes: str) -> MeasuredRun:
    return measured_runs([row(**changes)])[0]


def test_most_published_rows_can_be_scored(runs: tuple[MeasuredRun, ...]) -> None:
    assert len(runs) == 2376
    assert sum(run.problem == "" for run in runs) >= 0.85 * len(runs)
    assert all(run.problem or run.columns for run in runs)


def test_flops_of_a_step_are_those_that_its_source_counted() -> None:
    """Table 1 of Narayanan et al. 2021 counts 96 B s l h^2 (1 + s/6h + V/16lh), full recompute included in the layers."""
    run = read()
    layers, width, sequence, vocab, batch = 24, 2304, 2048, 51200, 512
    published = 96 * batch * sequence * layers * width**2
    assert model_flops(run.columns) == pytest.approx(
        published * (3 / 4) * (1 + sequence / (6 * width)) + 6 * batch * sequence * width * vocab, rel=1e-9
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mbs": ""}, "not stated: mbs"),
        ({"layers": "", "params_b": ""}, "not stated: layers"),
        ({"accel": "H900"}, "unknown device 'H900'"),
        ({"tp": "0"}, "not above 0: tp"),
        ({"note": "DIMS INCONSISTENT in source"}, "degrees do not multiply"),
        ({"outcome": "oom"}, "ran out of memory"),
        ({"iter_time_s": "1.0"}, "of the declared peak"),
        ({"derived_iter_time_s": "", "tflops_per_accel": ""}, "no time"),
    ],
)
def test_a_row_that_cannot_be_scored_says_why(changes: dict[str, str], problem: str) -> None:
    assert problem in read(**changes).problem


def test_a_step_follows_from_model_flops_a_second() -> None:
    run = read(derived_iter_time_s="", tflops_per_accel="100", tflops_kind="model")
    assert run.step_s == pytest.approx(model_flops(run.columns) / (100e12 * 32))


def test_columns_that_are_not_there_are_named() -> None:
    lacking = row()
    del lacking["mbs"], lacking["vocab"]
    with pytest.raises(InputError, match=r"columns that were not found: vocab, mbs\n  found: row_id, source"):
        measured_runs([lacking])


def test_a_field_that_is_no_number_is_named() -> None:
    with pytest.raises(InputError, match=r"row 'D0001' of measured runs: tp is 'eight'; it must be a number"):
        read(tp="eight")


def test_a_shape_that_a_source_leaves_to_the_model_card_is_filled_in(runs: tuple[MeasuredRun, ...]) -> None:
    """Qwen3 30B A3B has 30.5e9 parameters (its model card)."""
    found = next(
        run for run in runs if run.source == "Megatron-Bridge-docs" and run.columns.get("top_k") == 8
    )
    assert found.columns["experts"] in (128, 256)
    assert found.columns["head_size"] != found.columns["embed"] / found.columns["heads"]
