import fcntl
import itertools
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest

from trimtab.runtime.data.cache import Recipe, open_cache
from trimtab.runtime.data.documents import find_documents
from trimtab.runtime.data.errors import DataError, DataWarning
from trimtab.runtime.data.tokenizers import choose_tokenizer

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"document {number} " * 20)
    return folder


def recipe_of(text, *, tokenizer="bytes", held_out=0.2, seed=0):
    return Recipe(
        documents=find_documents(str(text), field="text"),
        tokenizer=choose_tokenizer(tokenizer),
        held_out=held_out,
        seed=seed,
    )


def decode(stream):
    """The documents of a stream of bytes."""
    begins = [0, *stream.ends.tolist()]
    return {stream.tokens[a : b - 1].tobytes().decode() for a, b in itertools.pairwise(begins)}


def test_streams_hold_every_document_on_one_side(text, tmp_path):
    """A document on both sides makes the evaluation a lie; one on neither is lost."""
    cached = open_cache(tmp_path / "cache", recipe_of(text))
    train, held_out = decode(cached.train), decode(cached.held_out)
    assert train
    assert held_out
    assert not train & held_out
    assert train | held_out == {path.read_text() for path in text.iterdir()}
    assert (cached.train.tokens[cached.train.ends - 1] == cached.train.boundary).all()


def test_second_time_nothing_is_built(text, tmp_path):
    """Otherwise each start of a run would pay for the tokens again."""
    reports = []
    first = open_cache(tmp_path / "cache", recipe_of(text), on_progress=reports.append)
    assert reports[-1].fraction == 1.0
    assert reports[-1].num_documents == 40
    assert reports[-1].num_tokens == len(first.train.tokens) + len(first.held_out.tokens)
    reports.clear()
    second = open_cache(tmp_path / "cache", recipe_of(text), on_progress=reports.append)
    assert second.digest == first.digest
    assert not reports


def test_any_change_gives_another_cache(text, tmp_path):
    """Stale tokens would train on what the user no longer has."""
    keys = {recipe_of(text).key()}
    keys.add(recipe_of(text, held_out=0.3).key())
    keys.add(recipe_of(text, seed=1).key())
    keys.add(recipe_of(text, tokenizer={"bpe": {"vocab": 300}}).key())
    (text / "00.txt").write_text("edited")
    keys.add(recipe_of(text).key())
    (text / "00.txt").unlink()
    keys.add(recipe_of(text).key())
    assert len(keys) == 6


def test_digest_is_of_the_content(text, tmp_path):
    """A copy of the data on another machine is the same data; an edit of one letter is not."""
    first = open_cache(tmp_path / "cache", recipe_of(text))
    copy = tmp_path / "copy"
    shutil.copytree(text, copy, copy_function=shutil.copyfile)
    assert open_cache(tmp_path / "cache", recipe_of(copy)).digest == first.digest
    (copy / "00.txt").write_text((copy / "00.txt").read_text().replace("d", "e", 1))
    assert open_cache(tmp_path / "cache", recipe_of(copy)).digest != first.digest


def test_trained_tokenizer_sees_only_training_documents_and_is_kept(text, tmp_path):
    """A tokenizer trained on held-out text has seen what it is judged on."""
    held_out = next(
        path
        for path in sorted(text.iterdir())
        if path.read_text() in decode(open_cache(tmp_path / "cache", recipe_of(text)).held_out)
    )
    held_out.write_text("zyzzyva " * 500)
    cached = open_cache(tmp_path / "cache", recipe_of(text, tokenizer={"bpe": {"vocab": 280}}))
    saved = (cached.folder / "tokenizer.json").read_text()
    assert "document" in saved
    assert "zy" not in saved
    assert len(cached.train.tokens) < sum(path.stat().st_size for path in text.iterdir())


