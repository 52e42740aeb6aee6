"""Questions are answered from the tables, and nothing else of the machine can be reached by them."""

import os
from pathlib import Path

import duckdb
import pytest

from trimtab.app import closed_database
from trimtab.app.closed_database import ClosedDatabase
from trimtab.app.errors import QueryError
from trimtab.terms import Column, ColumnType, Relation, Schema

GOLDEN = Path(__file__).parents[1] / "golden" / "app" / "query_errors.txt"

Cells = tuple[str, int | None, int, float | None, bool]

FRUIT: Schema[Cells] = Schema(
    name="fruit",
    meaning="a fruit",
    columns=(
        Column("name", ColumnType.TEXT, "its name", lambda cells: cells[0]),
        Column("seeds", ColumnType.INTEGER, "how many", lambda cells: cells[1]),
        Column("atoms", ColumnType.BIG_INTEGER, "how many", lambda cells: cells[2]),
        Column("grams", ColumnType.REAL, "weight", lambda cells: cells[3]),
        Column("ripe", ColumnType.BOOLEAN, "whether", lambda cells: cells[4]),
    ),
)
ROWS: list[Cells] = [
    ("apple", 5, 2**100 + 1, 0.1, True),
    ('a "quoted"\n, é\x00 \ud800', None, -(2**80), None, False),
    ("melon", 2**63 - 1, 0, 1e-300, True),
]
BASKETS: Schema[str] = Schema(
    name="baskets",
    meaning="a basket",
    columns=(Column("basket", ColumnType.TEXT, "its name", lambda name: name),),
)


def relations() -> tuple[Relation, ...]:
    return FRUIT.filled(lambda: ROWS), BASKETS.filled(lambda: ["left", "right"])


@pytest.fixture
def database() -> ClosedDatabase:
    return ClosedDatabase(relations(), {"params": "the plan cannot be made: it is a secret"})


def test_cells_come_back_as_they_were_put_in(database: ClosedDatabase) -> None:
    """Counts of more than 64 bits, texts with quotes and zeros, NULL: an answer is exact or worthless."""
    answer = database.ask("SELECT * FROM fruit")
    assert answer.names == ("name", "seeds", "atoms", "grams", "ripe")
    assert answer.types == ("VARCHAR", "BIGINT", "HUGEINT", "DOUBLE", "BOOLEAN")
    expected = [(name.replace("\ud800", "?"), *others) for name, *others in ROWS]
    assert list(answer.rows) == expected


def test_an_empty_relation_can_be_asked(database: ClosedDatabase) -> None:
    """A dense network has no experts; that is an answer, not an error."""
    nothing: list[Cells] = []
    assert ClosedDatabase([FRUIT.filled(lambda: nothing)]).ask("SELECT count(*) FROM fruit").rows == [(0,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM fruit",
        "  select COUNT(*) from FRUIT ; -- of them all",
        "WITH f AS (FROM fruit) SELECT count(*) FROM f",
        "FROM fruit SELECT count(*)",
        "SELECT count(*) FROM query('FROM fr' || 'uit')",
        "SELECT count(*) FROM query_table('fr' || 'uit')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT count(*) FROM fr' || 'uit'))",
        "VALUES (3)",
        'SELECT "true" + "false" FROM (PIVOT (SELECT ripe FROM fruit) ON ripe IN (true, false) USING count(*))',
    ],
)  # fmt: skip
def test_statements_that_read(database: ClosedDatabase, sql: str) -> None:
    """However a table is named, its rows are there."""
    assert list(database.ask(sql).rows) == [(3,)]


def test_tables_describe_themselves(database: ClosedDatabase) -> None:
    """DESCRIBE and SHOW are what people try first."""
    assert [row[0] for row in database.ask("DESCRIBE fruit").rows] == [
        column.name for column in FRUIT.columns
    ]
    assert {row[0] for row in database.ask("SHOW TABLES").rows} == {"fruit", "baskets"}
    assert len(database.ask("SUMMARIZE fruit").rows) == len(FRUIT.columns)


