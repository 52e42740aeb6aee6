"""Regular expressions as LIKE."""

import re

import pytest

from trimtab.spec.migration.deepspeed.patterns import PatternError, like_patterns

NAMES = (
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.11.self_attn.o_proj.weight",
    "model.layers.1.mlp.gate_proj.weight",
    "model.layers.1.mlp.gate.weight",
    "model.layers.1.mlp.experts.7.w2.weight",
    "model.layers.1.mlp.experts.7.w2.weight_scale",
    "transformer.h.3.self_attention.dense.weight",
    "transformer.h.3.mlp.dense_4h_to_h.weight",
    "lm_head.weight",
)


def matches_like(pattern: str, name: str) -> bool:
    """LIKE by another way than the code under test: character by character."""
    if not pattern:
        return not name
    if pattern[0] == "%":
        return any(matches_like(pattern[1:], name[cut:]) for cut in range(len(name) + 1))
    return bool(name) and pattern[0] in ("_", name[0]) and matches_like(pattern[1:], name[1:])


@pytest.mark.parametrize(
    "expression",
    [
        r".*\.o_proj\.weight$",
        r".*\.[qkv]_proj\.weight$",
        r".*\.(up|gate)_proj\.weight$",
        r".*\.experts\.\d+\.w2\.weight$",
        r".*\.experts\.[0-9]+\.w2",
        r".*(self_attention|attention)\.dense\.weight$",
        r"^lm_head\.weight$",
        r".*\.gate\.weight$",
        r".*mlp.*",
        r".*\.(?:w1|w2)\.weight$",
    ],
)
def test_the_same_names_match(expression):
    """A pattern that matches one tensor more splits one tensor more."""
    patterns = like_patterns(expression)
    for name in NAMES:
        by_like = any(matches_like(pattern, name) for pattern in patterns)
        assert by_like is (re.match(expression, name) is not None), (expression, name)


@pytest.mark.parametrize(
    "expression", [r"a{2}", r"(a|b)*", r"a?b", r"[^a]b", r"(?!x)y", r"a\w", r"x|y", "a'b"]
)
def test_what_like_cannot_say_is_refused(expression):
    """An approximation would split other tensors in silence."""
    with pytest.raises(PatternError):
        like_patterns(expression)
