import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trimtab.catalog import NetworkError, changed_network, network, network_names
from trimtab.catalog.hugging_face import network_from_config, read_config, write_config

CONFIGURATIONS = Path(__file__).parent / "configurations"
PUBLISHED = sorted(path.stem for path in CONFIGURATIONS.glob("*.json"))


def config(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((CONFIGURATIONS / f"{name}.json").read_text())
    return values


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_written_is_read_as_the_same_network(name: str) -> None:
    """Otherwise a trained network is given away as another."""
    described = network_from_config(config(name), name=name)
    written = write_config(described)
    dropout = described.dropout if written["model_type"] == "gpt2" else 0.0
    assert network_from_config(written, name=name) == replace(described, dropout=dropout)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_that_was_not_changed_keeps_its_configuration(name: str) -> None:
    """Tokens, releases, whatever a tool of the user's reads there."""
    base = config(name)
    assert write_config(network_from_config(base, name=name), base=base) == base


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_changed_network_keeps_its_family_and_tokens(name: str) -> None:
    """A Mistral without a window is a Llama to look at, and its users look for a Mistral."""
    base = config(name)
    changed = changed_network(network_from_config(base, name=name), {"layers": 1, "full_layers": 0})
    written = write_config(changed, base=base)
    assert written["model_type"] == base["model_type"]
    assert written["architectures"] == base["architectures"]
    assert written["eos_token_id"] == base.get("eos_token_id")
    read = read_config(written, name="x")
    assert read.network == replace(changed, name="x")
    assert [warning.key for warning in read.warnings] == []


@pytest.mark.parametrize("name", network_names())
def test_every_preset_can_be_given_away(name: str) -> None:
    """Whoever trains a preset wants to run it somewhere."""
    family = {"gpt": "gpt2", "moe": "mixtral", "mix": "mixtral", "qwe": "qwen3_moe"}.get(name[:3], "llama")
    assert write_config(network(name))["model_type"] == family


def test_dropout_is_a_matter_of_training() -> None:
    """A Llama that was trained with dropout computes what any Llama computes."""
    assert write_config(network("llama-3m", dropout=0.1))["model_type"] == "llama"
    assert write_config(network("gpt-3m", dropout=0.1))["resid_pdrop"] == 0.1


def test_a_window_makes_a_mistral() -> None:
    """In a Llama the same weights would see further than they were trained to."""
    assert write_config(network("llama-3m", window=64))["sliding_window"] == 64
    assert write_config(network("llama-3m", window=64))["model_type"] == "mistral"


def test_a_network_of_no_family_is_refused_with_what_is_different() -> None:
    """Given away as the nearest family, it would compute something else there."""
    with pytest.raises(NetworkError) as caught:
        write_config(network("gpt-3m", norm="rmsnorm"))
    assert str(caught.value) == (
        "no family of Hugging Face configurations describes gpt-3m(norm=rmsnorm); the nearest is 'gpt2', where\n"
        "  norm is layernorm, and not rmsnorm"
    )


def test_tokens_without_a_meaning_are_null() -> None:
    """The family's own default is a token of another vocabulary, perhaps behind the last of this one."""
    written = write_config(network("gpt-3m"))
    assert [written[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")] == [None] * 3
