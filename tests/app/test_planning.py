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


@pytest.fixture
def small(desk: Path) -> Path:
    """A job of a small network, whose layouts are few: for what does not depend on it."""
    path = desk / "small.yaml"
    path.write_text(JOB.replace("llama2-7b", "gpt2-124m").replace("4096", "1024"))
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
    assert best["step_s"]["low"] < step < best["step_s"]["high"], "two models of one step"
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


def test_clusters_side_by_side_are_drawn(cli, small, desk):
    found = cli("plan", "small.yaml", "--beside", "512xH100", "--plot", "curves.svg", "--json", "--top", "1")
    assert found.code == 0
    document = found.document
    (other,) = document["beside"]
    assert (document["cluster"], other["cluster"]) == ("64xA100", "512xH100")
    counts = [point["layout"]["devices"] for point in document["curve"]]
    assert counts == [1, 2, 4, 8, 16, 32, 64]
    assert other["curve"][0]["step_s"]["expected"] < document["curve"][0]["step_s"]["expected"]
    picture = (desk / "curves.svg").read_text()
    for said in ("64xA100", "512xH100", "dollars a trillion tokens", "all 1,000 steps", "as of"):
        assert said in picture


def test_providers_and_clusters_are_one_table(cli, small):
    """One cluster at two providers and another one, each at its own price; the job's price holds where the job stands."""
    found = cli(
        "plan", "small.yaml", "--devices", "8", "--top", "1", "--json", "--set",
        "orchestration.price_usd_per_device_hour=3.3", "--beside", "512xH100@AWS", "--beside", "512xH100",
        "--beside", "@Lambda",
    )  # fmt: skip
    assert found.code == 0, found.err
    table = found.document["side_by_side"]
    rows = {row["place"]: row for row in table["rows"]}
    assert {place: row["usd_per_device_hour"] for place, row in rows.items()} == {
        "64xA100": 3.3, "512xH100@AWS": 6.88, "512xH100": 3.99, "64xA100@Lambda": 2.79,
    }  # fmt: skip
    assert {row["price_warning"] for row in rows.values()} == {""}
    assert (rows["512xH100@AWS"]["providers"], rows["512xH100@AWS"]["price_as_of"]) == (["AWS"], "2026-11-09")
    assert rows["512xH100@AWS"]["step_s"] == rows["512xH100"]["step_s"]
    costs = [row["usd_per_step"]["expected"] for row in table["rows"]]
    assert costs == sorted(costs)
    cheapest = table["rows"][0]
    assert table["cheapest"] == cheapest["place"]
    assert cheapest["beside_cheapest"] == {"ratio": 1, "low": 1, "high": 1, "is_equal": True}
    step = rows["64xA100"]["step_s"]["expected"]
    assert rows["64xA100"]["usd_per_step"]["expected"] == pytest.approx(step * 8 * 3.3 / 3600)
    assert rows["64xA100"]["usd"]["high"] == pytest.approx(1000 * rows["64xA100"]["usd_per_step"]["high"])
    assert rows["64xA100"]["hours"]["expected"] == pytest.approx(1000 * step / 3600)
    trillion = rows["64xA100"]["usd_per_trillion_tokens"]["expected"]
    assert trillion == pytest.approx(rows["64xA100"]["usd_per_step"]["expected"] * 1e12 / (64 * 1024))
    for one, other in (("512xH100@AWS", "512xH100"), ("64xA100", "64xA100@Lambda")):
        ratios = [rows[place]["beside_cheapest"]["ratio"] for place in (one, other)]
        prices = [rows[place]["usd_per_device_hour"] for place in (one, other)]
        assert ratios[0] / ratios[1] == pytest.approx(prices[0] / prices[1])
    same = [row["beside_cheapest"] for row in table["rows"] if row["cluster"] == cheapest["cluster"]]
    assert all(one["low"] == one["ratio"] == one["high"] for one in same)
    apart = [row["beside_cheapest"] for row in table["rows"] if row["cluster"] != cheapest["cluster"]]
    assert all(one["low"] < one["ratio"] < one["high"] for one in apart)


