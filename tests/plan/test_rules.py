"""Each rewrite rule on a program where it acts: what changes, line by line, and that nothing else does.

TRIMTAB_REGENERATE=1 writes the differences anew.
"""

import difflib
from dataclasses import replace
from typing import Any

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan import compiling
from trimtab.plan.rendering import render_program
from trimtab.plan.rules import RULES
from trimtab.plan.verifier import find_wrong

PROGRAMS = {
    "scatter_what_is_stored": "MESH replica 2, dp 2\nSTORE states OVER dp",
    "gather_blocks_at_once": "STORE params, grads, states OVER dp",
    "bucket_gradients": "REDUCE grads OVER dp BUCKET 1MB\nREDUCE grads WHERE kind = 'norm' OVER dp USING tree",
    "gather_updates_at_once": "STORE states OVER dp",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_a_rule_does(
    rule: Any, plan_of: PlanOf, check_golden: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that does something else changes what every user sends."""
    before_it = RULES[: RULES.index(rule)]
    monkeypatch.setattr(compiling, "RULES", before_it)
    before = plan_of(PROGRAMS[rule.__name__], layers=1, model="llama-3m")
    after = rule(before)
    assert list(find_wrong(after)) == []
    difference = difflib.unified_diff(
        render_program(before).splitlines(),
        render_program(after).splitlines(),
        "before",
        "after",
        lineterm="",
        n=1,
    )
    check_golden(f"rules/{rule.__name__}.diff", "\n".join(difference) + "\n")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_applied_twice_changes_nothing_more(rule: Any, plan_of: PlanOf) -> None:
    """A rule that goes on changing its own result depends on how often it runs."""
    plan = rule(plan_of(PROGRAMS[rule.__name__], layers=1, model="llama-3m"))
    again = rule(plan)
    assert render_program(again) == render_program(plan)


def test_every_rule_is_checked_here() -> None:
    """A rule without a program here has never been seen to act."""
    assert {rule.__name__ for rule in RULES} == set(PROGRAMS)


def test_an_empty_rule_list_is_a_plan_too(plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules make a plan cheaper; without them it is right already."""
    monkeypatch.setattr(compiling, "RULES", ())
    plan = plan_of("MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\nSTORE params, grads, states OVER dp")
    assert list(find_wrong(replace(plan))) == []
