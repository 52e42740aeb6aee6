"""The symbolic executor: its arithmetic, its routes, its pieces, and that it fails on what is wrong."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.catalog import Machine, cluster, network
from trimtab.plan.compiling import compile_program
from trimtab.plan.document import plan_document
from trimtab.plan.training import Training
from trimtab.spec import parse_strategy, resolve_mesh

REFEREE = Path(__file__).parents[2] / "referee"
sys.path.append(str(REFEREE))

import symbolic  # noqa: E402  (referees import each other by name: their folder must be known first)
from symbolic_data import Batch  # noqa: E402
from symbolic_integers import NO_TARGET, Integers, Routing  # noqa: E402
from symbolic_pieces import Extent, Piece, chunks_along, chunks_of_storage, join_along, join_storage  # noqa: E402
from symbolic_reference import DealtTokens, OneDevice  # noqa: E402
from symbolic_wires import Route, Sent, Wires, exchange  # noqa: E402

Document = dict[str, Any]

MACHINE = Machine(num_devices=8, cores=8, memory_bytes=64 * 2**30)


def document_of(text: str, *, devices: int = 4, microbatch: int = 1, shares: int | None = None) -> Document:
    """The document of a program for two tiny layers, eight samples a step."""
    program = parse_strategy(text, source="run.trim")
    model = network("llama-3m", layers=2, embed=8, heads=4, kv_heads=2, mlp=8, vocab=10, context=8)
    training = Training(
        network=model, batch=8, microbatch=microbatch, sequence=4, shares=shares, compute="fp32", num_states=2
    )
    plan = compile_program(
        program, training, mesh=resolve_mesh(program, devices), cluster=cluster("512xH100", machine=MACHINE)
    )
    document: Document = json.loads(json.dumps(plan_document(plan)))
    return document


# Arithmetic.

SMALL = 8191
"""A prime whose square is a modulus that the integers can take: a polynomial at x + 8191 v, modulo the square, is its
value at x plus 8191 times its derivative along v."""


def _shapes(*, is_moe: bool, has_gate: bool, is_tied: bool, qk_norm: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (7, 4), "positions.weight": (6, 4)}
    for layer in range(2):
        found: dict[str, tuple[int, ...]] = {
            "attention_norm.weight": (4,),
            "attention_norm.bias": (4,),
            "attention.wq.weight": (8, 4),
            "attention.wq.bias": (8,),
            "attention.wk.weight": (4, 4),
            "attention.wv.weight": (4, 4),
            "attention.wo.weight": (4, 8),
            "mlp_norm.weight": (4,),
        }
        if qk_norm:
            found |= {
                "attention.q_norm.weight": (2,),
                "attention.k_norm.weight": (2,),
                "attention.k_norm.bias": (2,),
            }
        if is_moe:
            found |= {
                "router.weight": (3, 4),
                "experts.up.weight": (3, 5, 4),
                "experts.down.weight": (3, 4, 5),
            }
            found |= {"experts.gate.weight": (3, 5, 4)} if has_gate else {}
        else:
            found |= {"mlp.up.weight": (5, 4), "mlp.up.bias": (5,), "mlp.down.weight": (4, 5)}
            found |= {"mlp.gate.weight": (5, 4)} if has_gate else {}
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in found.items()}
    return shapes | {"final_norm.weight": (4,)} | ({} if is_tied else {"head.weight": (7, 4)})


@pytest.mark.parametrize("is_moe", [False, True])
@pytest.mark.parametrize("has_gate", [False, True])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_gradients_are_the_derivative_of_the_loss(
    is_moe: bool, has_gate: bool, is_tied: bool, qk_norm: bool
) -> None:
    """A backward pass that is not the forward pass's would let wrong plans agree with a wrong device."""
    chance = np.random.default_rng(5)
    shapes = _shapes(is_moe=is_moe, has_gate=has_gate, is_tied=is_tied, qk_norm=qk_norm)
    facts = {
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 2,
        "tied": is_tied,
        "experts": 3 * is_moe,
        "dropout": 0.1,
    }
    weights = {name: chance.integers(0, SMALL, shape) for name, shape in shapes.items()}
    along = {name: chance.integers(0, SMALL, shape) for name, shape in shapes.items()}
    routing = Routing(tokens=2 * 4, top_k=2, experts=3)
    dealt = DealtTokens(
        experts=routing.experts.reshape(2, 4, 2),
        slots=routing.slots.reshape(2, 4, 2),
        num_slots=routing.num_slots,
    )
    by_layer = {0: dealt, 1: dealt} if is_moe else {}
    targets = chance.integers(0, 7, (2, 4))
    targets[0, 1] = NO_TARGET
    batch = Batch(
        tokens=chance.integers(0, 7, (2, 4)),
        targets=targets,
        weights=chance.integers(1, SMALL, (2, 4)) * (targets != NO_TARGET),
    )
    integers = Integers(SMALL**2)

    def pass_at(steps: int) -> Any:
        moved = {name: (weights[name] + SMALL * steps * along[name]) % SMALL**2 for name in shapes}
        # The maximum over the vocabulary is a constant to the gradient, and so it is held here.
        return OneDevice(facts, moved, by_layer, integers).run(batch, highest=np.full((2, 4), 17))

    here, there = pass_at(0), pass_at(1)
    slope = sum(int((here.gradients[name] % SMALL * along[name]).sum()) for name in shapes) % SMALL
    assert (there.loss - here.loss) % SMALL**2 == slope * SMALL
    assert slope


