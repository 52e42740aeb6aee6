"""What stands beside exported weights."""

from pathlib import Path
from typing import Any

import pytest

from trimtab.runtime.data import open_corpus
from trimtab.runtime.weights.exporting import find_companions
from trimtab.spec import Job, load_job


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads a job in a folder of its own with a small text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    for number in range(4):
        (tmp_path / "text" / f"{number}.txt").write_text("one two three " * 50)

    def load(tokenizer: str, model: str = "{preset: gpt-3m, vocab: 300}") -> Job:
        text = f"run: x\nmodel: {model}\ndata: {{text: text, tokenizer: {tokenizer}}}\ntrain: {{steps: 1}}\n"
        return load_job(text, source="job.yaml", read=lambda path: Path(path).read_text()).job

    return load


def test_bytes_have_no_file(job: Any) -> None:
    """There is nothing to copy."""
    assert find_companions(job("bytes"), Path("runs/x-1")) == {}


@pytest.mark.parametrize("named", ["published", "published/tokenizer.json"])
def test_a_tokenizer_is_copied_with_what_is_read_beside_it(job: Any, named: str) -> None:
    """A chat template or a merge table that stays behind changes what the model is told."""
    folder = Path("published")
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "merges.txt", "README.md"):
        (folder / name).write_text("{}")
    assert find_companions(job(named), Path("runs/x-1")) == {
        name: folder / name for name in ("tokenizer.json", "tokenizer_config.json", "merges.txt")
    }


def test_a_tokenizer_under_another_name_gets_the_usual_one(job: Any) -> None:
    """Others look for `tokenizer.json`; what stands beside it may belong to another."""
    Path("mine.json").write_text("{}")
    Path("merges.txt").write_text("")
    assert find_companions(job("mine.json"), Path("runs/x-1")) == {"tokenizer.json": Path("mine.json")}


def test_a_trained_tokenizer_is_found_in_the_cache(job: Any) -> None:
    """It was made by the run and stands nowhere else."""
    trained = job("{bpe: {vocab: 260}}")
    run = Path("runs/x-1")
    assert find_companions(trained, run) == {}
    open_corpus(
        text="text",
        field=trained.data.field,
        tokenizer={"bpe": {"vocab": 260}},
        sequence=8,
        held_out=trained.data.held_out,
        packing="pack",
        seed=trained.train.seed,
        cache_folder="runs/.tokens",
    )
    found = find_companions(trained, run)
    assert list(found) == ["tokenizer.json"]
    assert '"BPE"' in found["tokenizer.json"].read_text()
    for path in Path("text").iterdir():
        path.unlink()
    assert find_companions(trained, run) == {}


def test_how_text_is_generated_comes_from_the_folder(job: Any) -> None:
    """The tokens at which generation ends are those that the model was trained to end with."""
    folder = Path("base")
    folder.mkdir()
    (folder / "generation_config.json").write_text("{}")
    (folder / "config.json").write_text(
        '{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 256, "vocab_size": 300}'
    )
    found = find_companions(job("bytes", "{folder: base}"), Path("runs/x-1"))
    assert found == {"generation_config.json": folder / "generation_config.json"}
