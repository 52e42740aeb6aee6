"""The verb `plan`."""

import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.catalog import published_runs
from trimtab.spec import load_job

JOB = """\
run: seven
model: {preset: llama2-7b}
data: {text: python-stdlib, tokenizer: bytes, sequence: 4096}
train: {steps: 1000, batch: 64, compute: bf16, optimizer: {adamw: {lr: 1e-4}}}
orchestration: {engine: local, devices: 8, cluster: 64xA100}
"""


@pytest.fixture
def job(desk: Path) -> Path:
    """A job for eight of 64 cards."""
    path = desk / "seven.yaml"
    path.write_text(JOB)
    return path


def test_it_says_the_best_as_formulas_with_reasons(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "8", "--top", "2")
    assert found.code == 0
    assert "llama2-7b on 8 of 64xA100" in found.out
    assert "\n1. step " in found.out
    assert "\n2. step " in found.out
    assert "MESH " in found.out
    assert "  -- " in found.out
    assert "--set orchestration.devices=8" in found.out


def test_what_it_says_can_be_explained(cli, job, tmp_path):
    """The formulas and settings of an answer are a job: it compiles, fits, and takes about as long."""
    document = cli("plan", "seven.yaml", "--devices", "8", "--json", "--out", "best.trim").document
    best = document["strategies"][0]
    settings = [word for key, value in best["settings"].items() for word in ("--set", f"{key}={value}")]
    explained = cli("explain", "seven.yaml", "--set", "parallelism={file: best.trim}", *settings, "--json")
    assert explained.code == 0, explained.err
    assert Path("best.trim").read_text().strip() == best["formulas"].strip()
    # One memory, whichever verb is asked.
    needed = max(group["memory"]["peak_bytes"] for group in explained.document["groups"])
    assert best["is_weighed"]
    assert best["memory_bytes"] == needed
    step = explained.document["cost"]["step_s"]["expected"]
    assert best["step_s"]["low"] / 2 < step < best["step_s"]["high"] * 2
    assert document["evaluated"] == sum(document["verdicts"].values()) > 1000


def test_a_curve_over_numbers_of_devices(cli, job):
    document = cli("plan", "seven.yaml", "--devices", "8,16,64", "--price", "2", "--json").document
    curve = document["curve"]
    assert [point["layout"]["devices"] for point in curve] == [8, 16, 64]
    times = [point["step_s"]["expected"] for point in curve]
    assert times == sorted(times, reverse=True)
    assert curve[0]["usd_per_step"] == pytest.approx(curve[0]["closed_form_step_s"] * 8 * 2 / 3600)
    cheapest = cli(
        "plan", "seven.yaml", "--devices", "8,16,64", "--price", "2", "--cheapest", "--json"
    ).document
    least = min(point["usd_per_step"] for point in curve)
    assert cheapest["strategies"][0]["usd_per_step"] <= least * 1.05


def test_why_not_names_the_memory_that_is_lacking(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "8", "--why-not", "tp=1,pp=1,microbatch=8")
    assert "it does not fit: " in found.out
    assert "are lacking; parameters " in found.out


