"""The table "to add something" names what exists, so that following it works."""

import ast
import re

import pytest

from tests.house.markdown import ROOT, read, table_after

ROWS = dict(table_after("CONTRIBUTING.md", "## To add something"))


def names_in(path: str) -> set[str]:
    """What a module defines at its top: classes, functions and assigned names."""
    defined: set[str] = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined.add(node.target.id)
    return defined


def test_there_are_rows() -> None:
    """An empty table is kept by every code."""
    assert len(ROWS) >= 15


@pytest.mark.parametrize("what", ROWS)
def test_every_path_that_a_row_names_exists(what: str) -> None:
    """A step that names a file of the past cannot be followed."""
    paths = re.findall(r"`([\w.-]+/[\w./-]*|pyproject\.toml|constraints\.txt)`", ROWS[what])
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("what", ROWS)
def test_every_name_that_a_row_places_is_defined_there(what: str) -> None:
    """A registry that was renamed leaves its readers searching."""
    placed = re.findall(r"`(\w+)` in `([\w./]+\.py)`", ROWS[what])
    assert [f"{name} in {path}" for name, path in placed if name not in names_in(path)] == []


@pytest.mark.parametrize("what", ROWS)
def test_no_name_in_a_row_goes_unchecked(what: str) -> None:
    """A name written in another form would pass without being looked up."""
    rest = re.sub(r"`\w+` in `[\w./]+\.py`", "", ROWS[what])
    quoted = re.findall(r"`([^`]+)`", rest)
    assert [name for name in quoted if "/" not in name and "." not in name] == []


def test_the_commands_it_names_are_in_the_makefile() -> None:
    """The first thing that a contributor types must work."""
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"^make ([\w-]+)", read("CONTRIBUTING.md"), re.MULTILINE))
    assert named
    assert named <= targets
