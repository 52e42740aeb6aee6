"""Strategies with names, and how a program brings them in."""

import re

import pytest

from trimtab.spec import StrategyError, parse_strategy, print_program, resolve_layout
from trimtab.spec.errors import UnknownPresetError
from trimtab.spec.language import (
    DEFAULTS,
    MeshStatement,
    SplitStatement,
    StoreStatement,
    check_program,
    preset,
    preset_names,
)
from trimtab.spec.language.presets import read_preset

THIRTEEN = {
    "ddp", "zero1", "zero2", "zero3", "hsdp", "megatron-tp", "megatron-3d", "sequence-parallel",
    "context-parallel", "expert-parallel", "diloco", "powersgd", "hierarchical",
}  # fmt: skip


def error_of(text: str) -> StrategyError:
    with pytest.raises(StrategyError) as caught:
        parse_strategy(text, source="x.trim")
    return caught.value


def test_the_presets_that_are_promised_are_there() -> None:
    """Otherwise a page names a preset that does not exist."""
    assert set(preset_names()) == THIRTEEN


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_a_short_strategy_that_holds_on_8_64_and_512_devices(name: str) -> None:
    """Otherwise the first thing that a user tries is refused."""
    for devices in (8, 64, 512):
        # Two stages of eight devices each do not fit on eight.
        arguments = "(tp = 2)" if name == "megatron-3d" and devices == 8 else ""
        program = parse_strategy(f"USE '{name}'{arguments}", source="x.trim")
        assert check_program(program, devices) == []
        assert resolve_layout(program, devices).mesh.num_devices == devices
    assert 1 <= len(program.statements) <= 6
    assert sum(isinstance(statement, MeshStatement) for statement in program.statements) == 1


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_says_what_it_is_and_uses_its_parameters(name: str) -> None:
    """Otherwise `strategy ls` has an empty line, or a parameter does nothing."""
    found = preset(name)
    assert found.name == name
    assert found.summary.endswith(".")
    assert set(re.findall(r"\$(\w+)", found.text)) == set(found.parameters)


def test_parameters_replace_defaults() -> None:
    """Otherwise USE takes arguments and ignores them."""
    text = "USE 'megatron-3d'(tp = 4, num_microbatches = 16)"
    assert print_program(parse_strategy(text, source="x.trim")) == (
        "MESH pp 2, dp *, tp 4 WITHIN node\n"
        "SPLIT layers OVER pp USING 1f1b MICROBATCHES 16\n"
        "SPLIT batch OVER dp\n"
        "SPLIT heads, mlp, vocab OVER tp\n"
        "STORE states OVER dp\n"
    )
    text = "use 'hierarchical' ( level = 'rack' ); USE 'ddp'(bucket_size = 1MiB)"
    printed = print_program(parse_strategy(text, source="x.trim"))
    assert "USING hierarchical(rack)" in printed
    assert "BUCKET 1MiB" in printed
    assert "nesterov(0.5)" in print_program(parse_strategy("USE 'diloco'(momentum = 0.5)", source="x.trim"))
    assert "nesterov(0)" in print_program(parse_strategy("USE 'diloco'(momentum = 0)", source="x.trim"))


def test_statements_around_a_preset_keep_their_order() -> None:
    """Otherwise the last statement does not decide."""
    program = parse_strategy("SPLIT heads OVER dp\nUSE 'zero1'\nREDUCE grads OVER dp", source="x.trim")
    assert [type(statement).__name__ for statement in program.statements] == [
        "SplitStatement",
        "MeshStatement",
        "SplitStatement",
        "StoreStatement",
        "ReduceStatement",
    ]


def test_places_point_into_the_text_of_the_preset() -> None:
    """Otherwise an error shows the line of the USE with carets under the wrong words."""
    program = parse_strategy("USE 'zero3'", source="x.trim")
    store = program.statements[-1]
    assert isinstance(store, StoreStatement)
    span = store.tables[1].span
    line = program.documents[span.source].splitlines()[span.line - 1]
    assert line[span.column - 1 : span.column - 1 + span.length] == "grads"
    assert str(program.uses[span.source]) == "x.trim:1:1"


