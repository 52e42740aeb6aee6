"""Is a difference called what it is, and nothing else?"""

import numpy as np
import pytest

from trimtab.runtime.lowering.diagnosis import Diagnosis, Floats, Looks, Number
from trimtab.runtime.lowering.extents import Layouts
from trimtab.spec import Mesh

MESH = Mesh(axes=(("dp", 2), ("tp", 2)))
DIAGNOSIS = Diagnosis(MESH, Layouts(MESH))
CHANCE = np.random.Generator(np.random.PCG64(1))
WHOLE: dict[int, Floats] = dict.fromkeys(range(4), CHANCE.normal(size=(20, 8)))


def _noisy(part: float) -> dict[int, Floats]:
    """Everywhere another error, of a part of the size."""
    return {rank: array + part * CHANCE.normal(size=array.shape) for rank, array in WHOLE.items()}


@pytest.mark.parametrize("part", [0.01, 1.0])
def test_noise_has_no_ratio_and_no_order(part: float) -> None:
    """A cause that is told of anything sends people the wrong way; ranks that differ are told all the same."""
    looks = DIAGNOSIS.of(_noisy(part), WHOLE, before=_noisy(3.0))
    assert (looks.ratio, looks.ratios) == (None, None)
    assert looks.cause.startswith("ranks along dp hold different values")


def test_the_same_error_on_all_ranks_is_not_explained() -> None:
    """Nothing is known of it, and nothing is said."""
    wrong = WHOLE[0] + 0.1 * CHANCE.normal(size=WHOLE[0].shape)
    assert DIAGNOSIS.of(dict.fromkeys(range(4), wrong), WHOLE) == Looks()


def test_a_number_of_the_plan_is_told_before_an_axis_that_has_no_part_in_it() -> None:
    """Two microbatches and two ranks of dp: a tensor that nobody sums over dp was not divided by its ranks."""
    microbatches = Number(count=2, what="microbatches of a share", line=None)
    halved = {rank: array / 2 for rank, array in WHOLE.items()}
    assert "2 microbatches" in DIAGNOSIS.of(halved, WHOLE, numbers=[microbatches]).cause
    looks = DIAGNOSIS.of(halved, WHOLE, first=["dp"], numbers=[microbatches])
    assert looks.axis == "dp"


def test_elements_that_are_almost_all_equal_have_no_order() -> None:
    """Weights of norms are near one: sorted or not, they are near those of one device."""
    ones = dict.fromkeys(range(4), np.ones(64))
    moved = {rank: array + 1e-4 * CHANCE.normal(size=array.shape) for rank, array in ones.items()}
    assert "places" not in DIAGNOSIS.of(moved, ones).cause