def test_rows_are_made_for_those_who_ask(database: ClosedDatabase) -> None:
    """A journal that cannot be read must not keep anybody from the tables that need none."""

    def broken() -> list[str]:
        raise AssertionError("nobody asked")

    mixed = ClosedDatabase([FRUIT.filled(lambda: ROWS), BASKETS.filled(broken)])
    assert mixed.ask("SELECT count(*) FROM fruit").rows == [(3,)]
    with pytest.raises(AssertionError, match="nobody asked"):
        mixed.ask("SELECT * FROM Baskets")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that no question may see."""
    file = tmp_path / "secret.csv"
    file.write_text("a\nforty-two\n")
    duckdb.execute(f"COPY (SELECT 42 AS a) TO '{tmp_path / 'secret.parquet'}'")
    with duckdb.connect(str(tmp_path / "secret.db")) as connection:
        connection.execute("CREATE TABLE secret AS SELECT 42 AS a")
    return file


ESCAPES = [
    "SELECT * FROM read_csv('{secret}.csv')",
    "SELECT * FROM '{secret}.csv'",
    "SELECT * FROM read_text('{secret}.csv')",
    "SELECT * FROM read_blob('{secret}.csv')",
    "SELECT * FROM read_json('{secret}.csv')",
    "SELECT * FROM read_parquet('{secret}.parquet')",
    "SELECT * FROM parquet_metadata('{secret}.parquet')",
    "SELECT * FROM sniff_csv('{secret}.csv')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM query('FROM read_text(''{secret}.csv'')')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('https://example.org/x.csv')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "COPY fruit TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{folder}/out.parquet' (FORMAT parquet)",
    "COPY fruit FROM '{secret}.csv'",
    "EXPORT DATABASE '{folder}/out'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{secret}.db' AS other",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "INSTALL '{folder}/x.duckdb_extension'",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET GLOBAL memory_limit = '100GB'",
    "RESET memory_limit",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CREATE TABLE x AS SELECT 1",
    "CREATE SECRET s (TYPE s3)",
    "INSERT INTO fruit SELECT * FROM fruit",
    "WITH x AS (INSERT INTO baskets VALUES ('x') RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM baskets RETURNING *) SELECT * FROM x",
    "UPDATE fruit SET seeds = 0",
    "DROP TABLE fruit",
    "BEGIN",
    "COMMIT",
    "CHECKPOINT",
    "VACUUM",
    "USE other",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY fruit TO '{folder}/out.csv'",
    "SELECT 1) TO '{folder}/out.csv' --",
    "SELECT * FROM duckdb_extensions()",
    "SELECT * FROM st_read('{secret}.csv')",
    "SELECT getenv('HOME')",
    "SELECT * FROM relations",
    "SELECT * FROM ROWS",
    "",
    "-- nothing but a comment",
]


@pytest.mark.parametrize("sql", ESCAPES)
def test_nothing_but_the_tables_can_be_reached(database: ClosedDatabase, secret: Path, sql: str) -> None:
    """A question may come from anybody: from a chat, from a page, from a model."""
    before = sorted(os.listdir(secret.parent))
    with pytest.raises(QueryError) as caught:
        database.ask(sql.format(secret=secret.with_suffix(""), folder=secret.parent))
    assert "forty-two" not in str(caught.value)
    assert sorted(os.listdir(secret.parent)) == before


def test_there_are_no_secrets_to_read(database: ClosedDatabase) -> None:
    """DuckDB keeps keys of cloud storage in the user's home; a question must not find them."""
    assert database.ask("SELECT * FROM duckdb_secrets()").rows == []


def test_the_settings_are_shut_for_good(database: ClosedDatabase) -> None:
    """Each of them is a door: a second lock behind the check of statements, and names that stand for variables."""
    shut = {
        "allow_community_extensions": "false",
        "allow_persistent_secrets": "false",
        "allowed_directories": "[]",
        "allowed_paths": "[]",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "enable_external_access": "false",
        "lock_configuration": "true",
        "python_enable_replacements": "false",
        "temp_directory": "",
    }
    rows = database.ask("SELECT name, value FROM duckdb_settings()").rows
    assert {name: value for name, value in rows if name in shut} == shut


