"""EXPLAIN of eleven plans in every form, compared with files; TRIMTAB_REGENERATE=1 writes them anew."""

import os
from pathlib import Path

import pytest

from trimtab.app.explaining import explained
from trimtab.app.explanation_text import explanation_lines, plain
from trimtab.app.explanation_text.comparisons import comparison_lines
from trimtab.app.machines import MachineFacts
from trimtab.app.output import json_text
from trimtab.cost.explanation import document_of
from trimtab.cost.explanation.comparing import Explained, comparison
from trimtab.spec import load_job

GOLDEN = Path(__file__).parents[1] / "golden" / "plan" / "explanation"
MACHINE = MachineFacts(cores=4, memory_bytes=8 * 10**9, has_accelerator=False)
"""What goldens must not depend on."""

JOBS = sorted(path.stem for path in GOLDEN.glob("*.yaml"))
NARROW, WIDE = 60, 120

_known: dict[str, Explained] = {}


def explained_job(name: str) -> Explained:
    """A golden job with its plan and its explanation, made once."""
    if name not in _known:
        text = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
        loaded = load_job(text, source=f"{name}.yaml", read=lambda path: "")
        plan, found = explained(loaded, MACHINE)
        _known[name] = Explained(program=loaded.program, plan=plan, explanation=found)
    return _known[name]


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")


def test_there_are_plans_of_every_sort() -> None:
    """A golden folder that nobody fills compares nothing."""
    assert len(JOBS) >= 10


@pytest.mark.parametrize("name", JOBS)
def test_document(name: str) -> None:
    """Programs read it: a key that changes its meaning breaks them silently."""
    check(f"{name}.json", json_text(document_of(explained_job(name).explanation)))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_text(name: str, width: int) -> None:
    """What people read, on a phone's terminal and on a desk's."""
    check(f"{name}.{width}.txt", plain(explanation_lines(explained_job(name).explanation, width=width)))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("width", [30, NARROW, 79, WIDE, 200])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    """A line that wraps by itself breaks the tree."""
    text = plain(explanation_lines(explained_job(name).explanation, width=width))
    assert max(map(len, text.splitlines())) <= max(width, NARROW)


CHANGES = (
    ("ddp", "diloco"),
    ("zero3", "hsdp"),
    ("megatron-3d", "llama3-405b-4d"),
    ("quickstart", "quickstart"),
)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_comparison(before: str, after: str) -> None:
    """What a change does, before it has cost a night."""
    compared = comparison(explained_job(before), explained_job(after))
    name = f"{before}-to-{after}"
    check(f"{name}.diff.json", json_text(document_of(compared)))
    for width in (NARROW, WIDE):
        text = plain(comparison_lines(compared, width=width))
        assert max(map(len, text.splitlines())) <= width
        check(f"{name}.diff.{width}.txt", text)
