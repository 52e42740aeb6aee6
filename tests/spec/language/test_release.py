"""What can be said and not yet run is refused by name."""

import pytest

from trimtab.spec import parse_strategy
from trimtab.spec.language import preset_names, unsupported_by_runtime


def refusals_of(text: str) -> list[str]:
    problems = unsupported_by_runtime(parse_strategy(text, source="x.trim"))
    return [f"{problem.span.line}:{problem.span.column} {problem.message}" for problem in problems]


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
def test_what_runs(text: str) -> None:
    """Otherwise a strategy of yesterday no longer runs."""
    assert refusals_of(text) == []


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("PLACE layers BETWEEN 0 AND 3 ON pp 0", ["1:1 PLACE is not in this release"]),
        ("STORE params, grads, states OVER dp", ["1:1 STORE is not in this release"]),
        ("AVERAGE params OVER site EVERY 64 STEPS USING nesterov(0.7)", ["1:1 AVERAGE is not in this release"]),
        ("RECOMPUTE activations WHERE layer % 2 = 0", ["1:1 RECOMPUTE is not in this release"]),
        ("OFFLOAD states TO host", ["1:1 OFFLOAD is not in this release"]),
        ("KEEP states IN fp32", ["1:1 KEEP is not in this release"]),
        ("COMPUTE layers WHERE layer < 2 IN bf16", ["1:1 COMPUTE is not in this release"]),
        ("SEAL grads OVER site", ["1:1 SEAL is not in this release"]),
        ("MESH dp 2 WITHIN node", ["1:18 MESH ... WITHIN is not in this release"]),
        ("SPLIT heads, mlp OVER tp", ["1:7 SPLIT heads is not in this release", "1:14 SPLIT mlp is not in this release"]),
        ("SPLIT batch OF activations WHERE layer = 1 OVER dp ON rank = 0", [
            "1:16 SPLIT ... OF is not in this release", "1:34 SPLIT ... WHERE is not in this release",
            "1:55 SPLIT ... ON is not in this release",
        ]),
        ("SPLIT layers OVER pp USING gpipe", ["1:7 SPLIT layers is not in this release"]),
        ("REDUCE grads OVER dp USING ring", ["1:28 REDUCE grads USING ring is not in this release"]),
        ("REDUCE grads OVER dp USING hierarchical(node, rack)", ["1:28 REDUCE grads USING hierarchical is not in this release"]),
        ("REDUCE grads WHERE layer < 4 OVER dp", ["1:20 REDUCE ... WHERE is not in this release"]),
        ("REDUCE grads OVER dp BUCKET 25MB", ["1:1 REDUCE ... BUCKET is not in this release"]),
        ("REDUCE grads OVER dp COMPRESS none", ["1:31 REDUCE ... COMPRESS is not in this release"]),
        ("REDUCE grads OVER dp IN bf16", ["1:25 REDUCE ... IN is not in this release"]),
        ("REDUCE grads OVER dp ON class = 'A100'", ["1:25 REDUCE ... ON is not in this release"]),
        ("MESH dp 2\nSTORE params OVER dp\nKEEP params IN bf16", [
            "2:1 STORE is not in this release", "3:1 KEEP is not in this release",
        ]),
    ],
)  # fmt: skip
def test_what_does_not_run_is_named_with_its_place(text: str, messages: list[str]) -> None:
    """Otherwise a run leaves out a statement in silence."""
    assert refusals_of(text) == messages


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_runs_by_halves(name: str) -> None:
    """Otherwise a preset trains something else than it says; each says more than plain replicas."""
    problems = unsupported_by_runtime(parse_strategy(f"USE '{name}'", source="x.trim"))
    assert problems
    assert all(problem.others[0].note == "the preset is used here" for problem in problems)
