"""Programs that are well written and cannot be meant: what their authors are told, word for word.

Each file of tests/golden/plan/refused is a program with the job around it in a comment
(``-- devices 8, model llama2-7b``); beside it stands the message. TRIMTAB_REGENERATE=1 writes the messages anew.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.plan.conftest import GOLDEN, PlanOf
from trimtab.spec import StrategyError

PROGRAMS = sorted((GOLDEN / "refused").glob("*.trim"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_message(path: Path, plan_of: PlanOf, check_golden: Any) -> None:
    """A refusal that names no line, or the wrong tensor, costs its reader an hour."""
    text = path.read_text(encoding="utf-8")
    with pytest.raises(StrategyError) as caught:
        plan_of(text, source=path.name, **_options(text))
    message = f"{caught.value}\n"
    assert re.match(rf"{re.escape(path.name)}:\d+:\d+  \S", message), message
    check_golden(f"refused/{path.stem}.txt", message)


def _options(text: str) -> dict[str, Any]:
    """The job that the first comment states."""
    stated = re.match(r"--\s*(.*)", text)
    found: dict[str, Any] = {}
    for item in stated[1].split(",") if stated else ():
        key, _, value = item.strip().partition(" ")
        found[key] = int(value) if value.isdigit() else value
    return found
