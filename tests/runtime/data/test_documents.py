import json

import duckdb
import pytest

from trimtab.runtime.data.documents import find_documents
from trimtab.runtime.data.errors import DataError


def read(path, field="text"):
    return [(document.name, document.text) for document in find_documents(str(path), field=field)]


def write_parquet(path, query):
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")


def test_text_is_read_as_it_is(tmp_path):
    """Line ends are data; only the mark that says 'this is UTF-8' is not."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    (tmp_path / "b.txt").write_bytes("größer\n".encode())
    (tmp_path / "c.txt").write_bytes(b"")
    assert read(tmp_path) == [("a.txt", "one\r\ntwo\n"), ("b.txt", "größer\n"), ("c.txt", "")]


def test_undecodable_byte_is_found(tmp_path):
    """The offset and the line lead to the byte."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo \xff\n")
    with pytest.raises(DataError, match=r"a\.txt:2  byte 0xff at offset 11 is not UTF-8"):
        read(path)


def test_jsonl(tmp_path):
    """Blank lines are no documents, and numbers in names are those that editors show."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "one", "id": 1}\n\n{"body": "zw\\u00f6lf"}')
    assert read(path, "body") == [("a.jsonl#1", "one"), ("a.jsonl#3", "zwölf")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "b",}', r"a\.jsonl:2:14  not JSON: .*\n    \{\"text\": \"b\",\}\n {17}\^"),
        ('["b"]', r'a\.jsonl:2:1  a line must be an object such as \{"text": "\.\.\."\}, not a list'),
        ('{"txt": "b", "id": 3}', r"a\.jsonl:2:1  no field 'text'; fields found: 'txt', 'id'"),
        ('{"text": null}', r"a\.jsonl:2:1  field 'text' must be a string, not null"),
        ('{"text": 3}', r"a\.jsonl:2:1  field 'text' must be a string, not a number"),
        ('{"text": "\\ud800"}', r"a\.jsonl:2:1  field 'text' holds half of a surrogate pair"),
        ("[" * 100_000, r"a\.jsonl:2:1  JSON nested too deeply"),
        ("1" * 5_000, r"a\.jsonl:2:1  JSON that Python does not read"),
    ],
)
def test_bad_line_is_named(tmp_path, line, message):
    """One bad line in a million must be findable, and never be left out silently."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        read(path)


def test_bad_byte_in_jsonl_is_found(tmp_path):
    """The offset counts from the start of the file."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "\xc3\xbc"}\n{"text": "\xc3("}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2  byte 0xc3 at offset 25"):
        read(path)


def test_long_line_is_shown_around_the_error(tmp_path):
    """A line of a megabyte in an error message would hide the error."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "' + "x" * 10_000 + '",,}')
    with pytest.raises(DataError, match="not JSON") as caught:
        read(path)
    assert len(str(caught.value)) < len(str(path)) + 250
    *_, shown, caret = str(caught.value).splitlines()
    assert shown[caret.index("^")] == ","


def test_parquet_rows_in_order(tmp_path):
    """More rows than one fetch; a path and a column that would break SQL put together from strings."""
    path = tmp_path / "it's [1]*.parquet"
    written = tmp_path / "written.parquet"
    write_parquet(written, 'SELECT i AS id, repeat(i::VARCHAR, 3) AS "te""xt" FROM range(1000) t(i)')
    written.rename(path)
    write_parquet(tmp_path / "decoy.parquet", 'SELECT \'not asked for\' AS "te""xt"')
    (tmp_path / "decoy.parquet").rename(tmp_path / "it's 1x.parquet")
    assert read(path, 'te"xt') == [(f"{path.name}#{i + 1}", str(i) * 3) for i in range(1000)]


def test_parquet_errors(tmp_path):
    """Each names what was found and what was needed."""
    path = tmp_path / "a.parquet"
    write_parquet(path, "SELECT 1 AS id, 'x' AS body")
    with pytest.raises(DataError, match=r"no column 'text'; columns found: 'id', 'body'"):
        read(path)
    with pytest.raises(DataError, match=r"column 'id' must hold strings, not INTEGER"):
        read(path, "id")
    write_parquet(path, "SELECT CASE WHEN i <> 5 THEN 'x' END AS text FROM range(9) t(i)")
    with pytest.raises(DataError, match=r"row 6: column 'text' is null"):
        read(path)
    path.write_bytes(b"PAR1 not at all")
    with pytest.raises(DataError, match=r"cannot be read as Parquet"):
        read(path)


def test_same_text_in_three_formats(tmp_path):
    """The format is not data: the same documents come out."""
    texts = [f"text {i} ü" for i in range(5)]
    (tmp_path / "t").mkdir()
    for i, text in enumerate(texts):
        (tmp_path / "t" / f"{i}.txt").write_text(text)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    write_parquet(tmp_path / "a.parquet", "SELECT 'text ' || i || ' ü' AS text FROM range(5) t(i)")
    for source in ("t", "a.jsonl", "a.parquet"):
        assert [text for _, text in read(tmp_path / source)] == texts


def test_progress_reaches_the_end(tmp_path):
    """A bar that stops at 60 % looks like a hang."""
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    documents = find_documents(str(tmp_path), field="text")
    assert [document.end_bytes for document in documents] == [3, 17, 31]
    assert documents.size_bytes == 31


def test_edit_while_reading_is_noticed(tmp_path):
    """A file that is still being written would be cached half."""
    path = tmp_path / "a.txt"
    path.write_text("abc")
    documents = find_documents(str(path), field="text")
    documents.check_unchanged()
    path.write_text("abcdef")
    with pytest.raises(DataError, match=r"a\.txt changed while it was being read"):
        documents.check_unchanged()
    path.unlink()
    with pytest.raises(DataError, match=r"a\.txt vanished while it was being read"):
        documents.check_unchanged()
