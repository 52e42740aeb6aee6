"""Stages of a pipeline: their schedule, how many a device has, and which layers they hold.

Source: torchtitan 0.1.0, torchtitan/distributed/pipeline.py: a schedule of several stages a device has two of them
unless told; the loop hands stages out in turn, the V schedules go there and back. Auto-split counts embedding and
head as one layer each.
"""

import re
from collections.abc import Sequence

from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout
from trimtab.spec.migration.settings import MigrationError
from trimtab.spec.migration.torchtitan.devices import PIPELINE

SECTION = "parallelism.pipeline_parallel_"
SCHEDULE, SPLIT_POINTS = f"{SECTION}schedule", f"{SECTION}split_points"
PER_STAGE = f"{SECTION}layers_per_stage"
PARTS = "parallelism.module_fqns_per_model_part"
MICROBATCHES, MICROBATCH_SIZE = f"{SECTION}microbatches", f"{SECTION}microbatch_size"

_MOST_STAGES_A_DEVICE = 2
"""Stages of a device where the file does not name the first layer of each."""

_ONE_STAGE = {"1f1b": "1f1b", "gpipe": "gpipe"}
_LOOPS = {
    "interleaved1f1b": "interleaved_1f1b",
    "flexibleinterleaved1f1b": "interleaved_1f1b",
    "loopedbfs": "looped_bfs",
    "interleavedzerobubble": "interleaved_zero_bubble",
}
_THERE_AND_BACK = {"zbvzerobubble": "zbv", "dualpipev": "dualpipev"}


def answer_pipeline(draft: Draft, layout: Layout, num_layers: int | None) -> None:
    """Write schedule and stages.

    Raises: MigrationError if the layers cannot be cut as the file says.
    """
    if layout.pp == 1:
        draft.irrelevant(PIPELINE, "1: not used")
        for key in _KEYS:
            draft.irrelevant(key, "there is one stage")
        return
    written = draft.word(SCHEDULE) or "1F1B"
    schedule = re.sub(r"[_\-\s]", "", written.casefold())
    firsts = _first_layers(draft, layout, num_layers)
    loops = _stages_per_device(firsts, layout.pp) if firsts else _MOST_STAGES_A_DEVICE
    using = _using(schedule, loops)
    if using is None:
        draft.impossible(
            SCHEDULE, f"a schedule of the file {SECTION}schedule_csv or of another name; 1f1b stands in"
        )
    split = f"SPLIT layers OVER pp USING {using or '1f1b'}"
    draft.carried(PIPELINE, layout.mesh, split)
    if using is not None:
        draft.carried(SCHEDULE, split)
    _answer_stages(draft, split, _places(firsts, layout.pp, num_layers, schedule in _THERE_AND_BACK))
    _answer_rest(draft)


_KEYS = (
    SCHEDULE, SPLIT_POINTS, PER_STAGE, PARTS, MICROBATCHES, MICROBATCH_SIZE, f"{SECTION}schedule_csv",
    f"{SECTION}split_mode", f"{SECTION}first_stage_less_layers", f"{SECTION}last_stage_less_layers",
    f"{SECTION}expert_parallel_overlap",
)  # fmt: skip


def microbatch(draft: Draft, layout: Layout, local: int) -> int:
    """Samples that a stage computes at once, out of those of one data-parallel rank.

    Until April 2025 the file gave the number of microbatches, as many as stages unless told; since then it gives
    their size, 1 unless told.

    Raises: MigrationError if the samples cannot be cut so.
    """
    if layout.pp == 1:
        return local
    is_old = MICROBATCHES in draft or not draft.written(PIPELINE).startswith("parallelism.")
    count = (draft.integer(MICROBATCHES) or layout.pp) if is_old else None
    samples = local // count if count else (draft.integer(MICROBATCH_SIZE) or 1)
    if samples < 1 or local % samples or (count and local % count):
        raise MigrationError(
            f"{local} samples of a data-parallel rank cannot be cut into "
            f"{f'{count} microbatches' if count else f'microbatches of {samples}'}; torchtitan refuses that"
        )
    return samples


