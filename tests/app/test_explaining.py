"""The verb ``explain``, as a user calls it."""

import json
import os
import pty
import subprocess
import sys

import pytest

from trimtab.catalog import network
from trimtab.terms import ExitCode

THREE_D = """\
run: three-d
model: {preset: llama2-7b}
data: {text: python-stdlib, sequence: 1024}
train: {steps: 10, batch: 64, microbatch: 1, compute: bf16}
orchestration: {devices: 64, cluster: 512xH100}
parallelism: |
  MESH pp 2, dp *, tp 8 WITHIN node
  SPLIT layers OVER pp USING 1f1b MICROBATCHES 4
  SPLIT batch OVER dp
  SPLIT heads, mlp, vocab OVER tp
  STORE states OVER dp
fault_tolerance: {shares: 8}
"""


@pytest.fixture
def three_d(desk):
    """A job of 64 ranks beside the small one."""
    (desk / "three-d.yaml").write_text(THREE_D)
    return "three-d.yaml"


def test_choices_name_their_lines(cli):
    """Every choice names the line or the default that made it."""
    document = cli("explain", "job.yaml", "--json").document
    assert document["mesh"] == {
        "axes": [{"axis": "dp", "size": 2}],
        "batch_axes": ["dp"],
        "decided_by": "default",
    }
    assert document["model"]["decided_by"] == "job.yaml:2"
    assert document["on_loss"]["rule"] == "exact"
    assert document["on_loss"]["decided_by"] == "auto (default)"
    assert document["checkpoints"] == {"every": 2, "keep": 3, "decided_by": "job.yaml:6"}
    assert document["work"]["decided_by"]["fault_tolerance.shares"] == "job.yaml:6"


def test_flops_are_stated_under_both_conventions(cli):
    """A figure without its convention cannot be compared with anybody's."""
    flops = cli("explain", "job.yaml", "--json").document["work"]["useful_flops"]
    model = network("gpt-3m", layers=2)
    assert flops["causal"] == model.flops_per_token(128, causal=True) * 8 * 128
    assert flops["full"] == model.flops_per_token(128, causal=False) * 8 * 128


def test_every_share_has_one_owner_with_any_number_of_ranks(cli):
    """Who takes over what after a loss is part of the plan."""
    document = cli("explain", "job.yaml", "--json", "--set", "orchestration.devices=4").document
    ownership = document["replicated"]["ownership"]
    assert [item["ranks"] for item in ownership] == [4, 3, 2, 1]
    for item in ownership:
        assert len(item["owners"]) == 4
        assert set(item["owners"]) == set(range(item["ranks"]))


def test_memory_is_what_the_runtime_allocates(cli):
    """For plans that this release runs, the figures are those of its vectors, with activations on top."""
    document = cli("explain", "job.yaml", "--json").document
    (group,) = document["groups"]
    saver = document["replicated"]["ranks"][0]["memory_bytes"]
    classes = {found["moment"]: found["classes"] for found in group["memory"]["moments"]}
    assert classes["update"]["parameters"] == saver["parameters"]
    assert classes["update"]["gradients"] == saver["gradients"]
    assert classes["update"]["states"] == saver["optimizer"]
    assert classes["update"]["buffers"] == saver["exchange"] + saver["staging"]
    assert classes["backward"]["activations"] > 0


def test_shares_off_is_one_sum_of_the_backend(cli):
    """Its formula is another, and nobody owns a share."""
    document = cli("explain", "job.yaml", "--json", "--set", "fault_tolerance.shares=off").document
    assert document["replicated"]["ownership"] == []
    assert set(document["replicated"]["formulas"]) == {"all_reduce"}
    assert document["on_loss"]["rule"] == "same_batch"


def test_text_holds_what_the_document_holds(cli):
    """People get the same answer as programs."""
    text = " ".join(cli("explain", "job.yaml").out.split())
    for expected in (
        "dp 2",
        "4 shares, 2 samples each",
        "same bits",
        "every 2 steps",
        "out = b (n - 1)",
        "job.yaml:6",
        "0-1 on rank 0, 2-3 on rank 1",
    ):
        assert expected in text


