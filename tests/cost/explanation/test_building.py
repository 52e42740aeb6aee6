from tests.cost.explanation.conftest import Explain
from trimtab.cost.explanation import document_of
from trimtab.plan.explanation import LevelBytes

THREE_D = """\
MESH pp 2, dp 2, tp 2
SPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 4
SPLIT batch OVER dp
SPLIT heads, mlp, vocab OVER tp
STORE states OVER dp
"""


def test_totals_are_sums_of_their_parts(explain: Explain) -> None:
    """Groups over ranks, collectives over groups: a figure that does not add up is wrong somewhere."""
    plan, found = explain(THREE_D, devices=8)
    assert sum(group.num_ranks for group in found.groups) == plan.mesh.num_devices
    assert sum((group.group_bytes for group in found.groups), LevelBytes()) == found.sent_bytes
    assert found.work is not None
    ranks_flops = sum(group.step_flops.causal * group.num_ranks for group in found.groups)
    assert ranks_flops == found.work.useful_flops.causal
    for group in found.groups:
        for moment in group.memory.moments:
            sizes = document_of(moment.classes)
            assert moment.total_bytes == sum(sizes.values())
        assert group.memory.peak_bytes == max(moment.total_bytes for moment in group.memory.moments)


def test_every_layer_stands_on_one_stage(explain: Explain) -> None:
    """And embedding and head on the ends."""
    _, found = explain(THREE_D, devices=8)
    assert [stage.layers for stage in found.stages] == ["0", "1", "2", "3"]
    assert [stage.parts for stage in found.stages] == [("embedding",), (), (), ("head",)]
    assert [stage.place for stage in found.stages] == [0, 1, 0, 1]
    assert [len(group.stages) for group in found.groups] == [2, 2]


def test_every_collective_names_its_line(explain: Explain) -> None:
    """The line is what a reader changes."""
    _, found = explain(THREE_D, devices=8)
    lines = {facts.reason: facts.decided_by for group in found.groups for facts in group.collectives}
    assert lines["tensor parallelism"] == "run.trim:4"
    assert lines["states stored in pieces"] == "run.trim:5"
    assert lines["pipeline parallelism"] == "run.trim:2"
    assert lines["sum of gradients"] == "run.trim:3"


def test_formulas_are_those_that_were_written(explain: Explain) -> None:
    """A preset's stand there with their values, not with its parameters."""
    _, found = explain("USE 'megatron-tp'(tp = 4)\nRECOMPUTE activations WHERE layer = 0", devices=8)
    texts = [formula.text for formula in found.formulas]
    assert texts[0] == "MESH dp *, tp 4 WITHIN node"
    assert texts[-1] == "RECOMPUTE activations WHERE layer = 0"
    assert found.formulas[-1].at == "run.trim:2"


def test_ranks_are_on_nodes(explain: Explain) -> None:
    """Which machine to look at when rank 37 is named in a log."""
    _, found = explain("MESH dp *", on="64xA100+64xH100", devices=128, batch=128)
    assert [
        (nodes.ranks, nodes.nodes, nodes.ranks_per_node, nodes.accelerator) for nodes in found.where.nodes
    ] == [
        ("0-63", "0-7", 8, "A100-SXM-80GB"),
        ("64-127", "8-15", 8, "H100-SXM-80GB"),
    ]
    assert [group.accelerator for group in found.groups] == ["A100-SXM-80GB", "H100-SXM-80GB"]


def test_microbatches_name_their_line(explain: Explain) -> None:
    """MICROBATCHES goes before train.microbatch, so its line is the one to change."""
    _, found = explain(THREE_D, devices=8)
    assert found.work is not None
    assert found.work.decided_by["train.microbatch"] == "run.trim:2"
