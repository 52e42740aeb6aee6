"""What can be said and not yet run is refused by name; what ranks hold whole is told from what they hold in pieces."""

import pytest

from trimtab.spec import parse_strategy
from trimtab.spec.language import is_replicated, preset_names, unsupported_by_runtime


def refusals_of(text: str) -> list[str]:
    problems = unsupported_by_runtime(parse_strategy(text, source="x.trim"))
    return [f"{problem.span.line}:{problem.span.column} {problem.message}" for problem in problems]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("OFFLOAD states, activations TO host", []),
        ("OFFLOAD params, states TO host", ["1:9 OFFLOAD params is not in this release"]),
        ("SEAL grads OVER site", ["1:1 SEAL is not in this release"]),
        ("MESH dp 2\nOFFLOAD grads TO host\nSEAL grads OVER dp", [
            "2:9 OFFLOAD grads is not in this release", "3:1 SEAL is not in this release",
        ]),
    ],
)  # fmt: skip
def test_what_does_not_run_is_named_with_its_place(text: str, messages: list[str]) -> None:
    """Otherwise a run leaves out a statement in silence."""
    assert refusals_of(text) == messages


@pytest.mark.parametrize("name", preset_names())
def test_presets_run(name: str) -> None:
    """Each says more than plain replicas, and nothing that a run would leave out."""
    program = parse_strategy(f"USE '{name}'", source="x.trim")
    assert unsupported_by_runtime(program) == []
    assert not is_replicated(program)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MESH dp 4, site *",
        "SPLIT batch OVER dp",
        "REDUCE grads OVER dp",
        "REDUCE grads OVER dp USING native",
        "REDUCE grads OVER dp USING tree; REDUCE grads OVER dp USING default",
        "REDUCE grads OVER dp IF ANY",
    ],
)
def test_ranks_that_hold_the_same(text: str) -> None:
    """They survive a loss inside the step."""
    assert is_replicated(parse_strategy(text, source="x.trim"))


@pytest.mark.parametrize(
    "text",
    [
        "PLACE layers BETWEEN 0 AND 3 ON pp 0",
        "STORE params, grads, states OVER dp",
        "AVERAGE params OVER site EVERY 64 STEPS USING nesterov(0.7)",
        "RECOMPUTE activations WHERE layer % 2 = 0",
        "KEEP states IN fp32",
        "OFFLOAD states TO host",
        "COMPUTE layers WHERE layer < 2 IN bf16",
        "MESH dp 2 WITHIN node",
        "SPLIT heads, mlp OVER tp",
        "SPLIT batch OF activations WHERE layer = 1 OVER dp ON rank = 0",
        "SPLIT layers OVER pp USING gpipe",
        "REDUCE grads OVER dp USING ring",
        "REDUCE grads WHERE layer < 4 OVER dp",
        "REDUCE grads OVER dp BUCKET 25MB",
        "REDUCE grads OVER dp COMPRESS none",
        "REDUCE grads OVER dp IN bf16",
        "REDUCE grads OVER dp ON class = 'A100'",
    ],
)
def test_what_only_a_plan_can_do(text: str) -> None:
    """Taken for plain replicas it would be left out in silence."""
    assert not is_replicated(parse_strategy(text, source="x.trim"))
