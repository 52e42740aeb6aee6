"""The rooms are what CONTRIBUTING says they are, and their imports look down."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.markdown import ROOT, table_after

ROOMS = sorted(path.parent for path in (ROOT / "trimtab").glob("*/__init__.py"))
NOT_NOUNS = {"utils", "util", "common", "helpers", "misc", "core", "base"}


def question_of(room: Path) -> str:
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert docstring is not None, f"{room.name} does not say what its lines answer"
    return docstring


def test_the_table_of_rooms_is_the_package() -> None:
    """Who looks for the place of a new line asks this table."""
    rows = {room.strip("`"): question for room, question in table_after("CONTRIBUTING.md", "## The rooms")}
    assert rows == {room.name: question_of(room) for room in ROOMS}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_states_its_question_in_one_sentence(room: Path) -> None:
    """A room that needs two sentences is two rooms."""
    question = question_of(room)
    assert "\n" not in question
    assert question[-1] in "?."
    assert not question[:-1].count("?") + question[:-1].count(".")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_lists_every_public_name_that_it_offers(room: Path) -> None:
    """What is imported into a room's front and not listed is neither public nor private."""
    tree = ast.parse((room / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    listed = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id == "__all__"
        for name in ast.literal_eval(node.value)
    }
    assert imported == listed


def test_no_module_is_a_drawer() -> None:
    """A file named after nothing collects everything."""
    names = {path.stem for path in (ROOT / "trimtab").rglob("*.py")}
    names |= {path.name for path in (ROOT / "trimtab").rglob("*") if path.is_dir()}
    assert not names & NOT_NOUNS


def test_every_test_stands_in_the_folder_of_its_room() -> None:
    """Who changes a module must find its tests."""
    rooms = {room.name for room in ROOMS} | {"house", "bench", "referee"}
    elsewhere = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.relative_to(ROOT / "tests").parts[0] not in rooms
    ]
    assert elsewhere == []


def test_imports_keep_the_contracts() -> None:
    """One import that looks up, and the command line waits for torch again."""
    checked = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout[-2000:] + checked.stderr[-2000:]
