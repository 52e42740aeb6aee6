import json

import pytest

JOB = """
run: weeks
model: {preset: llama2-13b}
data: {text: text, tokenizer: bytes, sequence: 4096}
train: {steps: 100000, batch: 512, compute: bf16}
orchestration: {devices: 512, cluster: 512xH100, price_usd_per_device_hour: 2.0}
parallelism: |
  MESH dp 8, fsdp 64
  SPLIT batch OVER dp, fsdp
  STORE params, grads, states OVER fsdp
fault_tolerance: {shares: "off"}
"""
SHORT = ("--days", "5", "--seeds", "4")


@pytest.fixture
def weeks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weeks.yaml").write_text(JOB, encoding="utf-8")
    return "weeks.yaml"


def test_the_answer_adds_up(cli, weeks):
    """Classes of the ledger are parts of one whole; survivors keep more than a restart under the same faults."""
    found = cli("simulate", weeks, "--failures", "all-causes", *SHORT, "--json").document
    classes = {name: part for name, part in found["classes"].items() if name != "of it lost_work"}
    assert sum(classes.values()) == pytest.approx(1.0)
    ours, restart = found["policies"][:2]
    assert (ours["name"], ours["is_ours"]) == ("same_batch, saves adaptively", True)
    assert ours["goodput"]["median"] > restart["goodput"]["median"] > 0.8
    difference = found["differences"]["against all started again, same cadence"]
    assert 0 < difference["low"] <= difference["mean"] <= difference["high"]
    assert found["run"]["num_nodes"] == 64
    assert found["run"]["unit_nodes"] == 8
    assert found["run"]["usd_per_node_hour"] == 16.0
    assert restart["usd_not_standing"] > ours["usd_not_standing"] > 0


def test_people_read_rows_and_differences(cli, weeks):
    """The same figures as the document's."""
    document = cli("simulate", weeks, "--failures", "llama3", *SHORT, "--json").document
    text = cli("simulate", weeks, "--failures", "llama3", *SHORT).out
    assert text.startswith(
        "64 nodes and 1 spare ones, 5 days, 4 sets of faults (llama3: 3.79 of 1,000 nodes a day;"
    )
    for policy in document["policies"]:
        (row,) = (line for line in text.splitlines() if line.startswith(policy["name"] + " "))
        assert f"{policy['goodput']['median']:8.2%}" in row
    assert "the best fixed interval in hindsight" in text


def test_a_state_that_exists_once_is_compared_with_buddies_memory(cli, weeks):
    """Nothing survives in the step there; a copy in memory is what would help."""
    once = ("--set", "parallelism=MESH dp 512; STORE params, grads, states OVER dp")
    found = cli("simulate", weeks, "--failures", "all-causes", *SHORT, *once, "--json").document
    names = [policy["name"] for policy in found["policies"]]
    assert names[:2] == ["rollback, saves adaptively", "from buddies' memory, every 1 min"]
    assert found["policies"][0]["ways"]["checkpoint"] > 0
    assert found["policies"][1]["ways"]["snapshot"] > 0


def test_a_mixture_of_ones_own_is_a_file(cli, weeks, tmp_path):
    """What nobody published, somebody measured."""
    (tmp_path / "mine.toml").write_text(
        'source = "a logbook"\ncovers = "crashes"\nper_1000_node_days = 0\n', encoding="utf-8"
    )
    found = cli("simulate", weeks, "--failures", "mine.toml", *SHORT, "--json").document
    assert found["failures"]["name"] == "mine"
    assert found["classes"].keys() == {"useful", "checkpoint_stall", "of it lost_work"}


def test_events_are_written_a_line_each(cli, weeks, tmp_path):
    """Who does not believe a figure reads what made it."""
    cli("simulate", weeks, "--failures", "all-causes", *SHORT, "--events", "events.jsonl")
    events = [
        json.loads(line) for line in (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert events
    assert [event["at_s"] for event in events] == sorted(event["at_s"] for event in events)
    assert any("finish, for" in event["what"] for event in events)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--failures", "lama3"), "unknown failures 'lama3'"),
        (("--failures", "none.toml"), "none.toml: cannot be read as a mixture of faults"),
        (("--failures", "weeks.toml"), "weeks.toml: cannot be read as a mixture of faults"),
        (("--failures", "llama3", "--days", "0"), "simulate --days 0: it takes more than 0, up to 3650"),
        (("--failures", "llama3", "--days", "nan"), "simulate --days nan: it takes more than 0"),
        (("--failures", "llama3", "--seeds", "0"), "simulate --seeds 0: it takes 1 or more"),
        (("--failures", "llama3", "--spares", "-1"), "simulate --spares -1: it takes 0 or more"),
        (("--failures", "llama3", "--step-seconds", "0"), "simulate --step-seconds 0: it takes 1e-6 to 1e6"),
        (
            ("--failures", "llama3", "--events", "nowhere/e.jsonl", *SHORT),
            "nowhere/e.jsonl: cannot write the events",
        ),
    ],
)
def test_what_cannot_be_simulated_is_said(cli, weeks, tmp_path, arguments, message):
    """With what was found and what is required."""
    (tmp_path / "weeks.toml").write_text(JOB, encoding="utf-8")
    answer = cli("simulate", weeks, *arguments)
    assert answer.code != 0
    assert message in answer.err


def test_a_step_that_nobody_knows_is_asked_for(cli, weeks):
    """This machine's rate is in no table."""
    here = ("--set", "orchestration.cluster=this-machine", "--set", "orchestration.devices=8")
    mesh = ("--set", "parallelism=MESH dp 8", "--set", "model.preset=gpt-3m", "--set", "data.sequence=128")
    answer = cli("simulate", weeks, "--failures", "llama3", *SHORT, *here, *mesh)
    assert "say so, as by --step-seconds 5" in answer.err
    told = cli("simulate", weeks, "--failures", "llama3", *SHORT, *here, *mesh, "--step-seconds", "5")
    assert told.code == 0
