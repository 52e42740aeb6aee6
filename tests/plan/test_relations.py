"""The relations of a plan, against the plan's own document and against figures worked out by hand."""

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trimtab.catalog import cluster, network
from trimtab.plan.compiling import Training, compile_program
from trimtab.plan.devices import Device
from trimtab.plan.document import plan_document
from trimtab.plan.meshes import coordinates
from trimtab.plan.physical import Plan
from trimtab.plan.relations.every_relation import PLAN_SCHEMAS, plan_relations
from trimtab.plan.relations.flows import Reach, reach_of
from trimtab.plan.tables import COLUMNS, Table
from trimtab.spec import Program, parse_strategy, resolve_mesh
from trimtab.terms import ColumnType

GOLDEN = Path(__file__).parents[1] / "golden" / "plan" / "relations.txt"
Row = dict[str, Any]

TENSORS = "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp"
SEQUENCE = f"{TENSORS}\nSPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp"
PROGRAMS = {
    "nothing": ("", {}),
    "tensors": (f"{SEQUENCE}\nSTORE states OVER dp\nKEEP params IN bf16\nOFFLOAD states TO host", {}),
    "zero3": ("STORE params, grads, states OVER dp", {}),
    "ulysses": ("MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ulysses", {}),
    "ring": ("MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ring\nREDUCE grads OVER dp, cp USING tree", {}),
    "pipeline": ("MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 2\nPLACE layers BETWEEN 0 AND 0 ON pp 0", {}),
    "experts": ("MESH dp 2, ep 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep", {"net": "moe-3m"}),
    "average": ("MESH site 2, dp 2\nAVERAGE params OVER site EVERY 64 STEPS USING nesterov(0.7)", {}),
    "recompute": ("RECOMPUTE activations WHERE layer % 2 = 0\nCOMPUTE layers WHERE layer = 1 IN bf16", {}),
    "groups": (f"{TENSORS}\nREDUCE grads OVER dp\nREDUCE grads OVER dp USING tree ON rank IN (0, 2)", {}),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A plan with its relations as rows by name."""

    plan: Plan
    program: Program

    def table(self, name: str) -> list[Row]:
        relation = next(found for found in plan_relations(self.plan, self.program) if found.name == name)
        names = [column.name for column in relation.columns]
        return [dict(zip(names, row, strict=True)) for row in relation.rows()]

    def row(self, table: str, **wanted: object) -> Row:
        (found,) = (row for row in self.table(table) if wanted.items() <= row.items())
        return found


def compiled(
    text: str, *, net: str = "gpt-3m", devices: int = 4, where: str = "64xA100", **changes: Any
) -> Compiled:
    program = parse_strategy(text, source="x.trim")
    settings = {
        "batch": 32,
        "microbatch": 2,
        "sequence": 128,
        "shares": None,
        "compute": "fp32",
        "num_states": 2,
    }
    training = Training(network=network(net), **{**settings, **changes})
    mesh = resolve_mesh(program, devices)
    plan = compile_program(program, training, mesh=mesh, cluster=cluster(where))
    return Compiled(plan=plan, program=program)


@pytest.fixture(scope="module", params=PROGRAMS)
def any_plan(request: pytest.FixtureRequest) -> Compiled:
    text, changes = PROGRAMS[request.param]
    return compiled(text, **changes)


_PYTHON = {
    ColumnType.TEXT: str,
    ColumnType.INTEGER: int,
    ColumnType.BIG_INTEGER: int,
    ColumnType.REAL: float,
    ColumnType.BOOLEAN: bool,
}


def test_every_cell_has_the_type_of_its_column(any_plan: Compiled) -> None:
    """A text among numbers would end a question in the middle."""
    for relation in plan_relations(any_plan.plan, any_plan.program):
        for row in relation.rows():
            for column, cell in zip(relation.columns, row, strict=True):
                assert cell is None or type(cell) is _PYTHON[column.type], (relation.name, column.name, cell)
                assert column.type is not ColumnType.INTEGER or cell is None or abs(cell) < 2**63


def test_relations_are_those_that_are_declared(any_plan: Compiled) -> None:
    """The page and the errors speak of the declared ones."""
    relations = plan_relations(any_plan.plan, any_plan.program)
    assert [relation.name for relation in relations] == [schema.name for schema in PLAN_SCHEMAS]
    for relation in relations:
        folded = [column.name.casefold() for column in relation.columns]
        assert len(set(folded)) == len(folded)


def test_the_columns_of_every_relation() -> None:
    """Saved queries name them; TRIMTAB_REGENERATE=1 writes the file."""
    lines = []
    for schema in PLAN_SCHEMAS:
        lines.append(f"{schema.name}: {schema.meaning}")
        lines += [f"  {column.name} ({column.type}): {column.meaning}" for column in schema.columns]
    text = "\n".join(lines) + "\n"
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_a_condition_can_be_tried_out_before_it_is_a_formula() -> None:
    """What WHERE compares in a formula, WHERE compares in a query: same columns, same values."""
    found = compiled(f"{SEQUENCE}\nKEEP params IN bf16")
    for table in Table:
        of_plan = {row["name"]: row for row in found.table(table.value)}
        for row in found.plan.bound.rows[table].values():
            shown = of_plan[row.name]
            named = [column for column in COLUMNS if column in shown]
            assert {"name", "layer", "kind", "dims", "shape", "numel", "bytes", "dtype", "stage"} <= set(
                named
            )
            assert [shown[column] for column in named] == [row.value(column) for column in named]


# What ranks hold.


def test_data_parallel_ranks_hold_everything() -> None:
    """3,356,160 parameters in fp32, the same of gradients, twice that of AdamW's moments."""
    numel = network("gpt-3m").num_parameters()
    for row in compiled("").table("ranks"):
        assert (row["param_bytes"], row["grad_bytes"], row["state_bytes"]) == (
            4 * numel,
            4 * numel,
            8 * numel,
        )
        assert row["host_bytes"] == 0


def test_stored_pieces_are_counted_as_they_are_padded() -> None:
    """ZeRO-3: pieces begin at multiples of 16 elements, so the last of each tensor may be padded."""
    tensors = network("gpt-3m").tensors()
    piece = sum(math.ceil(tensor.numel / (4 * 16)) * 16 for tensor in tensors)
    for row in compiled("STORE params, grads, states OVER dp").table("ranks"):
        assert (row["param_bytes"], row["grad_bytes"], row["state_bytes"]) == (
            4 * piece,
            4 * piece,
            8 * piece,
        )


def test_what_is_offloaded_counts_on_the_host() -> None:
    """The question is whether a card is large enough."""
    numel = network("gpt-3m").num_parameters()
    row = compiled("OFFLOAD states TO host").table("ranks")[0]
    assert (row["state_bytes"], row["host_bytes"]) == (0, 8 * numel)


def test_a_tied_matrix_is_held_by_both_ends_of_a_pipeline() -> None:
    """Two stages use it; each has a copy."""
    found = compiled("MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 2")
    held = {row["stages"]: row["param_bytes"] for row in found.table("ranks")}
    embedding = found.row("params", name="embedding.weight")["bytes"]
    assert sum(held.values()) == 4 * network("gpt-3m").num_parameters() + embedding


def test_the_first_stage_of_a_pipeline_keeps_most_activations() -> None:
    """1F1B on two ranks: two microbatches are under way on the first stage, one on the last."""
    found = compiled("MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 4")
    layers = {row["stage"]: row["kept_bytes"] for row in found.table("layers")}
    first, last = (found.row("ranks", rank=rank)["activation_bytes"] for rank in (0, 2))
    tokens = 4 * 128  # samples of a microbatch times their length
    assert first == 2 * (
        2 * layers[0] + 8 * tokens
    )  # two layers each, and the tokens that the embedding keeps
    # The head keeps what arrives, the final norm and 256 logits a token, in fp32, and the targets.
    assert last == 2 * layers[1] + tokens * (3 * 256 * 4 + 8)


def test_recomputed_activations_are_not_kept() -> None:
    """That is what RECOMPUTE is for."""
    found = compiled("RECOMPUTE activations WHERE layer = 0")
    again, kept = (found.row("layers", layer=layer) for layer in (0, 1))
    assert again["recomputed"] == sum(row["layer"] == 0 for row in found.table("activations"))
    assert kept["recomputed"] == 0
    assert again["kept_bytes"] < kept["kept_bytes"] / 5


def test_an_activation_lies_as_its_row_says_even_where_a_copy_is_used() -> None:
    """Under Ulysses attention works on heads; its row is cut along the sequence all the same."""
    found = compiled("MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ulysses")
    row = found.row("activations", name="layers.1.attention.out")
    assert row["placements"] == "split batch over dp, split sequence over cp"
    assert row["local_bytes"] == 2 * 64 * 256 * 4
    assert row["split_line"] == "default, x.trim:2"


def test_experts_stand_where_their_axis_puts_them() -> None:
    """Eight experts over two ranks: four each."""
    found = compiled("MESH dp 2, ep 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep", net="moe-3m")
    rows = [row for row in found.table("experts") if row["layer"] == 0]
    assert [row["place"] for row in rows] == [0] * 4 + [1] * 4
    assert {row["axis"] for row in rows} == {"ep"}
    assert [row["axis"] for row in compiled("", net="moe-3m").table("experts")][:1] == [None]


def test_stages_add_up_to_the_network() -> None:
    """FLOPs are those that the catalog counts, over all tokens of a step."""
    found = compiled("MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 2")
    stages = found.table("stages")
    assert sum(row["flops"] for row in stages) == 32 * 128 * network("gpt-3m").flops_per_token(
        128, causal=True
    )
    assert [(row["layers"], row["first_layer"], row["last_layer"]) for row in stages] == [
        (2, 0, 1),
        (2, 2, 3),
    ]
    assert [(row["has_embedding"], row["has_head"]) for row in stages] == [(True, False), (False, True)]


# What ranks send.


def sent_by_document(plan: Plan) -> Mapping[int, float]:
    """Bytes that each rank sends in a step, from the document that other programs read."""
    sent: Counter[int] = Counter()
    axis = plan.pipeline.axis
    for traffic in plan_document(plan)["traffic"]:
        for rank, size in traffic["sent_bytes"].items():
            place = coordinates(plan.mesh, int(rank))[axis] if axis else 0
            sent[int(rank)] += size * traffic["runs"].get(str(place), 0)
    return sent


def test_all_tables_tell_the_same_traffic(any_plan: Compiled) -> None:
    """Bytes by collective, by rank, by pair and by level are one amount, cut in different ways."""
    ranks = any_plan.table("ranks")
    by_rank = {row["rank"]: row["sent_bytes_per_step"] for row in ranks}
    expected = sent_by_document(any_plan.plan)
    has_averages = any(row["runs_per_step"] < 1 for row in any_plan.table("collectives"))
    if has_averages:  # rounded, collective by collective
        assert by_rank == {rank: pytest.approx(expected[rank], abs=5) for rank in by_rank}
    else:
        assert by_rank == {rank: expected[rank] for rank in by_rank}
    collectives = any_plan.table("collectives")
    assert sum(row["bytes_per_step"] for row in collectives) == sum(by_rank.values())
    for row in collectives:
        levels = ("bytes_in_node", "bytes_in_rack", "bytes_in_site", "bytes_between_sites")
        assert sum(row[level] for level in levels) == row["bytes_per_step"]
    pairs = any_plan.table("traffic")
    assert sum(row["bytes_per_step"] for row in pairs) == pytest.approx(sum(by_rank.values()), abs=50)


def test_a_ring_over_two_nodes_crosses_the_border_twice() -> None:
    """16 ranks in one ring on nodes of 8: of 16 hops two leave a node."""
    found = compiled("REDUCE grads OVER dp USING ring", devices=16)
    row = found.row("collectives", operation="all_reduce", why="sum of gradients")
    assert row["crosses_node"]
    assert row["bytes_in_site"] * 8 == row["bytes_per_step"]
    assert row["bytes_in_node"] == row["bytes_in_site"] * 7
    far = {row["rank"] for row in found.table("ranks") if row["sent_off_node_bytes_per_step"]}
    assert far == {7, 15}


def test_an_axis_that_stays_in_its_node_crosses_nothing() -> None:
    """Tensor parallelism inside the node is the usual wish; the table must not see borders that are not there."""
    found = compiled("MESH dp 2, tp 8 WITHIN node\nSPLIT mlp OVER tp", devices=16)
    inside = [row for row in found.table("collectives") if row["axes"] == "tp"]
    assert inside
    assert not any(row["crosses_node"] for row in inside)
    levels = {row["axis"]: row["level"] for row in found.table("axes")}
    assert levels == {"dp": "site", "tp": "node"}
    outside = [row for row in found.table("traffic") if row["axes"] == "dp"]
    assert {row["level"] for row in outside} == {"site"}
    assert {(row["rank"], row["peer"]) for row in outside} >= {(0, 8), (8, 0)}


@pytest.mark.parametrize(
    ("first", "second", "reach"),
    [
        ((0, None, 0), (0, None, 0), Reach.NODE),
        ((0, 0, 0), (1, 0, 0), Reach.RACK),
        ((0, 0, 0), (1, 1, 0), Reach.SITE),
        ((0, None, 0), (1, None, 0), Reach.SITE),
        ((0, 0, 0), (1, 1, 1), Reach.WORLD),
    ],
)
def test_the_smallest_place_that_holds_both(
    first: tuple[int, int | None, int], second: tuple[int, int | None, int], reach: Reach
) -> None:
    """Links cost by it; racks that are not known are no place."""
    devices = [
        Device(rank=rank, node=node, rack=rack, site=site, kind="H100", memory_bytes=None)
        for rank, (node, rack, site) in enumerate((first, second))
    ]
    assert reach_of(devices) is reach


def test_beyond_64_ranks_traffic_is_told_by_sender() -> None:
    """512 ranks have 260,000 pairs; the answer to who sends most needs none of them."""
    small = compiled("", devices=64, batch=64, microbatch=1, where="512xH100").table("traffic")
    large = compiled("", devices=128, batch=128, microbatch=1, where="512xH100").table("traffic")
    assert all(row["peer"] is not None for row in small)
    assert all(row["peer"] is None for row in large)
    assert {row["rank"] for row in large} == set(range(128))


def test_the_hand_over_of_a_pipeline_is_a_row() -> None:
    """It is what crosses the slow link in most pipelines."""
    found = compiled("MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 2")
    rows = [row for row in found.table("collectives") if row["block"] == "pipeline"]
    assert [(row["operation"], row["phase"], row["line"]) for row in rows] == [
        ("send", "forward", "x.trim:2"),
        ("send", "backward", "x.trim:2"),
    ]
    stream = 8 * 128 * 256 * 4  # samples, tokens, width, fp32
    assert {row["payload_bytes"] for row in rows} == {stream}
    assert {row["bytes_per_step"] for row in rows} == {2 * stream * 2}  # two pairs, two microbatches


# Which line decides.


def test_the_last_matching_line_decides_each_property() -> None:
    """As in a style sheet: a later COMPRESS keeps an earlier USING."""
    found = compiled(
        "REDUCE grads OVER dp USING tree BUCKET 1MB\nREDUCE grads WHERE layer < 2 OVER dp COMPRESS int8\n"
        "REDUCE grads WHERE layer = 0 OVER dp USING ring IN bf16"
    )
    told = {
        (row["name"], row["property"]): (row["value"], row["statement"])
        for row in found.table("decisions")
        if row["table_name"] == "grads"
    }
    first, third = "layers.0.mlp.up.weight", "layers.2.mlp.up.weight"
    assert told[first, "route"] == ("ring", 3)
    assert told[first, "compress"] == ("int8", 2)
    assert told[first, "bucket"] == ("1000000", 1)
    assert told[first, "wire"] == ("bf16", 3)
    assert told[third, "route"] == ("tree", 1)
    assert (third, "compress") not in told
    grads = {row["name"]: row for row in found.table("grads")}
    assert (grads[first]["route"], grads[first]["wire"], grads[first]["compress"]) == ("ring", "bf16", "int8")
    assert grads[third]["reduce_line"] == "x.trim:1"


def test_every_statement_says_how_many_rows_it_decides() -> None:
    """A line that decides nothing is a line that its writer misunderstands."""
    found = compiled(
        "MESH dp 4\nSTORE states OVER dp\nKEEP grads WHERE layer = 0 IN bf16\nKEEP grads IN bf16\nCOMPUTE layers IN bf16"
    )
    rows = {row["statement"]: (row["verb"], row["rows"]) for row in found.table("statements")}
    num_tensors = len(network("gpt-3m").tensors())
    assert rows == {
        1: ("MESH", None),
        2: ("STORE", num_tensors),
        3: ("KEEP", 0),
        4: ("KEEP", num_tensors),
        5: ("COMPUTE", 4),
    }


def test_defaults_are_called_so() -> None:
    """NULL in the place of a line would look like no decision at all."""
    row = compiled("").row("decisions", table_name="grads", name="final_norm.weight")
    assert (row["property"], row["axis"], row["line"], row["statement"]) == ("sum", "dp", "default", None)


def test_a_placed_layer_names_its_line() -> None:
    """PLACE overrides what the pipeline would do by itself."""
    text = "MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 2\nPLACE layers BETWEEN 0 AND 0 ON pp 0"
    stages = [row for row in compiled(text).table("decisions") if row["property"] == "stage"]
    assert [(row["name"], row["value"], row["statement"]) for row in stages][:2] == [
        ("layers.0", "0", 3),
        ("layers.1", stages[1]["value"], 2),
    ]


def test_groups_that_go_another_way_are_named() -> None:
    """ON takes some process groups out; one row for all would hide them."""
    found = compiled(f"{TENSORS}\nREDUCE grads OVER dp\nREDUCE grads OVER dp USING tree ON rank IN (0, 2)")
    rows = [
        row
        for row in found.table("decisions")
        if row["name"] == "layers.0.mlp.up.weight" and row["property"] in ("sum", "route")
    ]
    assert {(row["property"], row["groups"], row["value"], row["statement"]) for row in rows} == {
        ("sum", "0", "all_reduce", 4),
        ("route", "0", "tree", 4),
        ("sum", "1", "all_reduce", 3),
    }
    assert found.row("grads", name="layers.0.mlp.up.weight")["route"] in ("native | tree", "tree | native")