def test_a_plan_that_is_not_run_yet_is_explained(cli, three_d):
    """Whether the language can say it does not depend on what this release trains."""
    document = cli("explain", three_d, "--json").document
    assert [group["title"] for group in document["groups"]] == ["pp 0", "pp 1"]
    assert [group["ranks"] for group in document["groups"]] == ["0-31", "32-63"]
    assert document["replicated"] is None
    assert document["on_loss"]["rule"] == "rollback"
    assert document["on_loss"]["limited_by"] == "three-d.yaml:11"
    assert document["cost"]["step_s"]["low"] < document["cost"]["step_s"]["high"]


def test_what_a_users_class_needs_is_not_invented(cli, desk):
    """Its shapes are known to torch only: explain says so and prints no figures."""
    text = (desk / "job.yaml").read_text().replace("{preset: gpt-3m, layers: 2}", "{module: 'mine:Model'}")
    (desk / "job.yaml").write_text(text)
    answer = cli("explain", "job.yaml")
    assert answer.code == 0
    assert "known to torch only" in answer.out
    document = cli("explain", "job.yaml", "--json").document
    assert document["groups"] == []
    assert document["work"] is None
    assert document["on_loss"]["rule"] == "exact"
    assert cli("explain", "job.yaml", "--diff", "job.yaml").out.splitlines()[-1].strip() == "the same plan"


def test_an_unknown_network_is_refused_at_its_line(cli, desk):
    """With the nearest name, before any process has read it."""
    (desk / "job.yaml").write_text((desk / "job.yaml").read_text().replace("gpt-3m", "gpt-4m"))
    answer = cli("explain", "job.yaml")
    assert answer.code == 2
    assert answer.err.startswith("job.yaml:2")
    assert "Did you mean 'gpt-3m'" in answer.err


def test_a_plan_that_cannot_be_is_refused_at_its_line(cli, desk, three_d):
    """The compiler's complaint points into the job file, with the line and a caret."""
    text = THREE_D.replace("SPLIT batch OVER dp", "SPLIT batch OVER dp\n  REDUCE grads OVER tp")
    (desk / three_d).write_text(text)
    answer = cli("explain", three_d)
    assert answer.code == 2
    assert answer.err.startswith("three-d.yaml:10:")
    assert "    REDUCE grads OVER tp\n" in answer.err
    assert "^^" in answer.err


def test_an_unknown_cluster_is_refused_at_its_line(cli):
    """With the nearest name."""
    answer = cli("explain", "job.yaml", "--set", "orchestration.cluster=64xA101")
    assert answer.code == 2
    assert answer.err.startswith("--set #1")
    assert "64xA100" in answer.err


def test_more_devices_than_the_cluster_has_are_refused(cli):
    """A plan for cards that are not there is none."""
    at = ("--set", "orchestration.cluster=64xA100", "--set", "orchestration.devices=128")
    answer = cli(
        "explain", "job.yaml", *at, "--set", "train.batch=128", "--set", "fault_tolerance.shares=128"
    )
    assert answer.code == 2
    assert "64 devices and the job asks for 128" in answer.err


def test_on_loss_that_the_layout_cannot_give_is_refused(cli, desk, three_d):
    """At the line that asks for it, with the one that rules it out and what is possible."""
    (desk / three_d).write_text(THREE_D.replace("shares: 8", "shares: 8, on_loss: exact"))
    answer = cli("explain", three_d)
    assert answer.code == 2
    first, second, third = answer.err.splitlines()
    assert first.startswith(
        "three-d.yaml:12  on_loss exact is more than this layout can give: states are stored"
    )
    assert second.startswith("three-d.yaml:11")
    assert third == "  Use one of rollback, or auto."


def test_a_weaker_rule_than_the_layout_allows_is_kept(cli):
    """Whoever wants less gets it."""
    document = cli("explain", "job.yaml", "--json", "--set", "fault_tolerance.on_loss=rescale").document
    assert (document["on_loss"]["rule"], document["on_loss"]["strongest"]) == ("rescale", "exact")