# Routes.

WHAT = Sent("layer 0", "forward", "all_reduce", ("x",), ("dp",), "ring")


def _sent_by(wires: Wires, ranks: Sequence[int]) -> list[int]:
    """Bytes that each rank has sent."""
    sent = Counter(dict.fromkeys(ranks, 0))
    for (source, _), size in wires.sent_bytes[WHAT].items():
        sent[source] += size
    return [sent[rank] for rank in ranks]


@pytest.mark.parametrize(
    ("route", "ranks", "sent"),
    [
        # 10 elements of 2 bytes. In rings and straight: twice n - 1 pieces of ceil(10 / n).
        (Route("native"), 2, [20, 20]),
        (Route("ring"), 4, [36, 36, 36, 36]),
        (Route("reduce_scatter"), 4, [36, 36, 36, 36]),
        (Route("ring"), 3, [32, 32, 32]),
        # Whole arrays: to the parent and to each child.
        (Route("tree"), 4, [40, 20, 40, 20]),
        (Route("tree"), 5, [60, 20, 40, 20, 20]),
        (Route("recursive_doubling"), 4, [40, 40, 40, 40]),
        # Two nodes of two: 5 elements inside, 3 of them between, 5 inside.
        (Route("hierarchical", [[0, 0, 1, 1]]), 4, [32, 32, 32, 32]),
    ],
)
def test_every_route_sums_and_sends_as_it_is_known_to(route: Route, ranks: int, sent: list[int]) -> None:
    """A route that sums wrong, or whose hops are not counted, would be refereed by its own mistake."""
    chance = np.random.default_rng(2)
    arrays = [chance.integers(0, 1000, 10) for _ in range(ranks)]
    wires = Wires()
    found = route.all_reduce(wires.line(WHAT, range(ranks), 2), arrays, np.add)
    for array in found:
        np.testing.assert_array_equal(array, np.sum(arrays, axis=0))
    assert _sent_by(wires, range(ranks)) == sent


@pytest.mark.parametrize(
    "route", [Route("ring"), Route("reduce_scatter"), Route("hierarchical", [[0, 1, 0, 1]])]
)
def test_what_is_scattered_arrives_at_its_owner(route: Route) -> None:
    """A hierarchical scatter passes chunks on twice: in a wrong order every rank would update another's piece."""
    chance = np.random.default_rng(3)
    chunks = chance.integers(0, 1000, (4, 4, 3))
    found = route.reduce_scatter(Wires().line(WHAT, range(4), 4), [list(row) for row in chunks], np.add)
    for place, array in enumerate(found):
        np.testing.assert_array_equal(array, chunks[:, place].sum(0))


@pytest.mark.parametrize("route", [Route("ring"), Route("reduce_scatter")])
def test_what_is_gathered_is_everywhere_in_order(route: Route) -> None:
    """Pieces in another order are another tensor."""
    pieces = [np.full(2, place) for place in range(5)]
    for row in route.all_gather(Wires().line(WHAT, range(5), 4), pieces):
        np.testing.assert_array_equal(np.concatenate(row), np.repeat(np.arange(5), 2))


def test_an_exchange_sends_every_chunk_to_its_target() -> None:
    """An all-to-all keeps the own chunk and sends n - 1."""
    wires = Wires()
    chunks = [[np.array([source, target]) for target in range(3)] for source in range(3)]
    found = exchange(wires.line(WHAT, range(3), 4), chunks)
    assert [[array.tolist() for array in row] for row in found] == [
        [[source, target] for source in range(3)] for target in range(3)
    ]
    assert _sent_by(wires, range(3)) == [16, 16, 16]


# Pieces.


def _whole(*shape: int) -> Piece:
    extent = Extent(tuple(tuple(range(length)) for length in shape))
    return Piece(extent, np.arange(1, np.prod(shape) + 1).reshape(shape))


