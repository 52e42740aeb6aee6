"""A loop in one process: what it trains, and what it is told about its mistakes."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import trimtab
from tests.runtime.test_adopting import JOB, LOOP
from trimtab.ledger import weights_digest
from trimtab.terms import InputError


def run_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str = LOOP, job: str = JOB
) -> dict[str, Any]:
    """The globals of a script that was run in a folder of its own."""
    (folder / "loop.py").write_text(script, encoding="utf-8")
    (folder / "loop.yaml").write_text(job, encoding="utf-8")
    monkeypatch.chdir(folder)
    return runpy.run_path(str(folder / "loop.py"))


def digest(model: torch.nn.Module) -> str:
    views = [
        (name, tuple(p.shape), memoryview(p.detach().numpy()).cast("B"))
        for name, p in model.named_parameters()
    ]
    return weights_digest(views)


def plain_weights(steps: int) -> list[torch.Tensor]:
    """What the same loop gives in plain torch, the whole batch at once, without dropout."""
    script = LOOP[: LOOP.index("session =")].replace("0.2", "0.0")
    names: dict[str, Any] = {}
    exec(script, names)  # the part of the script before it adopts anything
    model, optimizer, scheduler = names["model"], names["optimizer"], names["scheduler"]
    for step in range(steps):
        parts = [names["samples"](range(step * 8 + first, step * 8 + first + 1)) for first in range(8)]
        inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
        losses = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        optimizer.zero_grad()
        (losses[targets != 0].sum() / (targets != 0).sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_an_adopted_loop_trains_what_the_plain_loop_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Momentum, Nesterov, schedule, clipping and ragged targets; only the order of addition differs.

    Ten fp32 steps of weights of about 0.3: errors of 1e-7 a step, and clip_grad_norm_ divides by norm + 1e-6, which
    at norms of about 0.5 is 2e-6 of an update of about 0.05.
    """
    found = run_loop(tmp_path, monkeypatch, LOOP.replace("0.2", "0.0"))
    for adopted, plain in zip(found["model"].parameters(), plain_weights(10), strict=True):
        torch.testing.assert_close(adopted.detach(), plain, rtol=1e-5, atol=2e-6)
    assert "it trains alone and keeps nothing" in capsys.readouterr().err


BROKEN = {
    "optimizer.step()": (
        "    torch.rand(1)", "    optimizer.step()", "the session calls it at the end of each step"
    ),
    "zero_grad": (
        "        valid =", "        optimizer.zero_grad()\n        valid =", "take optimizer.zero_grad() out"
    ),
    "no backward": (
        "        step.backward((losses * valid).sum(), valid.sum())", "        losses.sum().backward()",
        "the loop went on without step.backward",
    ),
    "a mean": (
        "valid.sum())\n", "1.0)\n", "a whole number of at least 0, not 1.0"
    ),
    "left inside": (
        "        valid =", "        break\n        valid =", "was left before its microbatches were all computed"
    ),
    "an iterator": (
        "step.microbatches(samples)", "step.microbatches(iter([]))", "A loader or an iterator will not do"
    ),
    "batch statistics": (
        "nn.GroupNorm(2, 16)", "nn.BatchNorm1d(16)", "2: BatchNorm1d"
    ),
    "buffers": (
        "torch.manual_seed(0)\n", "torch.manual_seed(0)\nclass Count(nn.Tanh):\n    def __init__(self):\n"
        "        super().__init__()\n        self.register_buffer('seen', torch.zeros(()))\n    def forward(self, x):\n"
        "        self.seen += 1\n        return super().forward(x)\nnn.Tanh = Count\n",
        "the model changed its buffers in step 0: 3.seen",
    ),
    "foreign parameters": (
        "torch.optim.SGD(model.parameters()", "torch.optim.SGD([nn.Parameter(torch.zeros(7))]",
        "holds a tensor [7] that is no parameter of the model",
    ),
}  # fmt: skip
"""What a user gets wrong: the line, what it is changed to, and what is said."""


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_mistake_is_answered_by_words_that_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    """Each of these would train something else in silence."""
    line, wrong, words = BROKEN[mistake]
    assert LOOP.count(line) == 1
    with pytest.raises(InputError) as caught:
        run_loop(tmp_path, monkeypatch, LOOP.replace(line, wrong))
    assert words in str(caught.value)


def test_a_process_without_a_run_and_a_job_is_told_how_to_start_one() -> None:
    """`python train.py` is what everybody types first."""
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match="`trimtab run --script"):
        trimtab.adopt(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_ranks_of_another_launcher_do_not_train_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun by hand every process would train the whole batch, and nobody would add anything up."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="another launcher has started several processes"):
        run_loop(tmp_path, monkeypatch)
