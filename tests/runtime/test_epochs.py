"""Steps, tokens and rates of whole epochs: what is trained on is what the data hold, however it is cut."""

from pathlib import Path

import pytest
import torch

from trimtab.runtime.assembly import count_steps, microbatch_loader, rate_of
from trimtab.runtime.data import open_corpus
from trimtab.spec import load_job

JOB = """
run: epochs
model: {{preset: gpt-3m}}
data: {{text: text, sequence: 16, held_out: 0, packing: {packing}}}
train: {{epochs: {epochs}, batch: {batch}, microbatch: {microbatch}, lr_schedule: {{cosine: {{warmup: 2}}}}}}
fault_tolerance: {{shares: {shares}}}
orchestration: {{devices: 1}}
"""


@pytest.mark.parametrize(
    ("packing", "epochs", "batch", "shares", "microbatch"),
    [
        ("pack", 1, 4, 2, 1),
        ("pack", 1, 8, 4, 2),
        ("pad", 2, 8, 2, 4),
        ("pad", 3, 16, 4, 1),
        ("pack", 1, 512, 4, 8),
        ("pad", 1.5, 8, 8, 1),
    ],
)
def test_every_token_is_used_once_an_epoch(
    tmp_path: Path, packing: str, epochs: float, batch: int, shares: int, microbatch: int
) -> None:
    """NUM-15: the last window is neither dropped nor stepped with another scale, and counters stay together."""
    (tmp_path / "text").mkdir()
    for number in range(5):
        (tmp_path / "text" / f"{number}.txt").write_text("abcdefg " * (20 + 31 * number), encoding="utf-8")
    text = JOB.format(packing=packing, epochs=epochs, batch=batch, shares=shares, microbatch=microbatch)
    job = load_job(text, source="job.yaml", read=lambda path: "").job
    corpus = open_corpus(
        text=str(tmp_path / "text"), field="text", tokenizer="bytes", sequence=16, held_out=0.0, packing=packing,
        seed=0, cache_folder=tmp_path / "cache",
    )  # fmt: skip
    num_steps = count_steps(job, corpus)
    num_samples = round(epochs * corpus.num_samples)
    assert num_steps == -(-num_samples // batch)
    load = microbatch_loader(job, corpus, torch.device("cpu"), microbatch)
    used = 0
    for step in range(num_steps):
        for share in range(shares):
            each = batch // shares
            used += sum(int((targets != -100).sum()) for _, targets in load(step, share * each, each))
    whole = [int((corpus.batch(i, 1)[1] != -100).sum()) for i in range(num_samples)]
    assert used == sum(whole)


@pytest.mark.parametrize(("batch", "shares", "microbatch"), [(8, 1, 8), (8, 2, 1), (8, 8, 1), (8, 4, 2)])
def test_one_tick_of_the_rate_a_step(batch: int, shares: int, microbatch: int) -> None:
    """NUM-14: warm-up counts optimizer steps, not processes, shares or microbatches."""
    text = JOB.format(packing="pack", epochs=1, batch=batch, shares=shares, microbatch=microbatch)
    job = load_job(text, source="job.yaml", read=lambda path: "").job
    rate = rate_of(job, 100)
    assert [round(rate(step) / 1e-3, 6) for step in (0, 1, 2)] == [0.333333, 0.666667, 1.0]
    assert rate(99) == pytest.approx(1e-4, rel=0.01)
