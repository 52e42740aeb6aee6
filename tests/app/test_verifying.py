"""Does ``verify`` answer, refuse what it cannot run, and say so in its exit code?"""

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Trimtab
from tests.house.markdown import blocks
from trimtab.app.cli import run_cli
from trimtab.app.job_reading import read_job
from trimtab.app.verifying import MOST_RANKS, document_of, lines_of, quick_plan
from trimtab.runtime.lowering import Crew, Divergence, Verdict, question_of, verify
from trimtab.spec import parse_strategy
from trimtab.spec.language import preset_names
from trimtab.terms import ExitCode

JOB = """\
run: proof
model: {preset: %(preset)s}
data: {text: text, tokenizer: bytes, sequence: 128}
train: {steps: 10, batch: %(batch)s, microbatch: 1, optimizer: {adamw: {lr: 1e-3}}}
orchestration: {devices: %(devices)s, cluster: 512xH100}
fault_tolerance: {shares: "off"}
parallelism: |
%(strategy)s
"""


def job_file(folder: Path, strategy: str, *, devices: int, preset: str = "gpt-3m", batch: int = 64) -> str:
    """A job with a strategy."""
    path = folder / "job.yaml"
    indented = "\n".join(f"  {line}" for line in strategy.splitlines())
    text = JOB % {"preset": preset, "batch": batch, "devices": devices, "strategy": indented}
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.process
def test_an_equal_run(trimtab: Trimtab, tmp_path: Path) -> None:
    """The whole verb, as a user runs it."""
    path = job_file(
        tmp_path,
        "MESH dp 2, tp 2\nSPLIT batch OVER dp\nSPLIT heads, mlp, vocab OVER tp\nSTORE states OVER dp",
        devices=4,
    )
    ran = trimtab("verify", path, "--quick", "--json", timeout=150)
    assert ran.code == ExitCode.DONE
    assert ran.document["is_equal"] is True
    assert ran.document["mesh"] == {"dp": 2, "tp": 2}
    assert ran.document["first"] is None
    assert ran.document["largest_error"] < 1e-5
    assert ran.document["unplanned"] == []
    assert len(ran.document["losses"]) == 2


@pytest.mark.process
def test_the_example_of_the_document(trimtab: Trimtab, tmp_path: Path) -> None:
    """A document whose example says something else than the command teaches mistrust."""
    (job,) = (block for block in blocks("yaml") if str(block).startswith("docs/verify.md"))
    (console,) = (block for block in blocks("console") if str(block).startswith("docs/verify.md"))
    (tmp_path / "proof.yaml").write_text(job.text, encoding="utf-8")
    ran = trimtab("verify", str(tmp_path / "proof.yaml"), "--quick", timeout=150)
    _, *printed = console.text.splitlines()
    assert _without_figures(ran.stdout) == _without_figures("\n".join(printed))


def _without_figures(text: str) -> list[str]:
    """Lines without what differs between machines: roundings."""
    return [re.sub(r"\d\.\d+e-\d+ of|\d+\.\d{6}", "#", line) for line in text.strip().splitlines()]


def test_too_many_ranks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five hundred processes would end the machine, not the question."""
    path = job_file(tmp_path, "MESH dp 64\nSPLIT batch OVER dp", devices=64)
    assert run_cli(["verify", path]) == ExitCode.INPUT_WRONG
    said = capsys.readouterr().err
    assert "64 ranks" in said
    assert "--quick" in said


@pytest.mark.parametrize(
    ("preset", "strategy", "devices", "num_layers"),
    [
        ("llama2-70b", "USE 'megatron-3d'(pp = 4, tp = 8)", 512, 4),
        ("llama2-70b", "MESH dp *\nSTORE params, grads, states WHERE layer < 40 OVER dp", 64, 80),
        ("mixtral-8x7b", "USE 'expert-parallel'", 64, 2),
        ("llama2-70b", "USE 'diloco'", 512, 2),
    ],
)
def test_quick_keeps_the_structure(
    tmp_path: Path, preset: str, strategy: str, devices: int, num_layers: int
) -> None:
    """A small plan of another shape would prove something else."""
    loaded = read_job(job_file(tmp_path, strategy, devices=devices, preset=preset, batch=1024))
    plan = quick_plan(loaded)
    assert plan.mesh.num_devices <= MOST_RANKS
    assert [axis for axis, _ in plan.mesh.axes] == [axis for axis, _ in loaded.layout.mesh.axes]
    assert all(size == 2 for _, size in plan.mesh.axes)
    assert plan.network.layers == num_layers


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", sorted(preset_names()))
def test_every_preset_is_equal(name: str, tmp_path: Path) -> None:
    """A preset is what most users run, and what fewest look at."""
    network = "mixtral-8x7b" if "expert" in name else "llama2-70b"
    path = job_file(tmp_path, f"USE '{name}'", devices=64, preset=network, batch=1024)
    loaded = read_job(path)
    plan = quick_plan(loaded)
    with Crew(plan.mesh.num_devices) as crew:
        verdict = verify(question_of(loaded.job, plan, steps=2), crew)
    assert verdict.divergence is None
    assert verdict.unplanned == ()


DIFFERENT = Verdict(
    divergence=Divergence(
        tensor="gradient of layers.0.attention.wq.weight",
        step=0,
        microbatch=None,
        error=1.0,
        ranks=(0, 1),
        axis="dp",
        ratio=2.0,
        cause="it counts 2 times, once for each rank of dp",
        line=parse_strategy("MESH dp 2\nSPLIT batch OVER dp", source="run.trim").statements[1].span,
    ),
    num_tensors=200,
    num_diverged=41,
    largest_error=1e-6,
    num_parameters=20,
    steps=1,
    losses=(5.5,),
    norms=(None,),
    sent_bytes=1234,
    unplanned=(),
    set_aside=("COMPUTE IN bf16",),
    is_checked_by_decoder=True,
)


def test_a_difference_is_told_with_all_that_is_known(tmp_path: Path) -> None:
    """Tensor, ratio, ranks, axis, cause and line: what a person needs to find the mistake."""
    plan = quick_plan(read_job(job_file(tmp_path, "MESH dp 2\nSPLIT batch OVER dp", devices=2)))
    text = "\n".join(lines_of(plan, DIFFERENT))
    assert text.splitlines()[:7] == [
        "different: gradient of layers.0.attention.wq.weight, step 1",
        "  it is 2 times what one device has",
        "  on ranks 0, 1",
        "  axis dp",
        "  it counts 2 times, once for each rank of dp",
        "  run.trim:2",
        "  41 of 200 tensors differ; the first in order is told",
    ]
    document = json.loads(json.dumps(document_of(plan, DIFFERENT)))
    assert document["is_equal"] is False
    assert document["first"]["ratio"] == 2.0
    assert document["first"]["line"] == "run.trim:2"
