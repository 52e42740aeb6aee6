"""The page about `query`: its questions are asked, its answers are what came, its tables are those that are declared.

TRIMTAB_REGENERATE=1 writes answers and tables into the page; what it says about them is for people to check.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.app.spiking_run import SpikingRun
from trimtab.ledger.relations import RUN_SCHEMAS
from trimtab.plan.relations.decisions import Property
from trimtab.plan.relations.every_relation import PLAN_SCHEMAS
from trimtab.terms import Schema

PAGE = Path(__file__).parents[2] / "docs" / "query.md"
_JOB = re.compile(r"```yaml\n(run: questions\n.*?)```", re.DOTALL)
_QUESTION = re.compile(
    r"^### ([^\n]+\?)\n(?:\n\w[^\n]+\n)?\n```sql\n(.+?)\n```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
_NUM_OF_PLAN = 7


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def rewrite(old: str, new: str) -> None:
    """Put something else into the page, where that was asked for."""
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        PAGE.write_text(page().replace(old, new), encoding="utf-8")


def test_there_are_ten_questions() -> None:
    """A pattern that finds nothing would let the other tests pass."""
    assert len(_QUESTION.findall(page())) == 10


@pytest.mark.parametrize("number", range(10))
def test_every_answer_is_what_the_question_gives(number: int, cli: Any, desk: Path) -> None:
    """A reader who asks the same must see the same."""
    (desk / "questions.yaml").write_text(_JOB.findall(page())[0], encoding="utf-8")
    SpikingRun(desk / "runs" / "spiking-1").write()
    title, sql, shown = _QUESTION.findall(page())[number]
    answer = cli("query", "questions.yaml" if number < _NUM_OF_PLAN else "spiking", sql)
    assert answer.code == 0, answer.err
    rewrite(f"```sql\n{sql}\n```\n\n```text\n{shown}```", f"```sql\n{sql}\n```\n\n```text\n{answer.out}```")
    assert page().count(f"\n### {title}\n") == 1
    assert _QUESTION.findall(page())[number][2] == answer.out


@pytest.mark.parametrize(
    ("heading", "schemas"),
    [("## The tables of a plan", PLAN_SCHEMAS), ("## The tables of a run", RUN_SCHEMAS)],
)
def test_every_table_and_column_is_described_as_it_is_declared(
    heading: str, schemas: Iterable[Schema[Any]]
) -> None:
    """What a column holds stands in the code; a page that says something else would be believed."""
    written = "".join(described(schema) for schema in schemas)
    _, _, rest = page().partition(f"{heading}\n")
    section = rest.partition("\n## ")[0]
    tables = section[section.index("\n### ") :] if "\n### " in section else ""
    rewrite(f"{heading}\n{section}", f"{heading}\n{section.removesuffix(tables)}{written}")
    assert written.strip() in page()


def described(schema: Schema[Any]) -> str:
    lines = [
        f"\n### `{schema.name}`\n",
        f"One row is {schema.meaning}.\n",
        "| column | type | holds |",
        "|---|---|---|",
    ]
    lines += [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in schema.columns]
    return "\n".join(lines) + "\n"


def test_every_property_that_can_be_decided_is_explained() -> None:
    """`decisions` is read by these words."""
    listed = re.findall(
        r"^\| `(\w+)` \| [^|]+ \|$", page().partition("## What is decided\n")[2], re.MULTILINE
    )
    assert listed[: len(Property)] == list(Property)
