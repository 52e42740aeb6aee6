import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.runtime.data.packing import EMPTY
from trimtab.runtime.data.samples import SampleIndex, permutation


def run(index, steps, batch, limit=None):
    """Sample ids of some steps, in one list."""
    return list(
        itertools.chain.from_iterable(index.batch_indices(step, batch, limit).tolist() for step in steps)
    )


def test_order_is_pinned():
    """If a release changed the order, every run resumed after it would repeat and skip samples."""
    assert permutation(8, seed=0, epoch=0).tolist() == [5, 6, 7, 4, 0, 1, 3, 2]
    assert permutation(8, seed=7, epoch=3).tolist() == [6, 3, 0, 4, 7, 2, 5, 1]


@given(st.integers(1, 50), st.integers(), st.integers(0, 5))
def test_each_epoch_has_every_sample_once(num_samples, seed, epoch):
    """A sample that is skipped or repeated within an epoch."""
    index = SampleIndex(num_samples, seed)
    ids = index.sample_ids(epoch * num_samples, num_samples)
    assert sorted(ids.tolist()) == list(range(num_samples))


def test_epochs_and_seeds_differ():
    """One order for all epochs is no shuffle."""
    orders = {tuple(permutation(20, seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_second_resume_inside_an_epoch_continues():
    """Resumed at 7 and again at 13: each time the count restarted from the last resume, samples would repeat."""
    whole = run(SampleIndex(100, 0), range(25), batch=4)
    pieces = [run(SampleIndex(100, 0), steps, batch=4) for steps in (range(7), range(7, 13), range(13, 25))]
    assert list(itertools.chain(*pieces)) == whole
    assert sorted(whole) == list(range(100))


def test_resume_in_the_second_epoch_uses_its_own_order():
    """Resumed at batch 75 of 125 in epoch 1 of 3: the order of epoch 0 would be replayed."""
    whole = run(SampleIndex(1000, 5), range(375), batch=8)
    resumed = SampleIndex(1000, 5)
    assert run(resumed, range(200, 375), batch=8) == whole[1600:]
    for epoch in range(3):
        assert sorted(whole[epoch * 1000 : (epoch + 1) * 1000]) == list(range(1000))


def test_save_at_the_epoch_border_keeps_the_number_of_steps():
    """An epoch skipped at the border ends a run with half the updates and success."""
    index = SampleIndex(100, 0)
    steps = index.num_steps(2, batch=10)
    assert steps == 20
    resumed = run(SampleIndex(100, 0), range(10, steps), batch=10)
    assert sorted(resumed) == list(range(100))
    assert resumed == run(index, range(10, 20), batch=10)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (4, 3), (1, 4), (4, 1)])
def test_epoch_goes_on_at_another_world_size(before, after):
    """Saved with four ranks, resumed with two: samples of the ranks that vanished were lost, or read twice."""
    num_samples, batch, saved_at = 120, 12, 4

    def ids_of_ranks(world_size, steps):
        index = [SampleIndex(num_samples, 0) for _ in range(world_size)]
        share = batch // world_size
        return [
            index[rank].sample_ids(step * batch + rank * share, share).tolist()
            for step in steps
            for rank in range(world_size)
        ]

    seen = ids_of_ranks(before, range(saved_at)) + ids_of_ranks(after, range(saved_at, num_samples // batch))
    assert list(itertools.chain(*seen)) == run(SampleIndex(num_samples, 0), range(10), batch)


@pytest.mark.parametrize(
    ("num_samples", "epochs", "batch", "steps"),
    [(160, 1, 64, 3), (48, 1, 64, 1), (10, 3, 4, 8), (10, 1, 1, 10), (30, 0.1, 2, 2), (7, 2.5, 3, 6)],
)
def test_number_of_steps_is_the_formula(num_samples, epochs, batch, steps):
    """The last, short batch is neither dropped nor run at the wrong scale: every sample is used as often as asked."""
    index = SampleIndex(num_samples, 0)
    assert index.num_steps(epochs, batch) == steps
    limit = index.num_positions(epochs)
    ids = run(index, range(steps), batch, limit)
    assert len([i for i in ids if i != EMPTY]) == limit == round(num_samples * epochs)
    assert all(i == EMPTY for i in ids[limit:])
    assert run(index, [steps, steps + 1], batch, limit) == [EMPTY] * (2 * batch)


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("num_samples", range(140, 161))
def test_ranks_agree_on_the_number_of_batches(num_samples, world_size):
    """S-FT-12: 145 samples, 3 ranks, batch 16: one rank out of data before the others hangs the job at the epoch's end."""
    batch = 16 * world_size
    index = SampleIndex(num_samples, 0)
    steps, limit = index.num_steps(1, batch), index.num_positions(1)
    ids = [
        index.sample_ids(step * batch + rank * 16, 16, limit)
        for step in range(steps)
        for rank in range(world_size)
    ]
    assert {len(batch_ids) for batch_ids in ids} == {16}
    used = np.concatenate(ids)
    assert sorted(used[used != EMPTY].tolist()) == list(range(num_samples))


@given(st.integers(1, 30), st.integers(0, 200), st.integers(0, 100), st.none() | st.integers(0, 250))
def test_any_stretch_is_a_stretch_of_the_stream(num_samples, start, count, limit):
    """Whatever a rank asks for, in whatever order, is what a reader from the start would find there."""
    stream = [
        int(i)
        for epoch in range(320 // num_samples + 1)
        for i in permutation(num_samples, seed=3, epoch=epoch)
    ]
    expected = [
        stream[position] if limit is None or position < limit else EMPTY
        for position in range(start, start + count)
    ]
    index = SampleIndex(num_samples, 3)
    index.sample_ids(7 * num_samples, 1)
    assert index.sample_ids(start, count, limit).tolist() == expected


def test_only_two_orders_are_kept():
    """A run of a thousand epochs must not hold a thousand permutations."""
    index = SampleIndex(10, 0)
    index.sample_ids(0, 10)
    assert list(index._orders) == [0], "the next epoch is not shuffled before it is needed"
    run(index, range(100), batch=7)
    assert list(index._orders) == [68, 69]
