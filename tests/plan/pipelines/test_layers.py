from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.pipelines import Balance, LayersError, LayerWeights, stages_of_layers


def sizes(stages):
    return [stages.count(stage) for stage in range(stages[-1] + 1)]


def loads(stages, weights):
    """What each stage carries, added up naively."""
    total = [0] * (stages[-1] + 1)
    for layer, stage in enumerate(stages):
        total[stage] += weights.layers[layer]
    total[0] += weights.embedding
    total[-1] += weights.head
    return total


def every_way(num_layers, num_stages):
    """All divisions of layers into consecutive stages that are not empty."""
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        ends = (0, *cuts, num_layers)
        yield tuple(stage for stage, (start, end) in enumerate(pairwise(ends)) for _ in range(end - start))


@pytest.mark.parametrize("num_stages", range(1, 9))
def test_every_layer_is_on_exactly_one_stage(num_stages):
    """S-NUM-08: remainder layers that nobody builds train a smaller model without a word."""
    for num_layers in range(1, 41):
        if num_layers < num_stages:
            with pytest.raises(LayersError, match=rf"{num_layers} layers cannot fill {num_stages} stages"):
                stages_of_layers(num_layers, num_stages)
            continue
        stages = stages_of_layers(num_layers, num_stages)
        assert len(stages) == num_layers
        assert list(stages) == sorted(stages)
        assert set(stages) == set(range(num_stages))
        assert max(sizes(stages)) - min(sizes(stages)) <= 1
        assert sizes(stages) == sorted(sizes(stages), reverse=True)


weighted = st.integers(1, 9).flatmap(
    lambda num_layers: st.tuples(
        st.integers(1, num_layers),
        st.builds(
            LayerWeights,
            layers=st.tuples(*[st.integers(0, 20)] * num_layers),
            embedding=st.integers(0, 30),
            head=st.integers(0, 30),
        ),
    )
)


@given(weighted)
def test_the_heaviest_stage_is_as_light_as_can_be(case):
    """The slowest stage decides the speed of all; an answer near the best one costs money every step."""
    num_stages, weights = case
    num_layers = len(weights.layers)
    stages = stages_of_layers(num_layers, num_stages, balance=Balance.PARAMS, weights=weights)

    def unevenness(way):
        return max(loads(way, weights)), sum(load**2 for load in loads(way, weights))

    ways = list(every_way(num_layers, num_stages))
    assert stages in ways
    assert unevenness(stages) == min(map(unevenness, ways))


@given(case=weighted, data=st.data())
def test_layers_placed_by_hand_stay_and_the_others_are_balanced_around_them(case, data):
    """A user who places one layer has not asked to place the rest."""
    num_stages, weights = case
    num_layers = len(weights.layers)
    wanted = data.draw(st.sampled_from(list(every_way(num_layers, num_stages))))
    by_hand = data.draw(st.sets(st.integers(0, num_layers - 1)))
    placed = {layer: wanted[layer] for layer in by_hand}
    stages = stages_of_layers(num_layers, num_stages, balance=Balance.TIME, weights=weights, placed=placed)
    assert {layer: stages[layer] for layer in by_hand} == placed
    ways = [
        way
        for way in every_way(num_layers, num_stages)
        if all(way[layer] == stage for layer, stage in placed.items())
    ]
    assert max(loads(stages, weights)) == min(max(loads(way, weights)) for way in ways)


def test_equal_times_that_no_float_holds_exactly_are_equal():
    """Sums of 0.1 differ in their last bits; layers that take the same time must not be told apart by them."""
    weights = LayerWeights(layers=(0.1,) * 30)
    stages = stages_of_layers(30, 4, balance=Balance.TIME, weights=weights)
    assert sizes(stages) == [8, 8, 7, 7]


def test_a_heavy_head_gets_a_stage_with_fewer_layers():
    """What BLOOM did by hand for a vocabulary of 250,000."""
    weights = LayerWeights(layers=(1.0,) * 12, embedding=1.5, head=2.5)
    assert sizes(stages_of_layers(12, 4, balance=Balance.TIME, weights=weights)) == [3, 4, 4, 1]


def test_a_large_network_on_many_stages_is_balanced_at_once():
    """126 layers of Llama 3 405B on 16 ranks of 7 stages: explain must stay under half a second."""
    layers = tuple(3_154_132_992 + 1000 * layer for layer in range(126))
    weights = LayerWeights(layers=layers, embedding=2_101_346_304, head=2_101_362_688)
    stages = stages_of_layers(126, 112, balance=Balance.PARAMS, weights=weights)
    assert max(loads(stages, weights)) == layers[27] + layers[28]


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ({9: 0}, "layer 9 is placed on stage 0; layers are 0 to 7"),
        ({2: 4}, "layer 2 is placed on stage 4; stages are 0 to 3"),
        ({3: 2, 5: 1}, "layer 5 is placed on stage 1, but layer 3 before it on stage 2"),
        ({0: 1}, "layer 0 is placed on stage 1: before it, layers left: 0, stages to fill: 1"),
        ({7: 2}, "layer 7 is placed on stage 2: after it, layers left: 0, stages to fill: 1"),
        (
            {3: 0, 4: 3},
            "layer 3 is placed on stage 0 and layer 4 on stage 3: between them, layers left: 0, stages to fill: 2",
        ),
        ({0: 0, 2: 1, 4: 0}, "layer 4 is placed on stage 0, but layer 2 before it on stage 1"),
    ],
)
def test_a_placement_that_cannot_hold_names_the_layer(placed, message):
    """S-CFG-06: a list that does not add up must not lose to a default in silence."""
    with pytest.raises(LayersError) as caught:
        stages_of_layers(8, 4, placed=placed)
    assert message in str(caught.value)
