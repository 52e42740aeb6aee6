import json
import shutil
from pathlib import Path

import pytest

from trimtab.app.errors import JobReadError
from trimtab.app.job_reading import network_key, read_job

CONFIGURATIONS = Path(__file__).parents[1] / "catalog" / "configurations"


@pytest.fixture
def folder(desk):
    """A folder `model` with a published configuration, and a job that trains it in short samples."""

    def make(name, **changes):
        (desk / "model").mkdir(exist_ok=True)
        shutil.copy(CONFIGURATIONS / f"{name}.json", desk / "model" / "config.json")
        if changes:
            values = json.loads((desk / "model" / "config.json").read_text()) | changes
            values = {key: value for key, value in values.items() if value is not ...}
            (desk / "model" / "config.json").write_text(json.dumps(values, indent=2))
        text = (desk / "job.yaml").read_text()
        (desk / "job.yaml").write_text(text.replace("{preset: gpt-3m, layers: 2}", "{folder: model}"))

    return make


def test_a_folder_is_explained_as_the_network_that_it_describes(folder, cli):
    """The figures of a published model, with the line of the job file that named it."""
    folder("qwen3-0.6b")
    model = cli("explain", "job.yaml", "--json").document["model"]
    assert model == {
        "network": "model",
        "parameters": 596_049_920,
        "active_parameters": 596_049_920,
        "layers": 28,
        "decided_by": "job.yaml:2",
    }


def test_a_folder_may_be_made_smaller(folder, cli):
    """`layers: 2` works on a configuration as on a preset."""
    folder("qwen2.5-0.5b")
    changes = ("--set", "model.layers=2", "--set", "model.vocab=256")
    model = cli("explain", "job.yaml", "--json", *changes).document["model"]
    assert model["network"] == "model(layers=2, vocab=256)"
    assert model["parameters"] == 256 * 896 + 2 * 14_912_384 + 896


def test_what_is_not_carried_over_is_said_with_its_line(folder, cli):
    """A dropout that will not happen must not surprise anybody."""
    folder("gpt2")
    answer = cli("explain", "job.yaml")
    assert "warning: model/config.json:6  attn_pdrop is 0.1: probabilities" in answer.err


def test_every_error_of_a_configuration_has_its_line(folder, cli):
    """A key that is missing is shown at the folder, the others where they stand."""
    folder("mixtral-8x7b", hidden_size=..., hidden_act="relu", num_local_experts="8")
    with pytest.raises(JobReadError) as caught:
        read_job("job.yaml")
    places = {}
    for line in str(caught.value).splitlines():
        place, _, message = line.partition("  ")
        places[message.split(" ")[0]] = place
    assert places == {
        "hidden_size": "job.yaml:2",
        "hidden_act": "model/config.json:8",
        "num_local_experts": "model/config.json:13",
    }


def test_sizes_that_do_not_fit_are_shown_at_the_folder(folder):
    """The catalog knows the sizes, the job file where they were named."""
    folder("llama-2-7b", num_key_value_heads=5)
    with pytest.raises(JobReadError, match=r"job\.yaml:2  network 'model' cannot be built"):
        read_job("job.yaml")


def test_the_key_that_names_the_network(folder, desk):
    """`decided_by` points at it."""
    assert network_key(read_job("job.yaml").job) == "model.preset"
    folder("qwen3-0.6b")
    assert network_key(read_job("job.yaml").job) == "model.folder"


def test_a_resumed_run_keeps_its_configuration(folder, desk):
    """The folder may be gone by then."""
    folder("qwen3-0.6b")
    first = read_job("job.yaml")
    (desk / "resolved.yaml").write_text(first.resolved_yaml())
    shutil.rmtree(desk / "model")
    assert read_job("resolved.yaml").digest() == first.digest()
