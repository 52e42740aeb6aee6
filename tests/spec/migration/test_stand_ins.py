"""Small networks that stand in for others."""

import pytest

from tests.spec.migration.conftest import NETWORKS
from trimtab.catalog import changed_network, network
from trimtab.spec.migration.layouts import Layout
from trimtab.spec.migration.stand_ins import stand_in


def build(model):
    changes = {key.removeprefix("model."): value for key, value in model.items()}
    return changed_network(network(changes.pop("preset")), changes)


@pytest.mark.parametrize("tp", [1, 2, 8, 16, 3])
@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("has_experts", [False, True])
def test_heads_fall_into_as_many_parts_as_there_are(tp, cp, has_experts):
    """A job that cannot be divided does not run as it is."""
    found = build(stand_in(Layout(tp=tp, cp=cp), NETWORKS, has_experts=has_experts))
    assert found.heads % (tp * cp) == 0
    assert found.kv_heads % (tp * cp) == 0


def test_experts_are_enough_for_their_axis():
    """Each device has one at least."""
    layout = Layout(dp=16, ep=16, experts_over=("ep",))
    assert build(stand_in(layout, NETWORKS)).experts == 16


def test_layers_are_enough_for_the_stages():
    """A stage without a layer is refused."""
    assert build(stand_in(Layout(pp=8), NETWORKS, fewest_layers=16)).layers == 16


def test_a_network_that_fits_stays_as_it_is():
    """Changes that nobody needs are noise."""
    assert stand_in(Layout(dp=8), NETWORKS) == {"model.preset": "gpt-3m"}
    assert stand_in(Layout(tp=8), {}) == {"model.preset": "gpt-3m"}