def fewest_layers(draft: Draft, layout: Layout) -> int:
    """Layers that a network must have for the stages of a file."""
    firsts = _first_layers(draft, layout, None) if layout.pp > 1 else []
    return firsts[-1] + 1 if firsts else _MOST_STAGES_A_DEVICE * layout.pp


def _using(schedule: str, loops: int) -> str | None:
    if schedule in _LOOPS:
        return f"{_LOOPS[schedule]}({loops})"
    return _ONE_STAGE.get(schedule) or _THERE_AND_BACK.get(schedule)


def _first_layers(draft: Draft, layout: Layout, num_layers: int | None) -> list[int]:
    """The first layer of each stage, from 0 on; empty if the file leaves the cut to torchtitan."""
    if points := _names(draft.value(SPLIT_POINTS)):
        return [0, *(_layer(draft, point) for point in points)]
    parts = draft.value(PARTS)
    if isinstance(parts, list) and parts:
        named = [[_layer(draft, name) for name in part if str(name).startswith("layers.")] for part in parts]
        return [min(layers) for layers in named if layers]
    per_stage = draft.integer(PER_STAGE)
    if per_stage and num_layers:
        stages = -(-(num_layers + 2) // per_stage)
        return [max(0, stage * per_stage - 1) for stage in range(stages)]
    return []


def _stages_per_device(firsts: Sequence[int], devices: int) -> int:
    return max(1, len(firsts) // devices)


def _places(firsts: Sequence[int], devices: int, num_layers: int | None, is_v: bool) -> list[str]:
    """PLACE statements for stages whose first layers are known."""
    placed = []
    for stage, first in enumerate(firsts):
        turn, place = divmod(stage, devices)
        device = devices - 1 - place if is_v and turn % 2 else place
        if stage + 1 < len(firsts):
            where = f"BETWEEN {first} AND {firsts[stage + 1] - 1}"
        else:
            where = f"BETWEEN {first} AND {num_layers - 1}" if num_layers else f"WHERE layer >= {first}"
        placed.append(f"PLACE layers {where} ON pp {device}")
    return placed


def _answer_stages(draft: Draft, split: str, placed: Sequence[str]) -> None:
    for flag in (SPLIT_POINTS, PARTS):
        if placed:
            draft.carried(flag, *placed)
        else:
            draft.irrelevant(flag, "empty: layers are shared out evenly")
    if placed:
        draft.carried(PER_STAGE, split, *placed)
    else:
        reason = "stages are balanced without a count; place them with PLACE layers"
        draft.impossible(PER_STAGE, reason)


def _answer_rest(draft: Draft) -> None:
    csv = f"{SECTION}schedule_csv"
    if draft.word(csv):
        draft.impossible(csv, "schedules have names; 1f1b stands in")
    else:
        draft.irrelevant(csv, "empty")
    for key in ("first_stage_less_layers", "last_stage_less_layers"):
        reason = "BALANCE BY params or time weighs embedding and head by what they are"
        draft.impossible(f"{SECTION}{key}", reason)
    draft.irrelevant(f"{SECTION}split_mode", "stages are cut by layer")
    draft.irrelevant(f"{SECTION}expert_parallel_overlap", "what overlaps is the runtime's affair")
    for flag in (MICROBATCHES, MICROBATCH_SIZE):
        draft.carried(flag, "train.microbatch")


def _names(value: object) -> list[str]:
    """Names from a list, or from text with commas, as the first releases had it."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return [str(name) for name in value] if isinstance(value, list) else []


def _layer(draft: Draft, name: str) -> int:
    match = re.fullmatch(r"layers\.([0-9]+)", str(name))
    if match is None:
        raise MigrationError(f"{name} is no layer; torchtitan names them layers.0, layers.1, …")
    return int(match[1])
