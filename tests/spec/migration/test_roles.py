"""What the axes of a mesh are for."""

import pytest

from trimtab.spec import load_job
from trimtab.spec.migration.roles import find_roles, has_levels

JOB = """\
run: small
model: {preset: moe-3m}
data: {text: python-stdlib}
train: {steps: 10}
orchestration: {devices: 32}
parallelism: |
"""

SPLITS = (
    "SPLIT sequence OVER cp USING ring",
    "SPLIT batch OVER dp, ep",
    "SPLIT heads, mlp OVER tp",
    "SPLIT sequence OF activations WHERE kind = 'residual' OVER tp",
    "SPLIT experts OVER ep",
    "SPLIT layers OVER pp",
)


def job(mesh, *formulas):
    text = JOB + "".join(f"  {formula}\n" for formula in (mesh, *formulas))
    return load_job(text, source="job.yaml", read=lambda path: "")


def test_each_axis_has_its_role():
    """Degrees of other systems are counted by role."""
    roles = find_roles(job("MESH pp 2, dp *, ep 2, cp 2, tp 2", *SPLITS))
    assert (roles.stages, roles.batch, roles.experts) == (("pp",), ("dp", "ep"), ("ep",))
    assert (roles.context, roles.tensor) == (("cp",), ("tp",))
    assert roles.sums == ("dp", "ep", "cp")
    assert roles.size(roles.sums) == 8
    assert roles.unused == ()


@pytest.mark.parametrize(
    ("mesh", "is_as_there", "is_with_stages_inside"),
    [
        ("MESH pp 2, dp *, ep 2, cp 2, tp 2", True, False),
        ("MESH dp *, ep 2, pp 2, cp 2, tp 2", False, True),
        ("MESH pp 2, dp *, ep 2, tp 2, cp 2", False, False),
    ],
)
def test_the_order_in_which_ranks_are_numbered(mesh, is_as_there, is_with_stages_inside):
    """Another order has other neighbours."""
    roles = find_roles(job(mesh, *SPLITS))
    assert roles.has_order() is is_as_there
    assert roles.has_order(stages_inside=True) is is_with_stages_inside


def test_what_only_we_divide_has_no_role():
    """Its devices would have data of their own elsewhere."""
    roles = find_roles(job("MESH dp *, x 2", "SPLIT batch OVER dp", "SPLIT embed OVER x"))
    assert roles.unused == ("x",)


def test_levels_are_seen():
    """Other systems cannot demand them."""
    assert has_levels(job("MESH dp *, tp 2 WITHIN node", "SPLIT batch OVER dp", "SPLIT heads, mlp OVER tp"))
    assert not has_levels(job("MESH dp *", "SPLIT batch OVER dp"))
