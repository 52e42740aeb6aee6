"""The preset that a network is closest to."""

from tests.spec.migration.conftest import NETWORKS
from trimtab.catalog import network
from trimtab.spec.migration.presets import choose_preset


def rebuilt(choice):
    return network(choice.preset, **choice.changes)


def test_every_network_is_its_own_preset():
    """A network of the catalog that came back as a changed other one would be read as another one."""
    for name, fields in NETWORKS.items():
        wanted = {
            key: value for key, value in fields.items() if key not in ("name", "full_layers", "rope_scaling")
        }
        choice = choose_preset(wanted, NETWORKS)
        assert not choice.changes
        assert list(rebuilt(choice).tensors()) == list(network(name).tensors())


def test_what_is_changed_gives_the_network_that_was_wanted():
    """A head size that follows from the width has to be said where it does not follow any more."""
    for heads, embed, size in ((32, 4096, 128), (16, 4096, 128), (16, 2048, 128), (8, 512, 32), (64, 512, 8)):
        wanted = {
            "layers": 3,
            "embed": embed,
            "heads": heads,
            "kv_heads": heads,
            "head_size": size,
            "mlp": 77,
        }
        found = rebuilt(choose_preset(wanted, NETWORKS))
        assert {key: getattr(found, key) for key in wanted} == wanted


def test_fewest_changes_win_then_the_nearest_size():
    """The reader compares with what he knows."""
    llama = {key: value for key, value in NETWORKS["llama2-13b"].items() if key != "name"}
    assert choose_preset({**llama, "layers": 41}, NETWORKS).changes == {"layers": 41}
    assert choose_preset({"layers": 30}, NETWORKS).preset != "gpt3-175b"


def test_fields_that_no_job_file_changes_are_lost_aloud():
    """The table names what the preset has instead."""
    choice = choose_preset(
        {"layers": 2, "unheard": 3},
        {"a": {"layers": 2, "unheard": 4, "embed": 8, "heads": 1, "head_size": 8}},
    )
    assert choice.lost == {"unheard": 4}
    assert not choice.changes