@pytest.mark.parametrize("rule", ["exact", "rescale", "same_batch"])
def test_a_lone_rank_and_a_users_class_may_ask_for_any_rule(rule, cli, desk):
    """Who has no peers breaks no promise; what only torch can tell is not refused by guessing."""
    at = ("--set", f"fault_tolerance.on_loss={rule}")
    alone = cli("explain", "job.yaml", "--json", *at, "--set", "orchestration.devices=1")
    assert alone.document["on_loss"]["rule"] == rule
    text = (desk / "job.yaml").read_text().replace("{preset: gpt-3m, layers: 2}", "{module: 'mine:Model'}")
    (desk / "module.yaml").write_text(text)
    assert cli("explain", "module.yaml", "--json", *at).document["on_loss"]["rule"] == rule


def test_the_users_price_names_its_line(cli):
    """The catalog's names who asked for it."""
    cost = cli("explain", "job.yaml", "--json").document["cost"]
    assert cost["price_source"] == "orchestration.price_usd_per_device_hour (job.yaml:5)"
    at = ("--set", "orchestration.cluster=64xA100", "--set", "orchestration.price_usd_per_device_hour=null")
    assert "as of" in cli("explain", "job.yaml", "--json", *at).document["cost"]["price_source"]


def test_an_old_price_is_warned_of_in_every_format(cli, desk, monkeypatch):
    """Dollars of last year look like this year's; what the user says of a price is the user's to know."""
    at = ("--set", "orchestration.cluster=64xA100", "--set", "orchestration.price_usd_per_device_hour=null")
    assert cli("explain", "job.yaml", "--json", *at).document["cost"]["price_warning"] == ""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1826040000")
    warning = cli("explain", "job.yaml", "--json", *at).document["cost"]["price_warning"]
    assert warning.startswith(
        "the newest price of A100-SXM-80GB is of 2026-11-09, 368 days old (RunPod-Secure; "
    )
    assert warning.endswith(
        "say what you pay by orchestration.price_usd_per_device_hour, or in a table of your own, plan --prices FILE"
    )
    assert warning in " ".join(cli("explain", "job.yaml", *at).out.split())
    assert warning in cli("explain", "job.yaml", "--format", "html", *at).out
    assert cli("explain", "job.yaml", "--json").document["cost"]["price_warning"] == ""


def test_torchrun_ends_every_rank(cli):
    """Survival in the step is not to be had under its agent."""
    document = cli("explain", "job.yaml", "--json", "--set", "orchestration.engine=torchrun").document
    assert document["on_loss"]["rule"] == "rollback"
    assert "torchrun" in document["on_loss"]["reason"]


def test_a_named_cluster_is_what_a_rank_must_fit_in(cli):
    """A plan for 80 GB cards is checked against 80 GB cards, wherever it is explained."""
    at = ("--set", "orchestration.cluster=64xA100", "--set", "model.layers=null")
    assert cli("explain", "job.yaml", *at).code == 0
    answer = cli("explain", "job.yaml", *at, "--set", "model.preset=llama2-7b")
    assert answer.code == 3
    assert "does not fit" in answer.out


def test_a_second_job_is_compared(cli, desk, three_d):
    """What one line does; the exit code is that of the second."""
    (desk / "other.yaml").write_text(THREE_D.replace("STORE states OVER dp", "STORE grads, states OVER dp"))
    text = cli("explain", three_d, "--diff", "other.yaml").out
    assert "- STORE states OVER dp" in text
    assert "+ STORE grads, states OVER dp" in text
    document = cli("explain", three_d, "--diff", "other.yaml", "--json").document
    assert not document["is_same"]
    assert {row["property"] for row in document["rows"]} == {"store dp"}
    same = cli("explain", three_d, "--diff", three_d, "--json").document
    assert same["is_same"]
    (desk / "large.yaml").write_text(
        THREE_D.replace("microbatch: 1, ", "").replace("batch: 64", "batch: 2048")
    )
    assert cli("explain", three_d, "--diff", "large.yaml").code == 3
    assert cli("explain", "large.yaml", "--diff", three_d).code == 0