def test_the_table_says_which_is_cheapest_and_how_surely(cli, small, desk):
    """The picture has the same places, each with its own price."""
    asked = ("--devices", "8", "--top", "1", "--plot", "places.svg")
    found = cli("plan", "small.yaml", "--cluster", "@Lambda", *asked, "--beside", "@AWS")
    lines = found.out[found.out.index("side by side, the fastest of each place") :].splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["place", "64xA100@Lambda", "64xA100@AWS"]
    assert "2.79, Lambda, A100-SXM-80GB on demand, as of 2026-09-20" in lines[2]
    assert lines[4:] == [
        "  cheapest: 64xA100@Lambda",
        "    64xA100@AWS costs 1.23 times as much (1.23 to 1.23)",
    ]
    picture = (desk / "places.svg").read_text()
    for said in ("64xA100@Lambda: $2.79 a device and hour", "64xA100@AWS: $3.43 a device and hour"):
        assert said in picture


def test_a_place_where_nothing_fits_stands_in_the_table(cli, job):
    """It is an answer, too."""
    asked = ("plan", "seven.yaml", "--devices", "1", "--set", "model.preset=llama2-70b", "--json")
    document = cli(*asked, "--beside", "512xH100").document
    assert document["side_by_side"]["nothing_fits"] == ["64xA100", "512xH100"]
    assert document["side_by_side"]["cheapest"] is None


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("64xA100@", "64xA100@: no provider follows the @; write 64xA100@PROVIDER"),
        ("64xA100@Lambd", "unknown provider 'Lambd'"),
        ("64xA100@Vast", "unknown on_demand price from Vast for 'A100-SXM-80GB'"),
        ("64xA10@AWS", "unknown cluster '64xA10'"),
    ],
)
def test_a_place_that_there_is_not_is_refused(cli, job, place, said):
    """At another provider's price the table would be wrong in silence."""
    for option in ("--cluster", "--beside"):
        found = cli("plan", "seven.yaml", "--devices", "8", option, place)
        assert (found.code, found.out) == (2, "")
        assert said in found.err


def test_two_prices_for_one_place_are_refused(cli, job):
    """Nobody can say which was meant."""
    found = cli("plan", "seven.yaml", "--devices", "8", "--cluster", "@AWS", "--price", "2")
    assert found.code == 2
    assert "--price 2 and a cluster at AWS are two prices" in found.err


def test_there_is_no_picture_of_nothing(cli, job):
    found = cli(
        "plan", "seven.yaml", "--set", "model.preset=llama2-70b", "--devices", "1", "--plot", "no.svg"
    )
    assert found.code == 2
    assert "there is nothing to draw" in found.err


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sequence", "layers"])
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


def test_the_price_of_the_job_goes_before_the_catalog(cli, small):
    key = "orchestration.price_usd_per_device_hour"
    asked = ("plan", "small.yaml", "--devices", "8", "--json", "--set", f"{key}=9")
    document = cli(*asked).document
    assert (document["usd_per_device_hour"], document["price_source"]) == (9, key)
    assert cli(*asked, "--price", "2").document["price_source"] == "--price"


OWN = "as_of,provider,accelerator,usd_per_device_hour\n2026-07-01,our contract,A100-SXM-80GB,1.25\n"


def test_prices_of_ones_own_go_before_the_catalog(cli, small, desk):
    """They keep their date, and one that is old is said to be, with what to do about it."""
    (desk / "own.csv").write_text(OWN)
    asked = ("plan", "small.yaml", "--devices", "8", "--top", "1", "--prices", "own.csv")
    document = cli(*asked, "--json").document
    assert document["usd_per_device_hour"] == 1.25
    (offer,) = document["price_offers"]
    assert (offer["provider"], offer["as_of"], offer["source"]) == ("our contract", "2026-07-01", "own.csv:2")
    assert (offer["age_days"], offer["is_stale"]) == (152, True)
    said = "the newest price of A100-SXM-80GB is of 2026-07-01, 152 days old (our contract; own.csv:2); say what you pay"
    assert document["price_warning"].startswith(said)
    assert f"  warning     {said}" in cli(*asked).out


