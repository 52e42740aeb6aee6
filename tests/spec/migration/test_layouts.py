"""Degrees and the axes that they become."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from trimtab.spec.migration.layouts import Layout, microbatch_warning

DEGREES = st.integers(min_value=1, max_value=4)


@given(pp=DEGREES, replica=DEGREES, dp=DEGREES, ep=DEGREES, cp=DEGREES, tp=DEGREES)
def test_the_mesh_holds_all_devices_and_every_axis_that_is_named(pp, replica, dp, ep, cp, tp):
    """A mesh of another size is refused by the loader, and so is an axis that it lacks."""
    layout = Layout(pp=pp, replica=replica, dp=dp * ep, ep=ep, cp=cp, tp=tp)
    assert layout.devices == pp * replica * dp * ep * cp * tp
    axes = dict(re.findall(r"(\w+) ([0-9]+|\*)", layout.mesh.removeprefix("MESH ")))
    assert list(axes.values()).count("*") == 1
    assert layout.devices % math.prod(int(size) for size in axes.values() if size != "*") == 0
    assert {*layout.batch_axes, *layout.sum_axes, *layout.shard_axes} <= axes.keys()
    assert list(axes) == [axis for axis in ("pp", "replica", "dp", "ep", "cp", "tp") if axis in axes]


def test_the_batch_is_split_over_what_holds_data():
    """Parts of a sequence are no parts of the batch, but their gradients are summed too."""
    layout = Layout(replica=2, dp=8, ep=4, cp=2, tp=2)
    assert layout.batch_axes == ("replica", "dp", "ep")
    assert layout.sum_axes == ("replica", "dp", "ep", "cp")
    assert layout.shard_axes == ("dp", "ep", "cp")


def test_a_pipeline_without_enough_microbatches_is_told():
    """Elsewhere it idles; here it is refused."""
    assert microbatch_warning(Layout(pp=4), 4) == []
    (warning,) = microbatch_warning(Layout(pp=4), 1)
    assert "train.batch larger" in warning


def test_parts_of_experts_follow_from_their_axis():
    """A stand-in needs as many experts."""
    assert Layout(dp=8, ep=4, cp=2, experts_over=("ep",)).expert_parts == 4
    assert Layout(cp=2, experts_over=("cp",)).expert_parts == 2
    assert Layout(dp=8).expert_parts == 1
