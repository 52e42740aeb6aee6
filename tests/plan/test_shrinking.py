"""Is a job made small still the same job?"""

import pytest

from trimtab.catalog import Network, network
from trimtab.plan.shrinking import SEQUENCE, shrunk_mesh, shrunk_program, shrunk_training
from trimtab.plan.training import Training
from trimtab.spec import Mesh, parse_strategy
from trimtab.spec.language import MeshStatement, SplitStatement


def _training(net: Network) -> Training:
    return Training(
        network=net, batch=512, microbatch=1, sequence=4096, shares=16, compute="bf16", num_states=2
    )


def test_every_axis_keeps_two_ranks() -> None:
    """An axis of one rank cannot show a sum that is missing over it."""
    mesh = Mesh(axes=(("pp", 8), ("dp", 16), ("tp", 8), ("one", 1)))
    assert shrunk_mesh(mesh, 16).axes == (("pp", 2), ("dp", 2), ("tp", 2), ("one", 1))


def test_axes_beyond_the_limit_keep_one_rank() -> None:
    """More processes than a machine bears would say nothing."""
    mesh = Mesh(axes=tuple((name, 4) for name in "abc"))
    assert shrunk_mesh(mesh, 4).axes == (("a", 2), ("b", 2), ("c", 1))


def test_statements_follow_the_mesh() -> None:
    """A stage that is no longer there, or a condition that matches nothing now, is no mistake of the user."""
    text = "MESH pp 8, dp 4\nSPLIT layers OVER pp MICROBATCHES 64\nPLACE layers BETWEEN 0 AND 3 ON pp 5"
    program = shrunk_program(parse_strategy(text, source="x"), Mesh(axes=(("pp", 2), ("dp", 2))))
    mesh, split = program.statements
    assert isinstance(mesh, MeshStatement)
    assert isinstance(split, SplitStatement)
    assert [(axis.axis.text, axis.size) for axis in mesh.axes] == [("pp", 2), ("dp", 2)]
    assert split.microbatches == 4
    assert split.if_any


def test_a_window_stays_one() -> None:
    """Attention that sees everything says nothing about a mask of the wrong width."""
    mesh = Mesh(axes=(("dp", 2),))
    windowed = network("llama-3m", window=100, full_layers=3)
    small = shrunk_training(_training(windowed), mesh, replicas=2, layers=2).network
    assert 0 < small.window < SEQUENCE
    assert [small.window_of(layer) for layer in range(2)] == [None, small.window]


@pytest.mark.parametrize("name", ["llama2-70b", "gpt-3m", "mixtral-8x7b"])
def test_ratios_that_decide_layouts_stay(name: str) -> None:
    """A network whose heads no longer share keys is another program."""
    large = network(name)
    mesh = Mesh(axes=(("dp", 2), ("tp", 2)))
    small = shrunk_training(_training(large), mesh, replicas=2, layers=4).network
    assert small.layers == 4
    assert (small.heads > small.kv_heads) == (large.heads > large.kv_heads)
    assert bool(small.experts) == bool(large.experts)
    assert (small.tied, small.norm, small.positions) == (large.tied, large.norm, large.positions)
    assert small.kv_heads % 4 == 0
    assert small.num_parameters() < 1_000_000


def test_there_are_microbatches_for_every_stage_schedule() -> None:
    """A schedule that is refused verifies nothing."""
    mesh = Mesh(axes=(("pp", 2), ("dp", 2)))
    small = shrunk_training(_training(network("gpt-3m")), mesh, replicas=2, layers=4)
    assert (small.batch, small.microbatch, small.sequence, small.shares) == (8, 1, SEQUENCE, None)
