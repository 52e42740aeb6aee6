"""The pipeline: how many stages, in which schedule, and which layers stand where."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from trimtab.spec.migration.megatron.degrees import STAGES, Degrees
from trimtab.spec.migration.megatron.draft import Draft
from trimtab.spec.migration.megatron.layout_string import layers_of_stages
from trimtab.spec.migration.settings import MigrationError

_LAYOUT = "--pipeline-model-parallel-layout"
_PER_CHUNK = "--num-layers-per-virtual-pipeline-stage"
_CHUNKS = "--num-virtual-stages-per-pipeline-rank"
_FIRST, _LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
_EMBEDDING, _LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
_METHOD = "--pp-partition-method"
_ZERO_BUBBLE = "--enable-zbh1-pipeline"
_ALL = (_LAYOUT, _PER_CHUNK, _CHUNKS, _FIRST, _LAST, _EMBEDDING, _LOSS, _METHOD, _ZERO_BUBBLE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Layers that follow each other: from `first` up to `end`, which is not among them; ranks take turns."""

    first: int
    end: int


def read_stages(draft: Draft, degrees: Degrees, layers: int) -> tuple[Stage, ...]:
    """The stages in the order of their layers, stated as SPLIT layers and, where they are uneven, as PLACE.

    Raises: MigrationError if the layers do not come out.
    """
    if degrees.stages == 1:
        for name in _ALL:
            draft.drop(name, "there is one stage")
        return (Stage(first=0, end=layers),)
    counts = _counts(draft, degrees.stages, layers)
    if sum(counts) != layers:
        raise MigrationError(f"the stages hold {sum(counts)} layers together; --num-layers is {layers}")
    if len(counts) > layers:
        raise MigrationError(
            f"{layers} layers do not fill {len(counts)} stages: a stage holds a layer at least"
        )
    is_balanced = 0 in counts
    balance = " BALANCE BY time" if is_balanced else ""
    schedule = _schedule(draft, len(counts) // degrees.stages)
    split = draft.state(f"SPLIT layers OVER {STAGES} USING {schedule}{balance}")
    draft.carry("--pipeline-model-parallel-size", degrees.mesh(), split)
    places = [] if is_balanced else [draft.state(place) for place in _places(counts)]
    _tell(draft, split, places, is_balanced=is_balanced)
    return _stages(counts)


def _counts(draft: Draft, stages: int, layers: int) -> list[int]:
    """Layers of every stage, in the order of the layers."""
    layout = draft.flags.text(_LAYOUT)
    if layout is not None:
        counts = list(layers_of_stages(layout))
        if len(counts) % stages:
            raise MigrationError(
                f"{_LAYOUT} has {len(counts)} stages, which is no multiple of {stages} ranks"
            )
        return counts
    first, last = draft.flags.positive(_FIRST), draft.flags.positive(_LAST)
    if first is not None or last is not None:
        return _with_given_ends(draft, stages, layers, first, last)
    method = draft.flags.text(_METHOD) or ""
    counts_embedding = _EMBEDDING in draft.flags or "embedding" in method
    counts_loss = _LOSS in draft.flags or "embedding" in method
    places = layers + counts_embedding + counts_loss
    per_chunk = draft.flags.positive(_PER_CHUNK)
    chunks = draft.flags.positive(_CHUNKS) or (max(1, places // stages // per_chunk) if per_chunk else 1)
    counts = _even(places, stages * chunks)
    counts[0] -= counts_embedding
    counts[-1] -= counts_loss
    return counts


def _with_given_ends(
    draft: Draft, stages: int, layers: int, first: int | None, last: int | None
) -> list[int]:
    """First and last rank as given, the rest even; each rank's layers spread evenly over its chunks."""
    chunks = draft.flags.positive(_CHUNKS) or 1
    ends = [count for count in (first, last) if count is not None]
    middle = stages - len(ends)
    if middle < 0 or layers - sum(ends) < middle or any(count % chunks for count in ends):
        raise MigrationError(
            f"{layers} layers over {stages} stages with {first or 'any'} on the first and {last or 'any'} on the last "
            f"do not come out, with {chunks} chunks each"
        )
    rest = _even((layers - sum(ends)) // chunks, middle) if middle else []
    of_a_round = [*([first // chunks] if first else []), *rest, *([last // chunks] if last else [])]
    return of_a_round * chunks


def _even(total: int, parts: int) -> list[int]:
    """As even as it goes; the first parts are the larger ones."""
    if parts > total:
        raise MigrationError(f"{total} layers do not fill {parts} stages")
    return [total // parts + (part < total % parts) for part in range(parts)]


def _stages(counts: Sequence[int]) -> tuple[Stage, ...]:
    ends = list(accumulate(counts))
    return tuple(Stage(first=end - count, end=end) for count, end in zip(counts, ends, strict=True))


def _schedule(draft: Draft, chunks: int) -> str:
    if _ZERO_BUBBLE in draft.flags:
        return f"interleaved_zero_bubble({chunks})"
    return f"interleaved_1f1b({chunks})" if chunks > 1 else "1f1b"


def _places(counts: Sequence[int]) -> list[str]:
    """One PLACE for every stage whose layers do not follow from an even cut of what the others leave."""
    if list(counts) == _even(sum(counts), len(counts)):
        return []
    stages, middle = _stages(counts), set(counts[1:-1])
    ends = [place for place in (0, len(counts) - 1) if counts[place] not in middle]
    uneven = ends if len(middle) == 1 else range(len(counts))
    return [
        f"PLACE layers BETWEEN {stages[place].first} AND {stages[place].end - 1} ON {STAGES} {place}"
        for place in uneven
    ]


def _tell(draft: Draft, split: str, places: Sequence[str], *, is_balanced: bool) -> None:
    draft.carry(_PER_CHUNK, split)
    draft.carry(_CHUNKS, split)
    draft.change(_ZERO_BUBBLE, split, reason="the zero-bubble schedule of one stage a rank")
    for name in (_FIRST, _LAST, _EMBEDDING, _LOSS, _METHOD, _LAYOUT):
        if is_balanced:
            reason = (
                "a stage holds a layer at least; BALANCE BY time weighs embedding and loss with the layers"
            )
            draft.change(name, split, reason=reason)
        elif places:
            draft.carry(name, *places)
        else:
            draft.drop(name, "the stages come out even, which is the default")
    if "m" in (draft.flags.text(_LAYOUT) or "") and not is_balanced:
        draft.change(_LAYOUT, split, *places, reason="heads for later tokens (m) are left out")