def test_answers_go_to_a_file(cli, desk):
    """Standard output stays empty."""
    answer = cli("explain", "job.yaml", "--out", "plan.txt")
    assert (answer.code, answer.out) == (0, "")
    assert (desk / "plan.txt").read_text().startswith("quick on this-machine\n")
    assert cli("explain", "job.yaml", "--json", "--out", "plan.json").out == ""
    assert json.loads((desk / "plan.json").read_text())["run"] == "quick"
    refused = cli("explain", "job.yaml", "--out", "nowhere/plan.txt")
    assert refused.code == 2
    assert refused.err.startswith("nowhere/plan.txt: cannot write")


def test_unknown_forms_are_refused(cli):
    """With the nearest one."""
    answer = cli("explain", "job.yaml", "--format", "jsn")
    assert answer.code == 2
    assert "Did you mean 'json'" in answer.err
    assert cli("explain", "job.yaml", "--json", "--format", "text").code == 2
    assert cli("explain", "job.yaml", "--diff", "job.yaml", "--format", "dot").code == 2
    assert cli("explain").code == 2


def test_the_schema_is_printed(cli):
    """Without a job."""
    assert cli("explain", "--schema").document["title"] == "trimtab explain"


def on_a_terminal(desk, *, environment: dict[str, str]) -> str:
    """What a user sees whose standard output is a terminal."""
    command = [sys.executable, "-m", "trimtab", "explain", "job.yaml"]
    parent, child = pty.openpty()
    process = subprocess.Popen(
        command, cwd=desk, stdout=child, env=os.environ | {"TERM": "xterm-256color"} | environment
    )
    os.close(child)
    found = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # The other end is closed.
            break
        if not part:
            break
        found += part
    os.close(parent)
    assert process.wait(60) == 0
    return found.decode()


def test_colours_are_for_terminals(cli, desk):
    """A pipe gets none, a terminal does, and NO_COLOR is heard."""
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    assert "\x1b[" not in cli("explain", "job.yaml").out
    assert "\x1b[" in on_a_terminal(desk, environment=environment | {"COLUMNS": "100", "NO_COLOR": ""})
    text = on_a_terminal(desk, environment={"NO_COLOR": "1", "COLUMNS": "60"})
    assert "\x1b[" not in text
    assert max(map(len, text.splitlines())) <= 60


LIGHT = """
import sys
from trimtab.app.cli import run_cli
code = run_cli(["explain", sys.argv[1]])
heavy = [name for name in ("torch", "numpy", "duckdb", "rich", "lark") if name in sys.modules]
assert not heavy, heavy
sys.exit(code)
"""


