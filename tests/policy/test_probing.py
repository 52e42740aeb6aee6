"""Who checks whom, and who lies: values in, a name out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy.probing import (
    Probe,
    differing_replicas,
    judge,
    plan_probes,
    probed_shares,
    suspicious_norm,
)

PROBE = Probe(share=4, owner=0, checker=1, arbiter=2)


def test_shares_are_probed_at_the_rate_that_was_asked_for() -> None:
    """The cost is what the job file says."""
    num = sum(len(probed_shares(seed=3, step=step, num_shares=16, rate=0.1)) for step in range(2_000))
    assert num == pytest.approx(3_200, rel=0.1)
    assert probed_shares(seed=3, step=7, num_shares=16, rate=0.0) == ()


@given(st.integers(2, 9), st.integers(0, 99), st.data())
def test_nobody_checks_or_judges_itself_where_there_are_three(
    size: int, step: int, data: st.DataObject
) -> None:
    """A rank that answers for itself gives the same wrong bits."""
    members = tuple(range(0, 2 * size, 2))
    owners = tuple(data.draw(st.sampled_from(members)) for _ in range(12))
    for probe in plan_probes(range(12), owners, members, step=step):
        assert probe.owner == owners[probe.share]
        assert probe.checker in members
        assert probe.checker != probe.owner
        assert probe.arbiter in members
        if size > 2:
            assert probe.arbiter not in (probe.owner, probe.checker)
        else:
            assert probe.arbiter == probe.owner


def test_every_pair_of_ranks_meets() -> None:
    """Two ranks that are wrong alike would otherwise confirm each other for ever."""
    owners = (0, 1, 2, 3)
    pairs = {
        (p.owner, p.checker)
        for step in range(3)
        for p in plan_probes(range(4), owners, (0, 1, 2, 3), step=step)
    }
    assert len(pairs) == 12


def test_one_rank_alone_is_not_probed_and_shares_of_nobody_are_left_out() -> None:
    """There is nobody to compare with."""
    assert plan_probes(range(4), (5,) * 4, (5,), step=0) == ()
    assert [p.share for p in plan_probes(range(4), (0, -1, 1, 0), (0, 1), step=0)] == [0, 2, 3]


@pytest.mark.parametrize(
    ("probe", "answers", "liar"),
    [
        (PROBE, (7, 8, 8), 0),
        (PROBE, (7, 8, 7), 1),
        (PROBE, (7, 8, 9), None),
        (Probe(share=4, owner=0, checker=1, arbiter=0), (7, 8, 8), 0),  # right when it computes again
        (Probe(share=4, owner=0, checker=1, arbiter=0), (7, 8, 7), None),  # it insists: one of two is wrong
    ],
)
def test_the_third_answer_decides(probe: Probe, answers: tuple[int, int, int], liar: int | None) -> None:
    """Killing the rank that is right would keep the one that lies."""
    owner, checker, arbiter = answers
    verdict = judge(probe, owner=owner, checker=checker, arbiter=arbiter)
    assert verdict.liar == liar
    assert "share 4" in verdict.reason


@pytest.mark.parametrize(
    ("digests", "liar", "words"),
    [
        ({0: 1, 1: 1, 2: 5}, 2, "rank 2 differs"),
        ({0: 5, 1: 1, 2: 1, 3: 1}, 0, "rank 0 differs"),
        ({0: 5, 1: 1}, None, "rank 0 and rank 1 hold different"),
        ({0: 5, 1: 5, 2: 1, 3: 1}, None, "no majority"),
    ],
)
def test_the_majority_of_replicas_is_right(digests: dict[int, int], liar: int | None, words: str) -> None:
    """And without one nobody is."""
    verdict = differing_replicas(digests)
    assert verdict is not None
    assert verdict.liar == liar
    assert words in verdict.reason


def test_equal_replicas_are_no_reason() -> None:
    """A false alarm costs a healthy rank its life."""
    assert differing_replicas({0: 3, 2: 3, 7: 3}) is None


def test_a_norm_is_suspicious_when_it_is_known_what_is_ordinary() -> None:
    """The first steps of a run fall steeply, and one that is not finite must not move the median."""
    assert suspicious_norm([1.0, 2.0, 3.0]) == math.inf
    assert suspicious_norm([1.0, 2.0, math.inf, 3.0, 2.0]) == 10.0
