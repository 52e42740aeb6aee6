"""Texts that nobody would write end in our error, in no time; `bench/fuzz_language.py` tries a million."""

import pytest

from tests.spec.language.fuzzing import HANG_S, fuzz

INPUTS = 5000


def test_no_text_breaks_the_compiler() -> None:
    """Otherwise a slip of a finger is answered with a traceback, or with nothing."""
    outcome = fuzz(seed=20261130, inputs=INPUTS)
    print(
        f"accepted: {outcome.num_noise_accepted} of {outcome.num_noise} noise, "
        f"{outcome.num_damaged_accepted} of {outcome.num_damaged} programs; "
        f"worst {outcome.worst_s * 1e3:.1f} ms for {len(outcome.worst_text)} characters"
    )
    assert outcome.failures == []
    assert outcome.num_noise + outcome.num_damaged == INPUTS
    assert outcome.worst_s < HANG_S
    # Inputs that are all refused at their first word would try nothing.
    assert outcome.num_damaged_accepted > outcome.num_damaged / 10


def _breaks(text: str) -> None:
    if "MESH" in text:
        raise RecursionError("planted")


def _hangs(text: str) -> None:
    raise TimeoutError("planted")


@pytest.mark.parametrize("broken", [_breaks, _hangs])
def test_a_planted_bug_is_found(broken) -> None:
    """Otherwise the fuzz finds nothing, whatever there is."""
    outcome = fuzz(seed=1, inputs=100, compile_text=broken)
    assert outcome.failures
    assert "planted" in outcome.failures[0]
