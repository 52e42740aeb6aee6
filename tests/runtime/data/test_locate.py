import os
import re

import pytest

from trimtab.runtime.data.errors import DataError, DataWarning
from trimtab.runtime.data.locate import PYTHON_STDLIB, FileKind, locate


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(text):
    return [file.name for file in locate(text)]


def test_folder_is_read_recursively_in_order_of_names(tmp_path):
    """If the order were the file system's, two machines would train on different streams."""
    write(tmp_path, "b.txt", "a/z.txt", "a/y/x.txt", "c.txt", ".hidden", ".git/config")
    assert names(str(tmp_path)) == ["a/y/x.txt", "a/z.txt", "b.txt", "c.txt"]


def test_names_do_not_depend_on_where_the_folder_stands(tmp_path):
    """If they did, moving the data would change which documents are held out."""
    write(tmp_path, "here/a/x.txt", "there/a/x.txt")
    assert names(str(tmp_path / "here")) == names(str(tmp_path / "there")) == ["a/x.txt"]


def test_glob_list_and_file(tmp_path):
    """The forms of data.text that the documentation promises."""
    write(tmp_path, "a/1.txt", "a/b/2.txt", "a/b/3.md", "4.jsonl", "5.parquet")
    found = locate([str(tmp_path / "a/**/*.txt"), str(tmp_path / "4.jsonl"), str(tmp_path / "5.parquet")])
    assert [(file.name, file.kind) for file in found] == [
        ("1.txt", FileKind.TEXT),
        ("b/2.txt", FileKind.TEXT),
        ("4.jsonl", FileKind.JSONL),
        ("5.parquet", FileKind.PARQUET),
    ]


def test_file_whose_name_has_wildcards_is_a_file(tmp_path):
    """A name such as ``part[1].txt`` must not be taken for a pattern that matches ``part1.txt``."""
    write(tmp_path, "part[1].txt", "part1.txt")
    assert names(str(tmp_path / "part[1].txt")) == ["part[1].txt"]


def test_a_file_named_twice_is_read_once(tmp_path):
    """Otherwise one document could be trained on under one name and held out under another."""
    write(tmp_path, "a/x.txt", "a/y.txt")
    (tmp_path / "a/link.txt").symlink_to("y.txt")
    with pytest.warns(DataWarning, match=r"2 file\(s\) more than once"):
        assert names([str(tmp_path / "a"), str(tmp_path / "a/x.txt")]) == ["link.txt", "x.txt"]


def test_links_to_folders_are_followed(tmp_path):
    """Data is often linked into place from another disk."""
    write(tmp_path, "disk/x.txt", "data/y.txt")
    (tmp_path / "data/more").symlink_to(tmp_path / "disk")
    assert names(str(tmp_path / "data")) == ["more/x.txt", "y.txt"]


def test_loop_of_folders_is_named(tmp_path):
    """A loop must end in a sentence, not in a scan that never ends."""
    write(tmp_path, "data/a/x.txt")
    (tmp_path / "data/a/up").symlink_to(tmp_path / "data")
    with pytest.raises(DataError, match=r"a/up is a loop of links"):
        locate(str(tmp_path / "data"))


def test_recursive_glob_does_not_follow_a_loop(tmp_path):
    """Two loops side by side would give 2**40 paths."""
    write(tmp_path, "a/x.txt")
    for name in ("one", "two"):
        (tmp_path / "a" / name).symlink_to(tmp_path / "a")
    assert names(str(tmp_path / "**/*.txt")) == ["a/x.txt"]


def test_link_to_itself_and_link_to_nothing(tmp_path):
    """The message names the link, not errno 40."""
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "gone").symlink_to("nowhere.txt")
    with pytest.raises(DataError, match="self is a loop of symbolic links"):
        locate(str(tmp_path / "self"))
    with pytest.raises(DataError, match=r"gone is a link to nowhere\.txt, which does not exist"):
        locate(str(tmp_path / "gone"))
    (tmp_path / "self").unlink()
    with pytest.raises(DataError, match=r"gone is a link to nowhere\.txt"):
        locate(str(tmp_path))


def test_missing_path_names_the_nearest(tmp_path, monkeypatch):
    """A typing error is mended in one look, also in the middle of a path."""
    write(tmp_path, "corpus/train.txt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no file or folder 'corpsu'; did you mean 'corpus'\?"):
        locate("corpsu")
    with pytest.raises(DataError, match=r"'corpsu' does not exist; did you mean 'corpus'\?"):
        locate("corpsu/train.txt")
    with pytest.raises(DataError, match=re.escape("did you mean 'corpus/train.txt'?")):
        locate("corpus/tran.txt")
    with pytest.raises(DataError, match=rf"did you mean '{PYTHON_STDLIB}'\?"):
        locate("python-stdlb")
    with pytest.raises(DataError, match=f"paths start at {str(tmp_path)!r}"):
        locate("zzz")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.org/a.txt", "is a location on a network"),
        ("s3://bucket/a.parquet", "is a location on a network"),
        ("file:///etc/passwd", "is a location on a network"),
        ("", "is not a path"),
        ("a\0b", "is not a path"),
    ],
)
def test_what_is_not_a_local_path_is_refused(source, message):
    """A location must not be read as a path by one layer and fetched by another."""
    with pytest.raises(DataError, match=message):
        locate(source)


def test_nothing_found_is_an_error(tmp_path):
    """A run on nothing would look like a run that learns nothing."""
    with pytest.raises(DataError, match="holds no documents"):
        locate(str(tmp_path))
    with pytest.raises(DataError, match=r"no file matches .*\*\.txt"):
        locate(str(tmp_path / "*.txt"))
    with pytest.raises(DataError, match="the list is empty"):
        locate([])


def test_pipe_is_refused_rather_than_waited_for(tmp_path):
    """Opening a pipe blocks for ever."""
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path, "x.txt")
    with pytest.raises(DataError, match="not a regular file"):
        locate(str(tmp_path / "pipe"))
    assert names(str(tmp_path)) == ["x.txt"]


def test_python_stdlib_is_there_and_sorted():
    """The quickstart's text: enough of it, in one order, without what differs between installations."""
    found = [file.name for file in locate(PYTHON_STDLIB)]
    assert found == sorted(found)
    assert {"argparse.py", "json/decoder.py"} <= set(found)
    assert not [
        name for name in found if "site-packages" in name or name.startswith(("test/", "_sysconfigdata"))
    ]
