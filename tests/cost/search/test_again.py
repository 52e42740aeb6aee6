"""What is computed again: the choice against every choice."""

import random
from itertools import product

import pytest

from trimtab.cost.search.again import Alike, Way, least_time


def least_of_all(groups: list[Alike], room_bytes: int) -> float | None:
    """By trying every way for every layer."""
    layers = [group.ways for group in groups for _ in range(group.count)]
    fitting = [
        sum(way.seconds for way in chosen)
        for chosen in product(*layers)
        if sum(way.kept_bytes for way in chosen) <= room_bytes
    ]
    return min(fitting, default=None)


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_is_better(seed: int) -> None:
    """Dense layers beside others, three ways each, up to 7 layers: the same time as the best of all choices."""
    generator = random.Random(seed)
    groups = [
        Alike(
            count=generator.randint(1, 4),
            ways=(
                Way(seconds=0.0, kept_bytes=generator.randint(50, 99)),
                *(
                    Way(seconds=generator.uniform(0.1, 2), kept_bytes=generator.randint(1, 60))
                    for _ in range(generator.randint(1, 2))
                ),
            ),
        )
        for _ in range(2)
    ]
    largest = sum(group.count * max(way.kept_bytes for way in group.ways) for group in groups)
    for room in (0, largest // 4, largest // 2, 3 * largest // 4, largest):
        found, wanted = least_time(groups, room), least_of_all(groups, room)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            seconds, chosen = found
            assert seconds == pytest.approx(wanted, rel=1e-12)
            ways = [
                (way, count)
                for group, counts in zip(groups, chosen, strict=True)
                for way, count in zip(group.ways, counts, strict=True)
            ]
            assert [sum(counts) for counts in chosen] == [group.count for group in groups]
            assert sum(way.seconds * count for way, count in ways) == pytest.approx(seconds)
            assert sum(way.kept_bytes * count for way, count in ways) <= room


def test_a_mix_beats_one_way_for_all() -> None:
    """Cheapest byte first is not enough: the last layer takes the way that just fits."""
    ways = (Way(seconds=0.0, kept_bytes=100), Way(seconds=1.0, kept_bytes=40), Way(seconds=1.5, kept_bytes=0))
    found = least_time([Alike(count=2, ways=ways)], 140)
    assert found == (1.0, ((1, 1, 0),))


def test_126_layers_take_no_time() -> None:
    """As many as Llama 3.1 405B has, five ways each."""
    ways = tuple(
        Way(seconds=seconds, kept_bytes=size)
        for seconds, size in ((0.0, 1000), (0.01, 881), (0.28, 743), (0.31, 612), (0.71, 113))
    )
    found = least_time([Alike(count=126, ways=ways)], 126 * 500)
    assert found is not None
    assert sum(found[1][0]) == 126
