"""A job out of a DeepSpeed configuration."""

from collections.abc import Callable

from trimtab.spec.migration.deepspeed.batch import answer_batch
from trimtab.spec.migration.deepspeed.devices import answer_devices, read_layout
from trimtab.spec.migration.deepspeed.layers import answer_layers
from trimtab.spec.migration.deepspeed.optimizers import answer_optimizer
from trimtab.spec.migration.deepspeed.precision import answer_precision
from trimtab.spec.migration.deepspeed.reading import ALIASES, flatten, read_config
from trimtab.spec.migration.deepspeed.reductions import answer_clipping, answer_reductions
from trimtab.spec.migration.deepspeed.schedules import answer_schedule
from trimtab.spec.migration.deepspeed.surroundings import answer_surroundings
from trimtab.spec.migration.deepspeed.tensors import answer_tensors
from trimtab.spec.migration.deepspeed.training_arguments import answer_arguments, fill_in, read_arguments
from trimtab.spec.migration.deepspeed.zero import answer_zero
from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout
from trimtab.spec.migration.settings import Migration
from trimtab.spec.migration.sources import Source
from trimtab.spec.migration.stand_ins import TEXT, stand_in

_OF_LAYOUT: tuple[Callable[[Draft, Layout], None], ...] = (
    answer_devices,
    answer_batch,
    answer_tensors,
    answer_layers,
    answer_zero,
    answer_reductions,
)

_OF_THE_REST: tuple[Callable[[Draft], None], ...] = (
    answer_precision,
    answer_optimizer,
    answer_schedule,
    answer_clipping,
    answer_surroundings,
)


def read_deepspeed(source: Source) -> Migration:
    """The job that a DeepSpeed configuration amounts to.

    A configuration knows neither model nor data, and the length of training only by its scheduler: what is missing
    stands in, and a warning says so.

    Raises: MigrationError if the text is not one that DeepSpeed would take.
    """
    values = read_config(source.text, name=source.name)
    settings = fill_in(flatten(values), read_arguments(source.flags))
    draft = Draft(settings, system="DeepSpeed", name=source.name, aliases=ALIASES)
    layout = read_layout(draft, source.devices)
    model = stand_in(layout, source.networks, fewest_layers=layout.pp)
    draft.put({**model, "data.text": TEXT}, note="stands in")
    draft.warnings.append(
        "A DeepSpeed file names neither model nor data: a small network and the text of Python's library stand in, so "
        "that the job runs as it is. Set model and data."
    )
    for answer in _OF_LAYOUT:
        answer(draft, layout)
    for answer_alone in _OF_THE_REST:
        answer_alone(draft)
    answer_arguments(draft)
    draft.unknown()
    return draft.migration(f"the DeepSpeed settings of {source.name}")
