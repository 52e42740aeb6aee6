from hypothesis import given
from hypothesis import strategies as st

from trimtab.terms import Column, ColumnType, Schema, unique_names

WORDS: Schema[str] = Schema(
    name="words",
    meaning="a word",
    columns=(
        Column("word", ColumnType.TEXT, "itself", lambda word: word),
        Column("letters", ColumnType.INTEGER, "how many", len),
    ),
)


def test_rows_are_made_when_they_are_asked_for_and_anew_each_time() -> None:
    """A table that nobody asks for costs nothing."""
    asked = []

    def words() -> list[str]:
        asked.append(True)
        return ["axis", "dim"]

    relation = WORDS.filled(words)
    assert not asked
    assert list(relation.rows()) == [("axis", 4), ("dim", 3)]
    assert list(relation.rows()) == [("axis", 4), ("dim", 3)]
    assert len(asked) == 2
    assert (relation.name, relation.meaning, relation.columns) == ("words", "a word", WORDS.columns)


@given(st.lists(st.sampled_from(["a", "A", "a_1", "A_1", "b"]), max_size=8))
def test_names_are_unique_whatever_they_were(names: list[str]) -> None:
    """Two columns of one name are one column to SQL and to JSON."""
    found = unique_names(names)
    assert len(found) == len(names)
    assert len({name.casefold() for name in found}) == len(names)
    assert all(new.startswith(old) for new, old in zip(found, names, strict=True))


def test_names_that_are_unique_stay() -> None:
    """Nobody would look for a column under a number."""
    assert unique_names(["rank", "bytes"]) == ("rank", "bytes")
