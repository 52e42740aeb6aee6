"""Networks that torchtitan trains by name."""

import pytest

from tests.spec.migration.answers import fate
from trimtab.plan.layout import network_of
from trimtab.spec import load_job
from trimtab.spec.migration import Fate, render_job

PUBLISHED = {
    ("llama2", "7B"): 6_738_415_616,
    ("llama2", "13B"): 13_015_864_320,
    ("llama2", "70B"): 68_976_648_192,
    ("llama3", "8B"): 8_030_261_248,
    ("llama3", "70B"): 70_553_706_496,
    ("llama3", "405B"): 405_853_388_800,
    ("qwen3", "0.6B"): 596_049_920,
    ("qwen3", "1.7B"): 1_720_574_976,
    ("qwen3", "4B"): 4_022_468_096,
    ("qwen3", "8B"): 8_190_735_360,
    ("qwen3", "14B"): 14_768_307_200,
    ("qwen3", "32B"): 32_762_123_264,
    ("qwen3", "30B-A3B"): 30_532_122_624,
    ("qwen3", "235B-A22B"): 235_093_634_560,
}
"""Parameters of the models as published, tied ones once."""


@pytest.mark.parametrize(("model", "count"), PUBLISHED.items(), ids=lambda value: str(value))
def test_a_flavor_is_the_network_of_that_size(convert, model, count):
    """One wrong width trains another network."""
    name, flavor = model
    migration = convert(f'[model]\nname = "{name}"\nflavor = "{flavor}"')
    loaded = load_job(render_job(migration), source="job.yaml", read=lambda path: "")
    network = network_of(loaded.job)
    assert network is not None
    assert network.num_parameters() == count
    assert fate(migration, "model.flavor") in (Fate.CARRIED, Fate.CHANGED)


def test_the_small_networks_for_debugging_are_small(convert):
    """They must run on a laptop."""
    for name in ("llama3", "qwen3"):
        model = convert(f'[model]\nname = "{name}"\nflavor = "debugmodel"').job["model"]
        assert (model["embed"], model["vocab"]) == (256, 2048)


def test_a_network_that_the_catalog_lacks_is_said(convert):
    """Another network trains in its place."""
    migration = convert('[model]\nname = "deepseek_v3"\nflavor = "671B"')
    assert fate(migration, "model.flavor") is Fate.IMPOSSIBLE
    assert migration.job["model"]["preset"] == "moe-3m"
    assert [warning for warning in migration.warnings if "671B is not in the catalog" in warning]


def test_a_sequence_longer_than_the_network_knows_makes_it_longer(convert):
    """Long-context runs raise it there in code."""
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 131072'
    assert convert(text).job["model"]["context"] == 131072