def test_a_preset_used_twice_has_two_texts() -> None:
    """Otherwise an error in the second names the first."""
    program = parse_strategy("USE 'zero1'\nUSE 'zero1'", source="x.trim")
    assert set(program.uses) == {"preset zero1", "preset zero1 (2)"}
    (problem, *_) = check_program(program, 8)
    assert problem.message == "a second MESH"
    assert [str(place.span) for place in problem.others] == ["preset zero1:3:1", "x.trim:2:1"]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("USE 'zero4'", "1:5", "unknown preset 'zero4'"),
        ("USE 'megatron-3d'(ptp = 4)", "1:19", "preset 'megatron-3d' has no parameter 'ptp'"),
        ("USE 'zero3'(dp = 4)", "1:13", "preset 'zero3' has no parameter 'dp'"),
        ("USE 'megatron-3d'(tp = 4, tp = 8)", "1:27", "'tp' is set twice"),
        ("USE 'megatron-3d'(tp = 'four')", "1:24", "tp = 'four'; expected a whole number, such as 8"),
        ("USE 'megatron-3d'(tp = 4.0)", "1:24", "tp = 4.0; expected a whole number, such as 8"),
        ("USE 'hierarchical'(level = 3)", "1:28", "level = 3; expected a text in quotes, such as 'node'"),
        ("USE 'diloco'(momentum = 'x')", "1:25", "momentum = 'x'; expected a number, such as 0.9"),
    ],
)
def test_wrong_uses(text: str, place: str, message: str) -> None:
    """Otherwise a misspelt parameter keeps its default in silence."""
    assert str(error_of(text)).startswith(f"x.trim:{place}  {message}")


def test_near_names_are_suggested() -> None:
    """Otherwise a user must look up what there is."""
    assert "Did you mean 'zero3'?" in str(error_of("USE 'zreo3'"))
    error = str(error_of("USE 'megatron-3d'(ptp = 4)"))
    assert "megatron-3d takes pp = 2, tp = 8, num_microbatches = 8.  Did you mean 'tp'?" in error


def test_every_wrong_use_and_every_other_error_is_reported() -> None:
    """Otherwise a user mends one and meets the next."""
    error = error_of("USE 'zero4'\nUSE 'zero3'(a = 1, b = 2)\nSPLIT heads OVR tp\nSPLIT haeds OVER tp")
    assert [problem.span.line for problem in error.problems] == [1, 2, 2, 3, 4]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    """Otherwise `strategy show` ends in a traceback."""
    with pytest.raises(UnknownPresetError, match="Did you mean 'hsdp'"):
        preset("hsd")
    assert preset("hsdp").parameters == {"shards": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x:1:1  the first line of a preset is its header"),
        ("MESH dp 2\n-- text\n", "x:1:1  the first line of a preset is its header"),
        ("PRESET 'a'(b)\n-- text\n", "x:1:13  found ')'; expected '='"),
        ("PRESET 'a'\nMESH dp 2\n", "x:2:1  the second line of a preset is a comment that says what it is"),
    ],
)
def test_texts_that_are_no_presets(text: str, message: str) -> None:
    """Otherwise a file that somebody adds breaks in an assertion."""
    with pytest.raises(StrategyError) as caught:
        read_preset(text, source="x")
    assert str(caught.value).startswith(message)


def test_presets_contain_no_other_preset() -> None:
    """Otherwise a circle of presets hangs the command."""
    for name in preset_names():
        assert not re.search(r"^\s*use\b", preset(name).text, re.IGNORECASE | re.MULTILINE)


def test_the_printed_defaults_are_a_program_that_changes_nothing() -> None:
    """Otherwise the prelude says something else than what holds."""
    program = parse_strategy(DEFAULTS, source="defaults")
    for devices in (1, 4):
        told, untold = (resolve_layout(found, devices) for found in (program, parse_strategy("", source="x")))
        assert (told.mesh, told.batch_axes, told.routes) == (untold.mesh, untold.batch_axes, untold.routes)
    assert any(isinstance(statement, SplitStatement) for statement in program.statements)