def test_a_price_is_warned_of_when_it_has_grown_old(cli, small, monkeypatch):
    """The catalog of a release that is used for long."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1826040000")
    document = cli("plan", "small.yaml", "--devices", "8", "--top", "1", "--json").document
    assert "is of 2026-11-09, 368 days old (RunPod-Secure; github " in document["price_warning"]
    assert "orchestration.price_usd_per_device_hour" in document["price_warning"]


def test_a_table_of_prices_with_mistakes_is_refused(cli, job, desk):
    """With line, column and the nearest name; a file that is not there, by its name."""
    (desk / "own.csv").write_text(OWN.replace("SXM-80GB", "SXM-8OGB"))
    found = cli("plan", "seven.yaml", "--prices", "own.csv")
    assert found.code == 2
    assert "own.csv:2:25  accelerator is 'A100-SXM-8OGB'" in found.err
    assert "Did you mean 'A100-SXM-80GB'?" in found.err
    assert "gone.csv: cannot read prices" in cli("plan", "seven.yaml", "--prices", "gone.csv").err


def test_what_the_job_says_of_shares_is_kept(cli, small):
    asked = ("plan", "small.yaml", "--devices", "8", "--json", "--set")
    for said in ("off", "8"):
        best = cli(*asked, f"fault_tolerance.shares={said}").document["strategies"][0]
        assert "fault_tolerance.shares" not in best["settings"]
    assert "fault_tolerance.shares" in cli(*asked, "train.steps=10").document["strategies"][0]["settings"]


def test_a_price_of_nothing_is_drawn_without_dollars(cli, small, desk):
    assert cli("plan", "small.yaml", "--devices", "8,16", "--price", "0", "--plot", "free.svg").code == 0
    assert "dollars" not in (desk / "free.svg").read_text()


def test_a_part_of_the_layers_is_computed_again(cli, job):
    found = cli("plan", "seven.yaml", "--devices", "8", "--why-not", "store=params,recompute=2")
    assert found.code == 0
    assert "2/4 computed again" in found.out


def test_weaker_cards_are_weighed_against_the_stronger_ones_alone(cli, job):
    """Whoever joins old cards to new ones reads what they bring, in speed and dollars, and what to do."""
    asked = (
        "plan", "seven.yaml", "--set", "orchestration.cluster=64xA100+64xH100", "--set", "model.preset=gpt2-124m",
        "--set", "data.sequence=1024", "--devices", "96", "--cheapest",
    )  # fmt: skip
    document = cli(*asked, "--json", "--out", "best.trim").document
    mixture, pools = document["mixture"], document["pools"]
    assert [(pool["devices_of"], pool["num_devices"]) for pool in pools] == [
        ("A100-SXM-80GB", 64),
        ("H100-SXM-80GB", 32),
    ]
    together, alone = document["strategies"][0], pools[1]["strategy"]
    assert mixture["speed_ratio"] == pytest.approx(
        alone["step_s"]["expected"] / together["step_s"]["expected"]
    )
    rates = [pool["num_devices"] * pool["product_flops_per_s"] for pool in pools]
    assert mixture["efficiency"] == pytest.approx(mixture["speed_ratio"] / (sum(rates) / rates[1]))
    assert 0 < mixture["efficiency"] < 1
    usd = alone["step_s"]["expected"] * 32 * pools[1]["usd_per_device_hour"] / 3600
    assert mixture["alone_usd"] == pytest.approx(usd)
    assert mixture["pays"] is False
    text = cli(*asked).out
    assert "the A100-SXM-80GB do not pay: " in text
    assert f"efficiency {mixture['efficiency']:.0%}" in text
    assert " alone, as a cluster of their own" in text
    least = min((pool["strategy"] for pool in pools), key=lambda found: found["usd_per_step"])
    assert Path("best.trim").read_text().strip() == document["recommended"] == least["formulas"]
