"""Words that name nothing, or stand where they may not."""

import pytest

from trimtab.spec import parse_strategy
from trimtab.spec.language import check_names, check_program, preset_names

MESH = "MESH pp 2, dp 2, tp 2\n"


def problems_of(text: str) -> list[str]:
    problems = check_names(parse_strategy(MESH + text, source="x.trim"))
    assert all(problem.span.line == 2 for problem in problems)
    return [f"{problem.span.column} {problem.message}  {problem.hint}".strip() for problem in problems]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SPLIT haeds OVER tp", "7 unknown dim 'haeds'  dims: batch, sequence, embed, heads, kv_heads, mlp, vocab, layers, experts.  Did you mean 'heads'?"),
        ("SPLIT heads OVER pt", "18 unknown mesh axis 'pt'  axes of this mesh: pp(2), dp(2), tp(2).  Did you mean 'tp'?"),
        ("SPLIT heads OVER tp, tp", "22 axis 'tp' is named twice  Keep one of the two."),
        ("SPLIT embed OF param OVER tp", "16 unknown table 'param'  tables: params, grads, states, activations, layers, experts.  Did you mean 'params'?"),
        ("SPLIT embed OF states OVER tp", "16 SPLIT OF takes params or activations, not states"),
        ("SPLIT sequence OVER tp USING ulises", "30 unknown sequence split 'ulises'  sequence splits: ulysses, allgather, ring.  Did you mean 'ulysses'?"),
        ("SPLIT heads OVER tp USING ring", "27 SPLIT heads takes no USING  USING belongs to SPLIT sequence and SPLIT layers, in a statement of its own."),
        ("SPLIT batch, layers OVER pp USING gpipe", "35 SPLIT batch, layers takes no USING  USING belongs to SPLIT sequence and SPLIT layers, in a statement of its own."),
        ("SPLIT batch OVER dp MICROBATCHES 8", "1 SPLIT batch takes no MICROBATCHES  MICROBATCHES belongs to SPLIT layers, in a statement of its own."),
        ("SPLIT batch OVER dp BALANCE BY time", "32 SPLIT batch takes no BALANCE BY  BALANCE BY belongs to SPLIT layers, in a statement of its own."),
        ("SPLIT layers OVER pp BALANCE BY tme", "33 unknown balance 'tme'  balances: layers, params, time.  Did you mean 'time'?"),
        ("SPLIT layers OVER pp MICROBATCHES 0", "1 MICROBATCHES is 0 microbatches; it must be at least 1"),
        ("SPLIT layers OVER pp USING 1f1c", "28 unknown stage schedule '1f1c'  stage schedules: gpipe, 1f1b, interleaved_1f1b(stages), looped_bfs(stages), interleaved_zero_bubble(stages), zbv, dualpipev.  Did you mean '1f1b'?"),
        ("SPLIT layers OVER pp USING interleaved_1f1b", "28 interleaved_1f1b takes 1 argument, and 0 are given  Write interleaved_1f1b(stages)."),
        ("SPLIT layers OVER pp USING 1f1b(2)", "28 1f1b takes no arguments, and 1 is given  Write 1f1b."),
        ("SPLIT layers OVER pp USING looped_bfs(1.5)", "39 looped_bfs: stages is 1.5; it must be a whole number of at least 1"),
        ("PLACE layers BETWEEN 0 AND 3 ON pp 2", "1 there is no place 2 on pp: pp has places 0 to 1"),
        ("PLACE grads ON pp 0", "7 PLACE takes layers, experts or params, not grads"),
        ("STORE activations OVER dp", "7 STORE takes params, grads or states, not activations"),
        ("STORE params, params OVER dp", "15 'params' is named twice  Keep one of the two."),
        ("REDUCE grads OVER dp USING rings", "28 unknown route 'rings'  routes: native, ring, tree, recursive_doubling, reduce_scatter, hierarchical(level, ...), default.  Did you mean 'ring'?"),
        ("REDUCE grads OVER dp USING hierarchical", "28 hierarchical takes at least 1 argument, and 0 are given  Write hierarchical(level, ...)."),
        ("REDUCE grads OVER dp USING hierarchical(rak)", "41 unknown level 'rak'  levels: node, rack, site.  Did you mean 'rack'?"),
        ("REDUCE grads OVER dp USING hierarchical(rack, node)", "47 level 'node' after 'rack': levels go from the inside out, each once  levels: node, rack, site."),
        ("REDUCE grads OVER dp USING hierarchical(4)", "41 unknown level '4'  levels: node, rack, site."),
        ("REDUCE grads OVER dp BUCKET 0MB", "1 BUCKET is 0 bytes; it must be at least 1"),
        ("REDUCE grads OVER dp COMPRESS topk(2)", "36 topk: fraction is 2; it must be a number above 0 and at most 1"),
        ("REDUCE grads OVER dp COMPRESS topk('a')", "36 topk: fraction is 'a'; it must be a number above 0 and at most 1"),
        ("REDUCE grads OVER dp COMPRESS powersgd(0)", "40 powersgd: rank is 0; it must be a whole number of at least 1"),
        ("REDUCE grads OVER dp COMPRESS zip", "31 unknown compression 'zip'  compressions: none, bf16, int8, topk(fraction), powersgd(rank)."),
        ("REDUCE grads OVER dp IN fp17", "25 unknown type 'fp17'  types: fp32, bf16, fp16, fp8.  Did you mean 'fp16'?"),
        ("AVERAGE params OVER dp EVERY 0 STEPS", "1 EVERY is 0 steps; it must be at least 1"),
        ("AVERAGE params OVER dp EVERY 8 STEPS USING nesterov(1)", "53 nesterov: momentum is 1; it must be a number of at least 0 and below 1"),
        ("AVERAGE params OVER dp EVERY 8 STEPS USING median", "44 unknown average 'median'  averages: mean, nesterov(momentum).  Did you mean 'mean'?"),
        ("RECOMPUTE params", "11 RECOMPUTE takes activations, not params"),
        ("OFFLOAD states TO hsot", "19 unknown home 'hsot'  homes: host.  Did you mean 'host'?"),
        ("KEEP states IN int8", "16 unknown type 'int8'  types: fp32, bf16, fp16, fp8."),
        ("COMPUTE params IN bf16", "9 COMPUTE takes layers, not params"),
        ("SEAL layers OVER dp", "6 SEAL takes params, grads, states or activations, not layers"),
        ("RECOMPUTE activations WHERE layr = 1", "29 unknown column 'layr'  columns: name, layer, kind, dims, shape, numel, bytes, dtype, stage, expert.  Did you mean 'layer'?"),
        ("REDUCE grads OVER dp ON clas = 'A100'", "25 unknown column 'clas'  columns of devices: rank, node, rack, site, class, memory.  Did you mean 'class'?"),
        ("REDUCE grads OVER dp ON layer = 1", "25 unknown column 'layer'  columns of devices: rank, node, rack, site, class, memory."),
    ],
)  # fmt: skip
def test_message(text: str, message: str) -> None:
    """Otherwise a misspelt word is silently no word, or the user must guess what was meant."""
    assert problems_of(text) == [message]


