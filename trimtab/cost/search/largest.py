"""What is the largest sequence, microbatch or network that fits, by any layout?"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from trimtab.cost.closed_form import Values, peak_memory
from trimtab.cost.search.finding import Candidate, find, price_of_layout
from trimtab.cost.search.pricing import Limits
from trimtab.cost.search.space import Question, cases_of_layouts, layout_at, layouts

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 8
"""Between a size and its double so many sizes are tried."""

MOST_DOUBLINGS = 20


class Growing(StrEnum):
    """What is made larger; everything else stays."""

    SEQUENCE = "sequence"
    MICROBATCH = "microbatch"
    LAYERS = "layers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Largest:
    """The answer.

    Args:
        what: Was made larger.
        value: The largest that fits: tokens, samples or layers; 0 if not even the job's own.
        candidate: The fastest layout that it fits by; None if none.
        question: That the layout answers.
        next_value: The next larger one that was tried.
        next_lacks_bytes: What a device lacks for it, by the layout that lacks least; 0 if it is none that memory forbids.
    """

    what: Growing
    value: int
    candidate: Candidate | None
    question: Question
    next_value: int
    next_lacks_bytes: float


def largest(question: Question, limits: Limits, *, time: Values, memory: Values, what: Growing) -> Largest:
    """Of one size, all layouts tried at each.

    Sequences and layers are doubled until nothing fits, then tried in eighths of the last double. Microbatches are those
    that divide the batch.

    Args:
        question: Its own size is the least.
        limits: Memory and head-room count, as do deadline and budget where they are set.
        time: Constants of the closed forms of time.
        memory: Those of memory.
        what: Is to grow.
    """
    if what is Growing.MICROBATCH:
        return _largest_microbatch(question, limits, time=time, memory=memory)
    own = question.sequence if what is Growing.SEQUENCE else question.network.layers
    asked: Callable[[int], Question] = (
        (lambda value: _with_sequence(question, value))
        if what is Growing.SEQUENCE
        else (lambda value: replace(question, network=replace(question.network, layers=value)))
    )

    def fits(value: int) -> Candidate | None:
        found = find(asked(value), limits, time=time, memory=memory, keep=1)
        return found.best[0] if found.best else None

    value, candidate = 0, None
    following = own
    for _ in range(MOST_DOUBLINGS):
        found = fits(following)
        if found is None:
            break
        value, candidate, following = following, found, following * 2
    if candidate is not None:
        low = value
        for part in range(STEPS - 1, 0, -1):
            between = low + low * part // STEPS
            found = fits(between)
            if found is not None:
                value, candidate = between, found
                break
            following = between
    lacking = find(asked(following), limits, time=time, memory=memory, keep=1).nearest
    return Largest(
        what=what,
        value=value,
        candidate=candidate,
        question=asked(value or own),
        next_value=following,
        next_lacks_bytes=lacking[0].shortfall_bytes if lacking else 0.0,
    )


def _with_sequence(question: Question, tokens: int) -> Question:
    network = replace(question.network, context=max(question.network.context, tokens))
    return replace(question, sequence=tokens, network=network)


def _largest_microbatch(question: Question, limits: Limits, *, time: Values, memory: Values) -> Largest:
    room = question.fabric.memory_bytes * (1 - limits.headroom)
    best: tuple[int, float, Candidate] | None = None
    lacking: dict[int, float] = {}
    for columns in layouts(question):
        needed = np.broadcast_to(
            peak_memory(cases_of_layouts(question, columns), memory).largest_bytes, columns["devices"].shape
        )
        sizes = columns["microbatch"]
        for size in np.unique(sizes):
            least = float(needed[sizes == size].min())
            lacking[int(size)] = min(least - room, lacking.get(int(size), np.inf))
        fitting = needed <= room
        if fitting.any():
            most = int(sizes[fitting].max())
            index = int(np.flatnonzero(fitting & (sizes == most))[0])
            candidate = price_of_layout(question, limits, layout_at(columns, index), time=time, memory=memory)
            if best is None or (most, -candidate.step_s) > best[:2]:
                best = (most, -candidate.step_s, candidate)
    value = best[0] if best else 0
    above = sorted(size for size in lacking if size > value)
    return Largest(
        what=Growing.MICROBATCH,
        value=value,
        candidate=best[2] if best else None,
        question=question,
        next_value=above[0] if above else value,
        next_lacks_bytes=max(lacking[above[0]], 0.0) if above else 0.0,
    )