def test_why_not_names_the_part_that_takes_longer(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "8", "--why-not", "tp=8,store=nothing,recompute=all")
    assert "a step takes " in found.out
    assert "longer" in found.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--why-not", "tpp=8"), "unknown 'tpp'; there is tp, pp, cp"),
        (("--why-not", "tp=eight"), "tp is 'eight'; it takes a whole number"),
        (("--why-not", "store=all"), "store is 'all'; it takes nothing, states, grads, params"),
        (("--why-not", "tp=3"), "must divide 8 devices"),
        (("--why-not", "tp=²"), "tp is '²'; it takes a whole number"),
        (("--why-not", "recompute=5"), "it takes none, all, 1, 2 or 3 of four layers"),
        (("--out", "/proc/no/best.trim"), "cannot write the formulas"),
        (("--plot", "/proc/no/curves.svg"), "cannot write the picture"),
        (("--devices", "8;16"), "--devices 8;16: it takes whole numbers"),
        (("--devices", "128"), "the cluster has 64"),
        (("--measured", "none.csv"), "none.csv: cannot read measured runs"),
        (("--cluster", "64xA101"), "unknown cluster '64xA101'"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(cli, job, arguments, said):
    found = cli("plan", "seven.yaml", *(() if "--devices" in arguments else ("--devices", "8")), *arguments)
    assert found.code == 2
    assert said in found.err


def test_nothing_fits_and_every_layout_says_what_it_lacks(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "1", "--set", "model.preset=llama2-70b", "--json")
    assert found.code == 3
    document = found.document
    assert document["strategies"] == []
    assert document["verdicts"]["memory"] == document["evaluated"] == len(document["nearest"])
    assert all(one["shortfall_bytes"] > 0 for one in document["nearest"])
    text = cli("plan", "seven.yaml", "--devices", "1", "--set", "model.preset=llama2-70b")
    assert text.code == 3
    assert "nothing keeps every limit" in text.out
    assert "nearest, by the memory that each device lacks:" in text.out


def test_own_measurements_narrow_the_interval(cli, job, desk):
    import csv

    rows = [row for row in published_runs() if row["source"] == "llm-foundry-A100-80GB"][:12]
    with (desk / "own.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)

    def width(*arguments: str) -> float:
        step = cli("plan", "seven.yaml", "--devices", "8", "--json", *arguments).document["strategies"][0][
            "step_s"
        ]
        return step["high"] / step["low"]

    assert width("--measured", "own.csv") < width()


def test_this_machine_has_no_rates_yet(cli, job):
    found = cli("plan", "seven.yaml", "--cluster", "this-machine", "--set", "train.compute=fp32")
    assert found.code == 2
    assert "the rate of CPU in fp32" in found.err


def test_it_needs_no_torch(job):
    """A plan is asked for on a laptop."""
    code = (
        "import sys; from trimtab.app.cli import run_cli; "
        f"code = run_cli(['plan', {str(job)!r}, '--devices', '8', '--json']); "
        "assert code == 0; assert 'torch' not in sys.modules"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_formulas_are_what_a_job_takes(cli, job):
    best = cli("plan", "seven.yaml", "--devices", "8", "--json").document["strategies"][0]
    text = JOB + "parallelism: |\n" + "".join(f"  {line}\n" for line in best["formulas"].splitlines())
    loaded = load_job(
        text,
        source="job.yaml",
        overrides=[f"{key}={value}" for key, value in best["settings"].items()],
        read=lambda path: "",
    )
    assert loaded.layout.mesh.num_devices == 8


def test_clusters_side_by_side_are_drawn(cli, job, desk):
    found = cli("plan", "seven.yaml", "--beside", "512xH100", "--plot", "curves.svg", "--json", "--top", "1")
    assert found.code == 0
    document = found.document
    (other,) = document["beside"]
    assert (document["cluster"], other["cluster"]) == ("64xA100", "512xH100")
    counts = [point["layout"]["devices"] for point in document["curve"]]
    assert counts == [2, 4, 8, 16, 32, 64]
    assert other["curve"][0]["step_s"]["expected"] < document["curve"][0]["step_s"]["expected"]
    picture = (desk / "curves.svg").read_text()
    for said in ("64xA100", "512xH100", "dollars a trillion tokens", "all 1,000 steps", "as of"):
        assert said in picture


def test_there_is_no_picture_of_nothing(cli, job):
    found = cli(
        "plan", "seven.yaml", "--set", "model.preset=llama2-70b", "--devices", "1", "--plot", "no.svg"
    )
    assert found.code == 2
    assert "there is nothing to draw" in found.err


@pytest.mark.parametrize("what", ["sequence"])
def test_the_largest_that_fits(cli, job, what):
    arguments = ("--set", "model.preset=llama2-13b", "--devices", "8", "--top", "1", "--fit", what)
    document = cli("plan", "seven.yaml", *arguments, "--json").document["largest"]
    assert document["what"] == what
    assert document["value"] > 0
    assert document["candidate"]["shortfall_bytes"] == 0
    assert document["candidate"]["is_weighed"]
    assert document["next_lacks_bytes"] > 0


def test_the_largest_microbatch_as_people_read_it(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "8", "--fit", "microbatch")
    assert found.code == 0
    assert "largest microbatch that fits: " in found.out


def test_a_size_that_cannot_grow_is_refused(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "8", "--fit", "layer")
    assert found.code == 2
    assert "--fit layer: there is sequence, microbatch, layers.  Did you mean 'layers'?" in found.err


def test_devices_that_nothing_divides_are_told_so(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "61")
    assert found.code == 3
    assert "no layout divides: 61 devices as a product of degrees that divide 32 heads" in found.out
    assert "and 64 samples (dp)" in found.out


def test_the_price_of_the_job_goes_before_the_catalog(cli, job):
    key = "orchestration.price_usd_per_device_hour"
    asked = ("plan", "seven.yaml", "--devices", "8", "--json", "--set", f"{key}=9")
    document = cli(*asked).document
    assert (document["usd_per_device_hour"], document["price_source"]) == (9, key)
    assert cli(*asked, "--price", "2").document["price_source"] == "--price"


def test_what_the_job_says_of_shares_is_kept(cli, job):
    asked = ("plan", "seven.yaml", "--devices", "8", "--json", "--set")
    for said in ("off", "8"):
        best = cli(*asked, f"fault_tolerance.shares={said}").document["strategies"][0]
        assert "fault_tolerance.shares" not in best["settings"]
    assert "fault_tolerance.shares" in cli(*asked, "train.steps=10").document["strategies"][0]["settings"]


def test_a_price_of_nothing_is_drawn_without_dollars(cli, job, desk):
    assert cli("plan", "seven.yaml", "--devices", "8,16", "--price", "0", "--plot", "free.svg").code == 0
    assert "dollars" not in (desk / "free.svg").read_text()


def test_a_part_of_the_layers_is_computed_again(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "8", "--why-not", "store=params,recompute=2")
    assert found.code == 0
    assert "2/4 computed again" in found.out