def test_pieces_of_an_uneven_dim_join_to_what_was_cut() -> None:
    """A vocabulary of 11 over 2 x 3 ranks: pieces of 2, padded at two levels."""
    whole = _whole(11, 2)
    pieces = [chunks_along(part, 0, 3) for part in chunks_along(whole, 0, 2)]
    assert [piece.extent.indices[0] for piece in pieces[1]] == [(6, 7), (8, 9), (10, -1)]
    halves = [join_along(inner, 0, 6) for inner in pieces]
    joined = join_along(halves, 0, 11)
    assert joined.extent == whole.extent
    np.testing.assert_array_equal(joined.array, whole.array)


def test_pieces_of_storage_join_to_what_was_cut() -> None:
    """Storage over two axes: 100 elements in halves of 64, each in halves of 32, padded by 28 in all."""
    whole = _whole(10, 10)
    pieces = [chunks_of_storage(half, 2) for half in chunks_of_storage(whole, 2)]
    assert [piece.array.size for half in pieces for piece in half] == [32] * 4
    assert pieces[1][1].extent.runs == ((96, 100), (-1, 28))
    joined = join_storage([piece for half in pieces for piece in half], whole.extent)
    np.testing.assert_array_equal(joined.array, whole.array)
    half = join_storage(pieces[0], whole.extent.cut_storage(2, 0))
    np.testing.assert_array_equal(half.array, np.arange(1, 65))


# Whole plans, and what is planted in them.

PROGRAMS = (
    "MESH dp 1",
    "MESH dp 4",
    "MESH tp 2\nSPLIT heads, mlp, vocab OVER tp",
    "MESH dp 4\nSTORE params, grads, states OVER dp",
    "MESH cp 2\nSPLIT sequence OVER cp USING ring",
    "MESH pp 2, dp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 2",
)


def _devices(text: str) -> int:
    sizes = [int(word.strip(",")) for word in text.splitlines()[0].split() if word.strip(",").isdigit()]
    return int(np.prod(sizes))


@pytest.mark.parametrize("text", PROGRAMS)
def test_a_plan_that_is_right_is_held(text: str) -> None:
    """A referee that refuses good plans is turned off."""
    verdict = symbolic.run(document_of(text, devices=_devices(text)))
    assert verdict.is_held, verdict.difference


def test_it_really_sends() -> None:
    """Plain data parallelism over 2 ranks sends the gradients once around: 2 (n - 1) / n of 4 bytes for each element."""
    document = document_of("MESH dp 2", devices=2)
    verdict = symbolic.run(document)
    elements = sum(int(np.prod(parameter["shape"])) for parameter in document["parameters"])
    scalars = 3  # Loss, number of tokens, norm.
    assert verdict.sent_bytes == 2 * 4 * (elements + scalars) + 2 * 4 * scalars


def _shrunk(document: Document) -> None:
    document["traffic"][0]["sent_bytes"]["1"] -= 1


def _left_out(document: Document) -> None:
    del document["traffic"][-1]


def _invented(document: Document) -> None:
    document["traffic"].append({**document["traffic"][0], "block": "head", "phase": "recompute"})


def _once_too_often(document: Document) -> None:
    document["traffic"][0]["runs"]["0"] += 1


@pytest.mark.parametrize("plant", [_shrunk, _left_out, _invented, _once_too_often])
def test_a_wrong_message_list_is_found(plant: Callable[[Document], None]) -> None:
    """`explain` that says one byte, one run or one collective too many would be believed."""
    document = document_of("MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp")
    plant(document)
    verdict = symbolic.run(document)
    assert verdict.flaw is symbolic.Flaw.SENDS_OTHERWISE
    assert "the plan says" in verdict.difference


def _without_sum(document: Document, tensor: str) -> None:
    """Let the readers of an all-reduce read the summand."""
    for block in (*document["blocks"], document["update"]):
        programs = [
            block[part] for part in ("forward", "recompute", "backward", "operators") if part in block
        ]
        sums = [found for program in programs for found in program if _is_sum_of(found, tensor)]
        for operator in sums:
            (source,), (result,) = operator["inputs"], operator["outputs"]
            for program in programs:
                program[:] = [found for found in program if found != operator]
                for reader in program:
                    reader["inputs"] = [source if name == result else name for name in reader["inputs"]]
            if "kept" in block:
                block["kept"] = [source if name == result else name for name in block["kept"]]


def _is_sum_of(operator: Document, tensor: str) -> bool:
    return bool(operator["kind"] == "all_reduce" and operator["inputs"][0] == tensor)


def _partial_logits(document: Document) -> None:
    _without_sum(document, "vocab_sums")


def _summand_of_attention(document: Document) -> None:
    _without_sum(document, "attention.wo.product")


def _number_of_own_tokens(document: Document) -> None:
    _without_sum(document, "num_tokens")


def _norm_of_own_pieces(document: Document) -> None:
    _without_sum(document, "norm_square")