def test_a_level_of_the_mesh_must_exist() -> None:
    """Otherwise an axis stays inside a level that no cluster has."""
    (problem,) = check_names(parse_strategy("MESH tp 8 WITHIN noed", source="x.trim"))
    assert problem.message == "unknown level 'noed'"
    assert problem.span.column == 18


def test_everything_wrong_in_a_statement_is_found_at_once() -> None:
    """Otherwise a user mends one word and meets the next."""
    text = "REDUCE grad WHERE layr = 1 OVER pd USING rings(1) COMPRESS zip IN int9 ON clas = 'x'"
    assert [problem.split()[0] for problem in problems_of(text)] == ["8", "19", "33", "42", "60", "67", "75"]


def test_words_are_checked_when_the_devices_are_not_known() -> None:
    """Otherwise a job file with another error hides the misspelt axis."""
    (problem,) = check_names(parse_strategy("MESH dp *\nSPLIT batch OVER pd", source="x.trim"))
    assert problem.hint == "axes of this mesh: dp(*).  Did you mean 'dp'?"


def test_errors_inside_a_preset_name_its_use() -> None:
    """Otherwise a user is shown a line of a file that they never wrote."""
    program = parse_strategy("\n  USE 'megatron-3d'(tp = 0)", source="x.trim")
    (problem,) = check_program(program, 8)
    assert problem.span.source == "preset megatron-3d"
    assert "size 0" in problem.message
    assert [(str(place.span), place.note) for place in problem.others] == [
        ("x.trim:2:3", "the preset is used here")
    ]


@pytest.mark.parametrize("name", preset_names())
def test_a_second_mesh_names_both_places(name: str) -> None:
    """Otherwise a user searches for the other MESH in a text that has one."""
    program = parse_strategy(f"MESH dp 8\nUSE '{name}'", source="x.trim")
    problem = check_program(program, 8)[0]
    assert problem.message == "a second MESH"
    assert [str(place.span).split(":")[0] for place in problem.others] == ["x.trim", "x.trim"]


@pytest.mark.parametrize(
    ("schedule", "last"), [("1f1b", 1), ("interleaved_1f1b(3)", 5), ("looped_bfs(2)", 3), ("zbv", 3)]
)
def test_stages_are_placed_by_their_own_number(schedule: str, last: int) -> None:
    """Otherwise only the first round of an interleaved pipeline could be filled by hand."""
    head = f"MESH pp 2, dp *\nSPLIT layers OVER pp USING {schedule}\n"
    assert not check_names(
        parse_strategy(f"{head}PLACE layers BETWEEN 0 AND 3 ON pp {last}", source="x.trim")
    )
    (problem,) = check_program(
        parse_strategy(f"{head}PLACE layers BETWEEN 0 AND 3 ON pp {last + 1}", source="x.trim"), 4
    )
    assert f"pp has {'stage' if last > 1 else 'place'}s 0 to {last}" in problem.message
