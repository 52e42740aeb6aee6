"""A Hugging Face folder named in a job file: its configuration is read once and kept with the run."""

from collections.abc import Callable

import pytest

from trimtab.spec import JobFileError, LoadedJob, load_job

Load = Callable[..., LoadedJob]

TEXT = """\
run: tiny
model: {folder: models/llama}
data: {text: python-stdlib}
train: {steps: 10}
"""
CONFIG = """\
{
  "architectures": ["LlamaForCausalLM"],
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
  "mlp_only_layers": [],
  "sliding_window": null,
  "tie_word_embeddings": false,
  "hidden_act": "no"
}
"""
VALUES = {
    "architectures": ("LlamaForCausalLM",),
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "mlp_only_layers": (),
    "sliding_window": None,
    "tie_word_embeddings": False,
    "hidden_act": "no",
}
FILES = {"models/llama/config.json": CONFIG}


def test_a_folder_is_read_with_the_places_of_its_values(load: Load) -> None:
    """Otherwise an error in the configuration has no line."""
    loaded = load(TEXT, files=FILES)
    assert loaded.job.model.configuration == VALUES
    assert loaded.origins["model.configuration.rms_norm_eps"] == "models/llama/config.json:3"
    assert loaded.origins["model.configuration.rope_scaling.factor"] == "models/llama/config.json:4"


def test_a_folder_is_relative_to_the_file_that_names_it(load: Load) -> None:
    """As every other file that a job file names."""
    files = {"jobs/models/llama/config.json": CONFIG}
    assert load(TEXT, source="jobs/run.yaml", files=files).job.model.configuration == VALUES


def test_a_resumed_run_does_not_read_the_folder_again(load: Load) -> None:
    """Otherwise a folder that changed gives a run two networks."""
    first = load(TEXT, files=FILES)
    again = load_job(first.resolved_yaml(), source="resolved.yaml", read=lambda path: pytest.fail(path))
    assert again.job == first.job.model_copy(update={"model": again.job.model})
    assert again.digest() == first.digest()
    assert again.resolved_yaml().count("sliding_window: null") == 1


def test_a_changed_configuration_is_another_run(load: Load) -> None:
    """Otherwise two networks pass for one."""
    changed = {"models/llama/config.json": CONFIG.replace("1e-05", "1e-06")}
    assert load(TEXT, files=FILES).digest() != load(TEXT, files=changed).digest()


def test_tabs_indent_json(load: Load) -> None:
    """JSON allows what YAML does not, and some tools write it so."""
    tabs = {"models/llama/config.json": CONFIG.replace("  ", "\t").replace(": ", ":\t")}
    assert load(TEXT, files=tabs).job.model.configuration == VALUES


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[1, 2]", "models/llama/config.json:1:1  config.json holds no mapping of keys"),
        ('{"a": 1', "models/llama/config.json:1:1  this is never closed"),
        ("", "models/llama/config.json:1:1  the file is empty"),
    ],
)
def test_a_broken_configuration_is_shown_where_it_breaks(load: Load, written: str, message: str) -> None:
    """Otherwise the user searches in the job file for what stands elsewhere."""
    with pytest.raises(JobFileError) as caught:
        load(TEXT, files={"models/llama/config.json": written})
    assert str(caught.value).startswith(message)


def test_choosing_another_network_takes_the_configuration_back(load: Load) -> None:
    """Otherwise a stored job cannot be tried with another network."""
    stored = load(TEXT, files=FILES).resolved_yaml()
    preset = load(stored, overrides=["model.preset=gpt-3m"]).job.model
    assert (preset.named, preset.configuration) == ({"preset": "gpt-3m"}, {})
    other = load(stored, overrides=["model.folder=other"], files={"other/config.json": '{"n_embd": 8}'})
    assert other.job.model.configuration == {"n_embd": 8}


def test_a_folder_may_be_changed_as_a_preset_is(load: Load) -> None:
    """The first try of a large model is a small one."""
    model = load(TEXT, files=FILES, overrides=["model.layers=2", "model.bias=qkv"]).job.model
    assert model.changes == {"layers": 2, "bias": "qkv"}
    assert model.named == {"folder": "models/llama"}


def test_a_folder_is_kept_as_it_is_seen_from_where_the_run_starts(load: Load) -> None:
    """Ranks look for its weights there, and know nothing of the file that named it."""
    files = {"models/llama/config.json": CONFIG}
    text = TEXT.replace("models/llama", "../models/llama/")
    loaded = load(text, source="jobs/run.yaml", files=files)
    assert loaded.job.model.folder == "models/llama"
    assert loaded.origins["model.folder"] == "jobs/run.yaml:2"


@pytest.mark.parametrize(
    ("model", "begins"),
    [
        ("{folder: models/llama}", True),
        ("{folder: models/llama, weights: folder}", True),
        ("{folder: models/llama, weights: random}", False),
        ("{preset: gpt-3m}", False),
    ],
)
def test_a_folder_gives_its_weights_unless_told_otherwise(load: Load, model: str, begins: bool) -> None:
    """Who names trained weights and gets random ones pays for it before they see it."""
    text = TEXT.replace("{folder: models/llama}", model)
    assert load(text, files=FILES).job.model.begins_with_folder is begins
