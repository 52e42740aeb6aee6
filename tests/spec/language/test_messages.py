"""Broken programs and what their authors are told: the messages are pinned, word for word.

Run with TRIMTAB_REGENERATE=1 to write them anew, and review the difference.
"""

import os
import re
from pathlib import Path

import pytest

from trimtab.spec import StrategyError, parse_strategy, resolve_layout

BROKEN = Path(__file__).parents[2] / "golden" / "spec" / "language"
PROGRAMS = sorted(BROKEN.glob("*.trim"))


def message_for(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    match = re.match(r"-- on ([0-9]+) devices\n", text)
    assert match is not None
    with pytest.raises(StrategyError) as caught:
        resolve_layout(parse_strategy(text, source=path.name), int(match[1]))
    return f"{caught.value}\n"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_message(path: Path) -> None:
    """Otherwise a user is told something else than was reviewed."""
    message, golden = message_for(path), path.with_suffix(".txt")
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        golden.write_text(message, encoding="utf-8")
    assert message == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["syntax", "names", "conditions", "presets"])
def test_no_statement_is_wrong_in_silence(name: str) -> None:
    """Otherwise a user mends what is shown and meets the next error; every statement of these files is wrong."""
    path = BROKEN / f"{name}.trim"
    places = re.findall(rf"^{name}\.trim:([0-9]+):", message_for(path), re.MULTILINE)
    lines = path.read_text(encoding="utf-8").splitlines()
    statements = {number for number, line in enumerate(lines, start=1) if re.match(r"[A-Z=]", line)}
    assert len(statements) >= 7
    assert statements <= set(map(int, places))


def test_there_are_enough() -> None:
    """Otherwise the folder moved and nothing above was checked."""
    assert len(PROGRAMS) >= 8
