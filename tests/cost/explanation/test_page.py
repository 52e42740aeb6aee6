"""docs/explain.md lists what there is."""

from dataclasses import fields

from tests.house.markdown import table_after
from trimtab.app.explaining import Format
from trimtab.cost.explanation.document import CautionKind
from trimtab.cost.memory import MemoryClasses

PAGE = "docs/explain.md"


def first_cells(heading: str) -> list[str]:
    return [row[0].strip("`") for row in table_after(PAGE, heading)]


def test_every_warning_is_listed() -> None:
    """A kind that the page does not know sends its reader into the source."""
    assert sorted(first_cells("## Warnings")) == sorted(kind.value for kind in CautionKind)


def test_every_class_of_memory_is_listed() -> None:
    """In the order in which they are told."""
    assert first_cells("## Memory") == [field.name for field in fields(MemoryClasses)]


def test_every_format_is_listed() -> None:
    """Each in the row of its option."""
    (row,) = (row for row in table_after(PAGE, "## How to ask") if "--format" in row[0])
    assert all(f"`{form.value}`" in row[1] for form in Format)
