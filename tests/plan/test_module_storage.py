"""How formulas store the rows of a class, and what a step of it sends."""

import pytest

from trimtab.catalog import THIS_MACHINE, Machine, cluster
from trimtab.plan.module_storage import ROOT, ModuleStorage, StepShape, storage_of, transfers_of
from trimtab.plan.tables import Row, Table
from trimtab.spec import StrategyError, parse_strategy, resolve_mesh

NUMELS = {"table": 4096, "layers.0.up": 256, "layers.1.up": 256, "layers.1.scale": 1}
UNITS = {"table": ROOT, "layers.0.up": "layers.0", "layers.1.up": "layers.1", "layers.1.scale": "layers.1"}
FROZEN = "layers.1.up"


def rows() -> list[Row]:
    """Parameters, and gradients and states of those that are trained."""
    found = []
    for name, numel in NUMELS.items():
        for table in (Table.PARAMS, Table.GRADS, Table.STATES):
            if table is Table.PARAMS or name != FROZEN:
                layer = int(name.split(".")[1]) if UNITS.get(name) else None
                found.append(
                    Row(
                        table=table,
                        name=name,
                        layer=layer,
                        kind="linear",
                        dims=("elements",),
                        shape=(numel,),
                        dtype="fp32",
                    )
                )
    return found


def stored(text: str, devices: int) -> ModuleStorage:
    program = parse_strategy(text, source="x.trim")
    machine = Machine(num_devices=devices, cores=1, memory_bytes=1 << 30)
    return storage_of(
        program,
        rows(),
        mesh=resolve_mesh(program, devices),
        cluster=cluster(THIS_MACHINE, machine=machine),
        units=UNITS,
    )


def test_the_last_line_that_speaks_of_a_row_decides() -> None:
    """Gradients and states lie as their parameter does where no line speaks of them."""
    found = stored(
        "MESH dp 2\nSTORE params WHERE layer = 0 OVER dp\nSTORE states WHERE layer IS NULL OVER dp", 2
    )
    by_name = {parameter.name: parameter.stored for parameter in found.parameters}
    assert by_name == {
        "table": {Table.STATES},
        "layers.0.up": {Table.PARAMS, Table.GRADS, Table.STATES},
        "layers.1.up": set(),
        "layers.1.scale": set(),
    }
    assert {table: line.line for table, line in found.lines.items()} == {Table.PARAMS: 2, Table.STATES: 3}


def test_pieces_are_padded_and_frozen_parameters_have_no_gradient() -> None:
    """A number alone takes 16 elements on every rank."""
    found = stored("MESH dp 4\nSTORE params OVER dp", 4)
    assert found.held_elements(Table.PARAMS) == 1024 + 64 + 64 + 16
    assert found.held_elements(Table.GRADS) == 1024 + 64 + 16
    assert found.units() == ("layers.0", "layers.1", ROOT)
    assert found.gathered_elements() == 4 * (1024 + 64 + 16)


@pytest.mark.parametrize(("num_ranks", "turns", "subtrees"), [(1, 8, 1), (2, 4, 1), (3, 4, 1), (4, 2, 1)])
def test_the_busiest_rank_counts(num_ranks: int, turns: int, subtrees: int) -> None:
    """Four shares of two microbatches; of three ranks the first has two shares, which make one subtree."""
    shape = StepShape.of(batch=8, microbatch=1, num_parts=4, num_ranks=num_ranks)
    assert (shape.turns, shape.subtrees) == (turns, subtrees)


def test_shares_that_make_no_subtree_are_sent_one_by_one() -> None:
    """Of five shares on two ranks the second has the last two, of which one stands alone in the tree."""
    assert StepShape.of(batch=5, microbatch=1, num_parts=5, num_ranks=2).subtrees == 2


def test_a_rank_alone_sends_nothing() -> None:
    """Whatever is stored."""
    shape = StepShape.of(batch=8, microbatch=1, num_parts=4, num_ranks=1)
    found = stored("MESH dp 1\nSTORE params OVER dp", 1)
    assert sum(transfer.sent_bytes for transfer in transfers_of(found, shape)) == 0


def test_each_line_that_cannot_be_meant_is_told() -> None:
    """Both at once, as everywhere."""
    text = "MESH a 2, b 2, c 2\nSPLIT batch OVER a, b\nSTORE params OVER a\nSTORE states OVER b, c"
    with pytest.raises(StrategyError) as error:
        stored(text, 8)
    told = str(error.value)
    assert "x.trim:1:16" in told
    assert "x.trim:3:1" in told
    assert "x.trim:4:1" in told