def test_while_parquet_is_written_other_files_stay_shut(
    database: ClosedDatabase, secret: Path, tmp_path: Path
) -> None:
    """The one folder that is open for the answer must not open another."""
    folder = tmp_path / "answer"
    folder.mkdir()
    for sql in (f"SELECT * FROM read_csv('{secret}')", f"SELECT * FROM read_csv('{folder}/../secret.csv')"):
        with pytest.raises(QueryError, match="reads the tables"):
            database.write_parquet(sql, folder)
    assert list(folder.iterdir()) == []


def test_parquet_keeps_every_digit(database: ClosedDatabase, tmp_path: Path) -> None:
    """A sum of bytes is an integer of 128 bits; as a floating point number it would be another sum."""
    file, num_rows = database.write_parquet("SELECT name, atoms, seeds AS Name FROM fruit -- all", tmp_path)
    assert num_rows == 3
    with duckdb.connect() as connection:
        found = connection.execute(f"FROM read_parquet('{file}')")
        assert [column[0] for column in found.description] == ["name", "atoms", "Name_1"]
        assert [int(row[1]) for row in found.fetchall()] == [row[2] for row in ROWS]


def test_what_is_wrong_with_a_statement_has_its_place_in_parquet_too(
    database: ClosedDatabase, tmp_path: Path
) -> None:
    """The format of an answer must not decide how good an error is."""
    with pytest.raises(QueryError, match=r"query:1:8  no column 'nme'"):
        database.write_parquet("SELECT nme FROM fruit", tmp_path)


def test_two_columns_of_one_name_get_names_of_their_own(database: ClosedDatabase) -> None:
    """JSON has one value under a name."""
    assert database.ask("SELECT 1 AS a, 2 AS a, 3 AS A").names == ("a", "a_1", "A_2")


def test_a_question_that_takes_too_long_is_given_up() -> None:
    """A cross join of large tables must not hold a machine."""
    hurried = ClosedDatabase(relations(), max_seconds=0.3)
    with pytest.raises(QueryError, match=r"given up after 0\.3 s"):
        hurried.ask("SELECT count(*) FROM range(1000000000) a, range(1000) b WHERE a.range + b.range = 7")


def test_a_question_that_needs_too_much_memory_is_refused(database: ClosedDatabase) -> None:
    """And nothing is put on a disk instead."""
    with pytest.raises(QueryError, match="needs more than 2 GB of memory"):
        database.ask("SELECT len(list(range)) FROM range(1000000000)")


def test_an_answer_that_is_too_long_is_refused(
    database: ClosedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are held in memory; a forgotten WHERE must end in a sentence."""
    monkeypatch.setattr(closed_database, "MAX_ROWS", 10)
    assert len(database.ask("SELECT * FROM range(10)").rows) == 10
    with pytest.raises(QueryError, match="more than 10 rows"):
        database.ask("SELECT * FROM range(11)")


WRONG = [
    "SELECT nme FROM fruit",
    "SELECT name,\n       f.seed\nFROM fruit f",
    "SELECT name FROM furit",
    "SELECT * FROM params",
    "SELECT x.name FROM fruit",
    "SELECT flooor(grams) FROM fruit",
    "SELECT sum(name) FROM fruit",
    "SELECT name, count(*) FROM fruit",
    "SELECT 'é' AS e, nme FROM fruit",
    "SELECT * FROM fruit WHERE seeds = 'x'",
    "SELECT seeds + 1 FROM fruit",
    "SELEC name FROM fruit",
    "SELECT name FROM fruit WHERE",
    "SELECT 1;\n  SELECT 2",
    "DELETE FROM fruit",
    "PIVOT fruit ON name USING sum(seeds)",
    "SELECT * FROM read_csv('secret.csv')",
    "SELECT * FROM st_read('x')",
    "",
]


def test_every_error_says_where_and_what_to_do(database: ClosedDatabase) -> None:
    """TRIMTAB_REGENERATE=1 writes the file; read it as somebody who made the mistake."""
    told = []
    for sql in WRONG:
        with pytest.raises(QueryError) as caught:
            database.ask(sql)
        told.append(f"{sql}\n---\n{caught.value}\n")
    text = "\n".join(told)
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_interrupting_ends_the_question(database: ClosedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a long question is the user's, and no error of the question."""

    def interrupted(*_: object) -> None:
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr(closed_database, "_shut_off", interrupted)
    with pytest.raises(KeyboardInterrupt):
        database.ask("SELECT 1")