def _uncut_batch(document: Document) -> None:
    document["work"]["microbatches"] //= 2


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (_partial_logits, "loss"),
        (_summand_of_attention, "layer 0"),
        (
            _number_of_own_tokens,
            "number of tokens: rank 0 (4 of 4 ranks) has another value: it has not been summed over dp",
        ),
        (_norm_of_own_pieces, "gradient norm"),
        (_uncut_batch, "the microbatches of the plan hold the samples"),
    ],
)
def test_a_plan_that_computes_wrong_is_found(plant: Callable[[Document], None], says: str) -> None:
    """What is planted here is what a planner with a bug would write."""
    document = document_of("MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp", microbatch=2)
    plant(document)
    verdict = symbolic.run(document)
    assert verdict.flaw is symbolic.Flaw.COMPUTES_WRONG
    assert says in verdict.difference


def test_a_gradient_counted_twice_is_called_so() -> None:
    """The message is what somebody starts from who looks for the bug."""
    document = document_of("MESH dp 2", devices=2)
    operators = document["update"]["operators"]
    (index,) = [
        index
        for index, found in enumerate(operators)
        if found["kind"] == "all_reduce" and "acc:" in found["inputs"][0]
    ]
    again = {**operators[index], "inputs": operators[index]["outputs"]}
    operators.insert(index + 1, again)
    verdict = symbolic.run(document)
    assert verdict.flaw is symbolic.Flaw.COMPUTES_WRONG
    assert "gradient of 'embedding.weight'" in verdict.difference
    assert "it counts 2 times, the ranks of dp" in verdict.difference


def test_only_what_is_kept_is_there_on_the_way_back() -> None:
    """A backward pass that reads what was let go would need memory that the plan does not count."""
    document = document_of("MESH dp 2", devices=2)
    for block in document["blocks"]:
        block["kept"] = [name for name in block["kept"] if name != "attention.q"]
    verdict = symbolic.run(document)
    assert verdict.flaw is symbolic.Flaw.CANNOT_RUN
    assert "attention.q" in verdict.difference
    assert "backward pass" in verdict.difference


def test_recomputed_activations_are_made_again() -> None:
    """A recompute list that makes other values than the forward pass would train on them."""
    document = document_of("MESH dp 2\nRECOMPUTE activations", devices=2)
    layer = document["blocks"][1]
    assert symbolic.run(document).is_held
    layer["recompute"] = [operator for operator in layer["recompute"] if operator["kind"] != "activate"]
    assert symbolic.run(document).flaw is symbolic.Flaw.CANNOT_RUN


def test_logits_in_chunks_are_the_same_step() -> None:
    """A loss of sums that were less different maxima would be another loss."""
    document = document_of(
        "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\nRECOMPUTE activations WHERE name = 'logits'"
    )
    assert symbolic.run(document).is_held
    head = document["blocks"][-1]
    (rescale,) = (operator for operator in head["forward"] if operator["kind"] == "rescale")
    rescale["inputs"][2] = rescale["inputs"][1]
    verdict = symbolic.run(document)
    assert verdict.flaw is symbolic.Flaw.COMPUTES_WRONG


def test_a_layout_that_is_not_what_was_made_is_found() -> None:
    """Numbers may be right where the plan's types are not: a runtime would cut by the types."""
    document = document_of("MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp")
    value = document["blocks"][1]["values"]["grad:attention.q"]
    value["placements"] = [placement for placement in value["placements"] if placement[0] != "tp"]
    verdict = symbolic.run(document)
    assert verdict.flaw is symbolic.Flaw.LIES_OTHERWISE
    assert "'grad:attention.q'" in verdict.difference


# Command line.


def _ran(path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(REFEREE / "symbolic.py"), str(path)], capture_output=True, text=True, check=False
    )


def test_the_command_line_says_held_or_broken(tmp_path: Path) -> None:
    """Exit codes are what scripts read."""
    path = tmp_path / "plan.json"
    document: Mapping[str, Any] = document_of("MESH dp 2", devices=2)
    path.write_text(json.dumps(document), encoding="utf-8")
    held = _ran(path)
    assert held.returncode == 0
    assert held.stdout.startswith("HELD: ")
    document["traffic"].pop()
    path.write_text(json.dumps(document), encoding="utf-8")
    broken = _ran(path)
    assert broken.returncode == 1
    assert broken.stdout.startswith("BROKEN: ")


@pytest.mark.parametrize("text", ["", "{}", '{"version": 99}'])
def test_what_is_no_plan_shows_nothing(tmp_path: Path, text: str) -> None:
    """A verdict on something else would be none."""
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    ran = _ran(path)
    assert ran.returncode == 1
    assert ran.stdout.startswith("NOT SHOWN: ")
