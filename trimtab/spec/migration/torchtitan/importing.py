"""A job out of a configuration of torchtitan."""

from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.settings import Migration
from trimtab.spec.migration.sources import Source
from trimtab.spec.migration.torchtitan.devices import answer_devices, read_layout
from trimtab.spec.migration.torchtitan.layers import answer_layers
from trimtab.spec.migration.torchtitan.networks import answer_network, num_layers
from trimtab.spec.migration.torchtitan.pipeline import answer_pipeline, fewest_layers
from trimtab.spec.migration.torchtitan.reading import ALIASES, read_settings
from trimtab.spec.migration.torchtitan.storage import answer_storage
from trimtab.spec.migration.torchtitan.surroundings import answer_failures, answer_surroundings
from trimtab.spec.migration.torchtitan.training import answer_training


def read_torchtitan(source: Source) -> Migration:
    """The job that a TOML file of torchtitan amounts to.

    Raises: MigrationError if the text is not one that torchtitan would take.
    """
    settings = read_settings(source.text, source.flags)
    draft = Draft(settings, system="torchtitan", name=source.name, aliases=ALIASES)
    layout = read_layout(draft, source.devices)
    answer_network(draft, layout, source.networks, fewest_layers=fewest_layers(draft, layout))
    answer_devices(draft, layout)
    answer_storage(draft, layout)
    answer_pipeline(draft, layout, num_layers(draft, source.networks))
    answer_training(draft, layout)
    answer_layers(draft)
    answer_surroundings(draft)
    answer_failures(draft, layout)
    draft.unknown()
    return draft.migration(f"the torchtitan settings of {source.name}")
