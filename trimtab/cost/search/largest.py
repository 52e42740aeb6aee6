"""What is the largest sequence, microbatch or network that fits, by any layout?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from trimtab.cost.closed_form import Values, peak_memory
from trimtab.cost.search.finding import Candidate, Findings, find, price_of_layout
from trimtab.cost.search.pricing import Limits
from trimtab.cost.search.space import Question, cases_of_layouts, layout_at, layouts
from trimtab.cost.search.weighing import SLACK, Scales

_Asking = Callable[[int], Question]

STEPS = 8
"""Between a size and its double so many sizes are tried."""

MOST_DOUBLINGS = 20

_WEIGHED = 6
"""Layouts that are weighed before it is said that a size does not fit: those that need least by closed forms."""

_FAR = 1.25
"""A layout that is expected to need so many times what there is, is not weighed to find out."""

_KEPT = 128
"""Of the fastest, among which the fastest that fits is looked for."""


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
        candidate: The fastest layout that it was found to fit by; None if none.
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


def largest(
    question: Question, limits: Limits, *, time: Values, memory: Values, what: Growing, scales: Scales
) -> Largest:
    """Of one size, all layouts tried at each; those that need least by closed forms are weighed.

    Sequences and layers are doubled until nothing fits, then tried in eighths of the last double. Microbatches are those
    that divide the batch.

    Args:
        question: Its own size is the least.
        limits: Memory and head-room count, as do deadline and budget where they are set.
        time: Constants of the closed forms of time.
        memory: Those of memory.
        what: Is to grow.
        scales: Weigh the layouts.
    """
    search = _Growth(question, limits, time, memory, scales)
    if what is Growing.MICROBATCH:
        return search.microbatch()
    own = question.sequence if what is Growing.SEQUENCE else question.network.layers
    asked: _Asking = (
        (lambda value: _with_sequence(question, value))
        if what is Growing.SEQUENCE
        else (lambda value: replace(question, network=replace(question.network, layers=value)))
    )
    value, candidate = 0, None
    following = own
    for _ in range(MOST_DOUBLINGS):
        found = search.fits(asked(following))
        if found is None:
            break
        value, candidate, following = following, found, following * 2
    if candidate is not None:
        low = value
        for part in range(STEPS - 1, 0, -1):
            between = low + low * part // STEPS
            if between in (low, following):
                continue
            found = search.fits(asked(between))
            if found is not None:
                value, candidate = between, found
                break
            following = between
    return Largest(
        what=what,
        value=value,
        candidate=candidate and search.fastest(asked(value), candidate),
        question=asked(value or own),
        next_value=following,
        next_lacks_bytes=search.lacking(asked(following)),
    )


def _with_sequence(question: Question, tokens: int) -> Question:
    network = replace(question.network, context=max(question.network.context, tokens))
    return replace(question, sequence=tokens, network=network)


class _Growth:
    """Tries sizes of one question."""

    def __init__(
        self, question: Question, limits: Limits, time: Values, memory: Values, scales: Scales
    ) -> None:
        self._question, self._limits = question, limits
        self._time, self._memory, self._scales = time, memory, scales
        self._found: dict[Question, Findings] = {}

    def fits(self, asked: Question) -> Candidate | None:
        """A layout that it fits by, of those that need least; None if there is none.

        Where closed forms, corrected by what was weighed at other sizes, leave no doubt, nothing is weighed.
        """
        for one in self._least(asked):
            if self._scales.is_beyond_doubt(asked, self._limits, one):
                return one
            if not self._scales.may_fit(asked, self._limits, one, closeness=_FAR):
                continue
            found = self._scales.weighed(asked, self._limits, one)
            if not found.refusal and found.shortfall_bytes == 0:
                return found
        return None

    def fastest(self, asked: Question, candidate: Candidate) -> Candidate:
        """The fastest that is found to fit; the one given at worst."""
        best = self._findings(asked).best
        known = self._scales.weighed(asked, self._limits, candidate)
        found = next(self._scales.fitting(asked, self._limits, best, most=_WEIGHED), known)
        return min((found, known), key=lambda one: one.step_s)

    def lacking(self, asked: Question) -> float:
        """Bytes that the layout lacks which needs least; 0 where no layout divides, or time or money forbid it."""
        weighed = [self._scales.weighed(asked, self._limits, one) for one in self._least(asked)]
        return min((one.shortfall_bytes for one in weighed if not one.refusal), default=0.0)

    def _least(self, asked: Question) -> Sequence[Candidate]:
        """Those that need least by closed forms, corrected by what was weighed."""
        return sorted(self._findings(asked).smallest, key=self._scales.expected_bytes)[:_WEIGHED]

    def microbatch(self) -> Largest:
        """Of all sizes that divide a replica's samples."""
        question = self._question
        chosen = self._by_microbatch()
        value, candidate = 0, None
        for size in sorted(chosen, reverse=True):
            fitting = list(self._scales.fitting(question, self._limits, chosen[size], most=_WEIGHED))
            if fitting:
                value, candidate = size, min(fitting, key=lambda one: one.step_s)
                break
        above = min((size for size in chosen if size > value), default=value)
        lacking = 0.0
        if above > value:
            weighed = [self._scales.weighed(question, self._limits, one) for one in chosen[above]]
            lacking = min((one.shortfall_bytes for one in weighed if not one.refusal), default=0.0)
        return Largest(
            what=Growing.MICROBATCH,
            value=value,
            candidate=candidate,
            question=question,
            next_value=above,
            next_lacks_bytes=lacking,
        )

    def _by_microbatch(self) -> dict[int, list[Candidate]]:
        """By size the layouts that need least, in order."""
        kept: dict[int, list[tuple[float, Candidate]]] = {}
        for columns in layouts(self._question):
            cases = cases_of_layouts(self._question, columns)
            needed = np.broadcast_to(peak_memory(cases, self._memory).largest_bytes, columns["devices"].shape)
            sizes = columns["microbatch"]
            for size in np.unique(sizes):
                places = np.flatnonzero(sizes == size)
                least = places[np.argsort(needed[places], kind="stable")[:_WEIGHED]]
                kept.setdefault(int(size), []).extend(
                    (float(needed[place]), self._priced(columns, int(place))) for place in least
                )
        return {
            size: [one for _, one in sorted(found, key=lambda pair: pair[0])[:_WEIGHED]]
            for size, found in kept.items()
        }

    def _priced(self, columns: dict[str, np.ndarray], place: int) -> Candidate:
        return price_of_layout(
            self._question, self._limits, layout_at(columns, place), time=self._time, memory=self._memory
        )

    def _findings(self, asked: Question) -> Findings:
        found = self._found.get(asked)
        if found is None:
            found = self._found[asked] = find(
                asked, self._limits, time=self._time, memory=self._memory, keep=_KEPT, slack=SLACK
            )
        return found
