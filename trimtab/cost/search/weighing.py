"""What does a layout really need? It is compiled, and what this runtime allocates for its plan is counted.

Closed forms filter a space of millions; what is shown, and what decides whether anything fits, is weighed. Closed forms are
tens of per cent off, but alike for layouts that are alike: what one of them turned out to need tells which others to try.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from math import inf

from trimtab.catalog import Cluster
from trimtab.cost.counts import counts_of
from trimtab.cost.memory import RankMemory
from trimtab.cost.replicated import largest_allocated
from trimtab.cost.run_memory import RunMemory
from trimtab.cost.search.finding import Candidate, Limits, Verdict
from trimtab.cost.search.formulas import formulas_of
from trimtab.cost.search.plans import plan_of
from trimtab.cost.search.space import Layout, Question
from trimtab.plan.layout import ReplicatedLayout
from trimtab.plan.physical import Plan
from trimtab.spec import StrategyError, parse_strategy
from trimtab.spec.language import is_replicated
from trimtab.terms import InputError

SLACK = 0.6
"""Of what closed forms say, layouts may turn out to need as little: the lowest twentieth does (see ``THIS_RUNTIME``)."""

_CLOSE = 1.05
"""A layout that is expected to need so many times what there is, is not tried."""

_SOME, _CAUTION = 12, 0.9
"""Ratios that are known before others are guessed from the least of them, and the part of it that is guessed."""

_Key = tuple[object, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """Args:
    memory: Of the rank that needs most; None for what cannot be compiled.
    refusal: Why not; empty if it can be.
    """

    memory: RankMemory | None
    refusal: str = ""


class Scales:
    """Weighs layouts, and learns from each how far closed forms are off.

    Args:
        cluster: Where the plans stand.
        shares: Of a layout; None for the backend's own order.
        saves: Whether the run writes checkpoints, whose staging ranks that hold the same allocate.
        refuse: Raises for a plan that the job does not allow.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        shares: Callable[[Layout], int | None],
        saves: bool = False,
        refuse: Callable[[Question, Layout, Plan], None] | None = None,
    ) -> None:
        self._cluster, self._shares, self._saves, self._refuse = cluster, shares, saves, refuse
        self._known: dict[tuple[Question, Layout], Weighed] = {}
        self._ratios: dict[_Key, float] = {}

    def weigh(self, question: Question, layout: Layout) -> Weighed:
        """What the plan of a layout needs; worked out once."""
        found = self._known.get((question, layout))
        if found is None:
            found = self._known[question, layout] = self._weigh(question, layout)
        return found

    def weighed(self, question: Question, limits: Limits, candidate: Candidate) -> Candidate:
        """A candidate with the memory that its plan needs, and the verdict that follows; as it was if it cannot be compiled."""
        return self._weighed(question, limits, candidate, self.weigh(question, candidate.layout))

    def _weigh_to(self, question: Question, limits: Limits, candidate: Candidate) -> Weighed:
        """As ``weigh``, but of a layout that does not fit only until that is known."""
        known = self._known.get((question, candidate.layout))
        if known is not None:
            return known
        room = _room(question, limits)
        found = self._weigh(question, candidate.layout, enough_bytes=room)
        if found.memory is None or found.memory.peak_bytes <= room:
            self._known[question, candidate.layout] = found
        return found

    def _weighed(self, question: Question, limits: Limits, candidate: Candidate, found: Weighed) -> Candidate:
        if found.memory is None:
            return replace(candidate, refusal=found.refusal)
        needed = found.memory.peak_bytes
        for key in _keys(candidate.layout):
            self._ratios[key] = needed / candidate.closed_form_bytes
        classes = found.memory.moments[found.memory.peak]
        room = _room(question, limits)
        others = candidate.verdict if candidate.verdict is not Verdict.MEMORY else Verdict.FEASIBLE
        return replace(
            candidate,
            memory_bytes=needed,
            memory_parts={f"{part.name}_bytes": getattr(classes, part.name) for part in fields(classes)},
            verdict=Verdict.MEMORY if needed > room else others,
            shortfall_bytes=max(needed - room, 0.0),
            is_weighed=True,
        )

    def fitting(
        self, question: Question, limits: Limits, candidates: Iterable[Candidate], *, most: int
    ) -> Iterator[Candidate]:
        """Those that fit, weighed, in the order given; what is like others that did not fit is passed over.

        Args:
            question: That they answer.
            limits: That they keep.
            candidates: That keep every limit but perhaps memory.
            most: So many are weighed.
        """
        left = most
        for candidate in candidates:
            if left == 0:
                return
            if not self.may_fit(question, limits, candidate):
                continue
            left -= 1
            found = self._weighed(question, limits, candidate, self._weigh_to(question, limits, candidate))
            if not found.refusal and found.shortfall_bytes == 0:
                yield found

    def expected_bytes(self, candidate: Candidate) -> float:
        """By closed forms, corrected by the layout most like it that was weighed; if there is none, by the most they are off."""
        return candidate.closed_form_bytes * (self._ratio(candidate.layout) or self._least_ratio())

    def may_fit(
        self, question: Question, limits: Limits, candidate: Candidate, *, closeness: float = _CLOSE
    ) -> bool:
        """Whether no more is expected than so many times what there is."""
        return self.expected_bytes(candidate) <= _room(question, limits) * closeness

    def is_beyond_doubt(self, question: Question, limits: Limits, candidate: Candidate) -> bool:
        """Whether a layout like it was weighed, and half of what there is would do."""
        is_known = self._ratio(candidate.layout) is not None
        return is_known and 2 * self.expected_bytes(candidate) <= _room(question, limits)

    def _least_ratio(self) -> float:
        """Of a layout like none that was weighed: as little as any other of the same network took, if there are some."""
        known = self._ratios.values()
        return SLACK if len(known) < _SOME else max(SLACK, _CAUTION * min(known))

    def _ratio(self, layout: Layout) -> float | None:
        return next((self._ratios[key] for key in _keys(layout) if key in self._ratios), None)

    def _weigh(self, question: Question, layout: Layout, *, enough_bytes: float = inf) -> Weighed:
        try:
            plan = plan_of(question, layout, self._cluster, shares=self._shares(layout))
            if self._refuse is not None:
                self._refuse(question, layout, plan)
        except (StrategyError, InputError) as error:
            return Weighed(memory=None, refusal=str(error))
        counts = counts_of(plan)
        allocated = None
        program = parse_strategy(formulas_of(question, layout), source="plan")
        if is_replicated(program) and not question.network.experts:
            held = _replicated(question, layout, self._shares(layout))
            allocated = largest_allocated(held, states=question.num_states, saves=self._saves)
        used = RunMemory(plan, counts, num_leaves=1, allocated=allocated)
        return Weighed(memory=used.largest(enough_bytes=enough_bytes))


def _room(question: Question, limits: Limits) -> float:
    return question.fabric.memory_bytes * (1 - limits.headroom)


def _replicated(question: Question, layout: Layout, shares: int | None) -> ReplicatedLayout:
    return ReplicatedLayout(
        devices=layout.devices,
        num_parts=shares or layout.devices,
        has_fixed_order=shares is not None,
        batch=question.batch,
        microbatch=layout.microbatch,
        sequence=question.sequence,
        tensor_numels=tuple(tensor.numel for tensor in question.network.tensors()),
    )


def _keys(layout: Layout) -> tuple[_Key, ...]:
    """Under which layouts are alike, the most alike first."""
    alike = (layout.schedule, layout.pieces, layout.store, layout.recompute_quarters)
    degrees = (layout.tensor, layout.pipeline, layout.context, layout.expert, layout.sequence_parallel)
    return ((*alike, *degrees, layout.microbatch), (*alike, *degrees), alike, alike[2:])
