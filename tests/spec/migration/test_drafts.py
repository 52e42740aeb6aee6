"""A migration in the making."""

import pytest

from tests.spec.migration.answers import setting
from trimtab.spec.migration import Fate, MigrationError
from trimtab.spec.migration.drafts import Draft, WrittenNumber, run_name, size


def draft(*found: tuple[str, object], **options: object) -> Draft:
    return Draft(found, system="Other", name="folder/My Run.json", **options)


def test_a_setting_without_a_fate_is_an_error_of_ours():
    """A setting that no rule answers would vanish from the table."""
    with pytest.raises(AssertionError, match="zz"):
        draft(("zz", 1)).migration("x")


def test_what_nothing_asked_for_is_unknown_with_the_nearest_name():
    """A misspelt setting did nothing there; here its author learns of it."""
    found = draft(("train.stepz", 5), ("lr", 1), ("elsewhere.other", 2))
    found.carried("train.steps", {"train.steps": 7})
    found.irrelevant("optimizer.lr", "x")
    found.unknown()
    migration = found.migration("x")
    assert setting(migration, "train.stepz").reason == "Other has no such setting; did you mean train.steps?"
    assert setting(migration, "lr").reason == "Other has no such setting; did you mean optimizer.lr?"
    assert setting(migration, "elsewhere.other").reason == "Other has no such setting"
    assert {row.fate for row in migration.settings} == {Fate.IMPOSSIBLE}


def test_a_setting_that_was_not_found_has_no_row_but_is_written():
    """A default of the other system differs from ours: it must stand in the job, and in no table."""
    found = draft()
    found.carried("lr", {"train.optimizer.adamw.lr": 1e-3})
    migration = found.migration("x")
    assert migration.settings == ()
    assert migration.job == {"run": "my-run", "train": {"optimizer": {"adamw": {"lr": 1e-3}}}}


def test_keys_and_formulas_come_in_the_order_of_the_job_file():
    """A job file that jumps between sections cannot be compared with another."""
    found = draft(("a", 1), ("b", 2))
    found.carried("a", "STORE states OVER dp", "MESH dp *")
    found.carried("b", {"fault_tolerance.shares": 4, "train.batch": 8, "data.text": "x"})
    migration = found.migration("x")
    assert migration.formulas == "MESH dp *\nSTORE states OVER dp\n"
    assert list(migration.job) == ["run", "data", "train", "fault_tolerance"]
    assert setting(migration, "a").targets == ("STORE states OVER dp", "MESH dp *")


def test_a_later_answer_replaces_an_earlier_one():
    """The setting that wins there must be the one that is written here."""
    found = draft(("a", 1))
    found.carried("a", {"train.batch": 1})
    found.irrelevant("a", "b decides")
    assert setting(found.migration("x"), "a").fate is Fate.IRRELEVANT


def test_an_older_name_is_shown_as_it_was_written():
    """Who wrote the old name searches for it in the table."""
    found = draft(("old", 3), aliases={"old": "new"})
    assert found.integer("new") == 3
    found.carried("new", {"train.batch": 3})
    assert setting(found.migration("x"), "old").becomes == "train.batch"


def test_two_names_of_one_setting_are_refused():
    """One of them would win in silence."""
    with pytest.raises(MigrationError, match="old and new are names of one setting"):
        draft(("new", 3), ("old", 4), aliases={"old": "new"})


@pytest.mark.parametrize(
    ("value", "method", "wanted"),
    [
        ("many", "integer", "a number"),
        (1.5, "integer", "a whole number"),
        (True, "number", "a number"),
        (1, "switch", "true or false"),
        (False, "word", "text"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(value, method, wanted):
    """It would be carried as something else."""
    with pytest.raises(MigrationError) as caught:
        getattr(draft(("zero.stage", value)), method)("zero.stage")
    assert str(caught.value).startswith("zero.stage is ")
    assert str(caught.value).endswith(f"Other takes {wanted} there")


def test_auto_is_no_value_of_any_type():
    """Otherwise auto is a wrong number."""
    found = draft(("a", "auto"))
    assert found.is_auto("a")
    assert (found.integer("a"), found.number("a"), found.switch("a"), found.word("a")) == (None,) * 4


def test_a_number_is_shown_as_it_was_written():
    """5e8 is what the reader searches for, not 500000000.0."""
    found = draft(("a", WrittenNumber("5e8")))
    assert found.integer("a") == 500_000_000
    found.irrelevant("a", "x")
    assert setting(found.migration("x"), "a").written == "a 5e8"


@pytest.mark.parametrize(
    ("source", "name"),
    [("run.sh", "run"), ("a/b/Zero_3 (new).json", "zero-3-new"), ("pretrain", "pretrain"), ("…", "imported")],
)
def test_the_run_is_named_after_the_file(source, name):
    """A name that our own schema refuses stops the job at its first line."""
    assert run_name(source) == name


def test_a_long_name_is_cut():
    """Sixty-three characters is what a run's name may have."""
    assert len(run_name("x" * 100 + ".json")) == 63


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1024, 28_000_000, 2**21, 10**9, 3 * 2**30, 12845056 * 4])
def test_a_size_loses_no_byte(count):
    """A bucket of another size is another plan."""
    from trimtab.terms import parse_bytes

    assert parse_bytes(size(count)) == count