def test_digest_tells_documents_apart(tmp_path):
    """The same bytes cut into other documents make other samples when padded."""
    digests = []
    for name, texts in (("one", ["a\0b"]), ("two", ["a", "b"])):
        (tmp_path / name).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / name / str(number)).write_text(text)
        cached = open_cache(tmp_path / "cache", recipe_of(tmp_path / name, held_out=0))
        assert cached.train.tokens.tobytes() == b"a\0b\0"
        digests.append(cached.digest)
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.tokens", b"short"),
        ("train.tokens", b"far too long" * 10_000),
        ("held_out.ends", b""),
        ("meta.json", b'{"vocab_size": 256'),
        ("meta.json", b"[]"),
        ("meta.json", b"\xff"),
        ("train.tokens", None),
    ],
)
def test_damaged_cache_is_built_again(text, tmp_path, name, content):
    """Half a file must be neither trained on nor a reason to stop."""
    first = open_cache(tmp_path / "cache", recipe_of(text))
    tokens = first.train.tokens.copy()
    path = first.folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.warns(DataWarning, match="is damaged"):
        again = open_cache(tmp_path / "cache", recipe_of(text))
    assert again.digest == first.digest
    assert (again.train.tokens == tokens).all()
    assert (first.train.tokens == tokens).all(), "who still maps the old files keeps them"


def test_failed_build_leaves_nothing(tmp_path):
    """A folder of rubbish for each try would fill the disk."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 50 + "{")
    with pytest.raises(DataError, match=r"a\.jsonl:51:2"):
        open_cache(tmp_path / "cache", recipe_of(tmp_path / "a.jsonl"))
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_edit_during_the_build_is_refused(text, tmp_path):
    """Tokens of a file that is being written would be kept under the name of the finished one."""
    recipe = recipe_of(text)
    (text / "39.txt").write_text("edited after it was found")
    with pytest.raises(DataError, match=r"39\.txt changed while it was being read"):
        open_cache(tmp_path / "cache", recipe)


def test_folder_that_cannot_be_written(text, tmp_path):
    """The message names the key to change."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"data\.cache: tokens cannot be written to .*Not a directory"):
        open_cache(tmp_path / "file" / "cache", recipe_of(text))


def _open(text, folder, queue):
    reports = []
    waiting = iter([lambda: queue.put("waiting")])
    cached = open_cache(
        Path(folder),
        recipe_of(text),
        on_progress=reports.append,
        on_wait=lambda _: next(waiting, lambda: None)(),
    )
    queue.put((cached.digest, len(reports) > 0))


def _die_at_the_end_of_the_build(text, folder):
    open_cache(Path(folder), recipe_of(text), on_progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.process
def test_three_ranks_build_one_cache(text, tmp_path):
    """Ranks start together: one builds, the others tell that they wait, all see the same tokens."""
    folder = tmp_path / "cache"
    folder.mkdir()
    queue = SPAWN.Queue()
    ranks = [SPAWN.Process(target=_open, args=(text, folder, queue)) for _ in range(3)]
    # The lock is held from here until all three wait for it, so that they really meet.
    with (folder / f"{recipe_of(text).key()}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for rank in ranks:
            rank.start()
        assert [queue.get(timeout=60) for _ in ranks] == ["waiting"] * 3
    results = [queue.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    assert len({digest for digest, _ in results}) == 1
    assert sorted(has_built for _, has_built in results) == [False, False, True]


@pytest.mark.process
def test_killed_builder_is_replaced(text, tmp_path):
    """A kill in the middle must leave neither a lock nor half a cache behind."""
    folder = tmp_path / "cache"
    rank = SPAWN.Process(target=_die_at_the_end_of_the_build, args=(text, folder))
    rank.start()
    rank.join(60)
    assert rank.exitcode == -signal.SIGKILL
    assert len(list(folder.glob("*.building-*"))) == 1
    cached = open_cache(folder, recipe_of(text))
    assert len(decode(cached.train)) + len(decode(cached.held_out)) == 40
    assert sorted(path.name for path in folder.iterdir()) == [
        cached.folder.name,
        f"{cached.folder.name}.lock",
    ]