def test_no_heavy_library_is_loaded(desk, three_d):
    """Who asks for a plan waits for the plan, not for libraries."""
    ended = subprocess.run(
        [sys.executable, "-c", LIGHT, three_d], cwd=desk, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


ANALYZED = """\
run: proof
model: {preset: gpt-3m, layers: 2, embed: 64, heads: 4, mlp: 128, dropout: 0.0}
data: {text: text, tokenizer: bytes, sequence: 32}
train: {steps: 10, batch: 8, microbatch: 1, optimizer: {adamw: {lr: 1e-3}}}
orchestration: {devices: 2}
fault_tolerance: {shares: "off"}
parallelism: |
  MESH dp 2
  SPLIT batch OVER dp
  STORE states OVER dp
"""


@pytest.mark.process
def test_real_steps_stand_beside_the_figures(trimtab, tmp_path):
    """The whole option, as a user runs it: a figure that nobody checked is an opinion."""
    path = tmp_path / "job.yaml"
    path.write_text(ANALYZED, encoding="utf-8")
    found = trimtab("explain", str(path), "--analyze", "--steps", "1", "--json", timeout=150).document[
        "analysis"
    ]
    assert found["steps"] == 1
    assert found["step"]["measured_s"] > 0
    assert found["step"]["predicted_s"] is None
    assert "rate" in found["unknown"]
    assert found["unplanned"] == []
    (group,) = found["groups"]
    assert group["ranks"] == [0, 1]
    assert [i for i in group["held"] if i["measured"] != i["predicted"]] == []
    assert group["peak"]["measured"] == pytest.approx(group["peak"]["predicted"], rel=0.06)
    assert sum(item["measured_s"] for item in group["times"]) == pytest.approx(
        found["step"]["measured_s"], rel=0.2
    )
    assert {item["operation"] for item in group["collectives"]} == {
        "all_reduce",
        "reduce_scatter",
        "all_gather",
    }
    assert all(
        item["sent_bytes"]["measured"] == item["sent_bytes"]["predicted"] for item in group["collectives"]
    )


def test_a_mesh_too_large_for_this_machine_is_not_started(cli, tmp_path):
    """Hundreds of processes would take the machine down."""
    path = tmp_path / "job.yaml"
    text = (
        ANALYZED.replace("devices: 2", "devices: 32")
        .replace("dp 2", "dp 32")
        .replace("batch: 8", "batch: 32")
    )
    path.write_text(text, encoding="utf-8")
    answer = cli("explain", str(path), "--analyze")
    assert answer.code == 2
    assert "32 ranks" in answer.err
    assert "at most 16 processes" in answer.err


def test_two_jobs_are_not_analyzed_at_once(cli, tmp_path):
    """Half of an answer would look like all of it."""
    path = tmp_path / "job.yaml"
    path.write_text(ANALYZED, encoding="utf-8")
    answer = cli("explain", str(path), "--analyze", "--diff", str(path))
    assert answer.code == 2
    assert "one after the other" in answer.err


TRACED = ["MESH pp 2, dp 2, tp 2", "SPLIT layers OVER pp MICROBATCHES 2", "SPLIT heads, mlp, vocab OVER tp"]


@pytest.fixture
def traced_job(desk):
    """A job that is quickly traced."""
    strategy = "".join(f"  {line}\n" for line in TRACED)
    (desk / "traced.yaml").write_text(
        "run: traced\nmodel: {preset: gpt-3m, dropout: 0.0}\ndata: {text: python-stdlib, sequence: 64}\n"
        "train: {steps: 10, batch: 8, microbatch: 1}\norchestration: {devices: 8, cluster: 512xH100}\n"
        f'parallelism: |\n{strategy}fault_tolerance: {{shares: "off"}}\n'
    )
    return "traced.yaml"


def test_a_trace_is_a_key_of_the_document(cli, traced_job):
    """A program that checks plans reads counts, not a table."""
    answer = cli("explain", traced_job, "--trace", "--json")
    assert answer.code == ExitCode.DONE
    document = answer.document
    trace = document.pop("trace")
    assert trace["is_as_planned"] is True
    assert [rank["ranks"] for rank in trace["ranks"]] == ["0-3", "4-7"]
    assert all(flops["traced"] == flops["planned"] > 0 for rank in trace["ranks"] for flops in rank["flops"])
    assert document == cli("explain", traced_job, "--json").document


def test_a_trace_follows_the_explanation(cli, traced_job):
    """Who looks at both wants them beside each other."""
    plain, traced = cli("explain", traced_job).out, cli("explain", traced_job, "--trace").out
    assert traced.startswith(plain.rstrip("\n"))
    assert "as planned: every collective in runs and bytes" in traced
    assert "rank 4 for 4 ranks (4-7), stage 1" in traced


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "html"), "a trace is text or json"),
        (("--diff", "job.yaml"), "one plan is traced at a time"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(cli, traced_job, arguments, words):
    """A trace that is left out in silence is taken for one that found nothing."""
    answer = cli("explain", traced_job, "--trace", *arguments)
    assert answer.code == ExitCode.INPUT_WRONG
    assert words in answer.err
