"""What may be meant otherwise: warnings with their figures and their lines."""

from collections.abc import Callable, Iterator

from trimtab.catalog import Level
from trimtab.cost.explanation.document import Caution, CautionKind, CollectiveFacts, Explanation
from trimtab.cost.explanation.places import at
from trimtab.plan.physical import Plan
from trimtab.terms import OnLoss, format_bytes

BUBBLE_LIMIT = 0.30
"""Part of all ranks' time in a pipeline's bubble above which there is a warning."""

MEMORY_LIMIT = 0.90
"""Part of a device's memory above which nothing is left for its context and the allocator's gaps."""

REPEATED_LIMIT = 0.01
"""Part of the FLOPs that several ranks compute alike above which there is a warning."""

UNEVEN_LIMIT = 1.10
"""How much longer than the mean a stage may compute."""

WAITING_LIMIT = 0.10
"""Part of the step that collectives of tokens may take over slow links."""

_ALWAYS_NEAR = ("tensor parallelism", "sequence parallelism")
"""Why collectives are there that belong inside a node: they stand on the path of every layer."""


def cautions(plan: Plan, document: Explanation) -> Iterator[Caution]:
    """Every warning of a plan, the gravest first."""
    for rule in _RULES:
        yield from rule(plan, document)


def _memory(plan: Plan, document: Explanation) -> Iterator[Caution]:
    """The group that fills its device most, and how many others do not fit either."""
    shares = {
        group.name: group.memory.peak_bytes / group.memory.device_bytes
        for group in document.groups
        if group.memory.device_bytes is not None
    }
    fullest = max(shares, key=lambda name: shares[name], default=None)
    if fullest is None or shares[fullest] <= MEMORY_LIMIT:
        return
    (group,) = (found for found in document.groups if found.name == fullest)
    memory, share = group.memory, shares[fullest]
    assert memory.device_bytes is not None, "its share is known"
    (peak,) = (found for found in memory.moments if found.moment is memory.peak)
    sizes = {name: getattr(peak.classes, name) for name in peak.classes.__slots__}
    largest = max(sizes, key=lambda name: sizes[name])
    needs = (
        f"a rank of {group.name} ({group.title}) needs {format_bytes(memory.peak_bytes)} of "
        f"{format_bytes(memory.device_bytes)} in the {memory.peak.value}"
    )
    verdict = (
        "does not fit" if share > 1 else f"leaves {1 - share:.0%} for the device's context and the allocator"
    )
    others = sum(found.memory.fits is False for found in document.groups) - 1
    others_too = f"; {others} more groups do not fit" if others > 0 else ""
    yield Caution(
        kind=CautionKind.MEMORY,
        message=f"{needs} and {verdict}; most of it is {largest}, {format_bytes(sizes[largest])}{others_too}",
        at="",
    )


def _border(plan: Plan, document: Explanation) -> Iterator[Caution]:
    """Collectives on the path of the computation that leave their node."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for group in document.groups:
        own: dict[tuple[str, str], tuple[int, float]] = {}
        for facts in group.collectives:
            if not _is_on_path(facts) or not facts.rank_bytes.site:
                continue
            size, seconds = own.get((facts.reason, facts.decided_by), (0, 0.0))
            own[facts.reason, facts.decided_by] = (
                size + facts.rank_bytes.site,
                seconds + facts.seconds * facts.runs_per_step,
            )
        for key, figures in own.items():
            found[key] = max(figures, found.get(key, (0, 0.0)))
    step_s = document.cost.step_s.expected if document.cost.step_s else 0.0
    links = {link.level: link.bytes_per_s for link in document.where.links}
    for (reason, line), (size, seconds) in found.items():
        if reason in _ALWAYS_NEAR or seconds > WAITING_LIMIT * step_s:
            yield Caution(
                kind=CautionKind.BORDER,
                message=f"{reason} crosses the node border: {format_bytes(size)} per step and device over "
                f"{format_bytes(links[Level.SITE])}/s",
                at=line,
            )


def _is_on_path(facts: CollectiveFacts) -> bool:
    return not facts.is_hidden and facts.block not in ("update", "pipeline")


def _bubble(plan: Plan, document: Explanation) -> Iterator[Caution]:
    pipeline = document.pipeline
    if pipeline is None or pipeline.bubble_share <= BUBBLE_LIMIT:
        return
    yield Caution(
        kind=CautionKind.BUBBLE,
        message=f"the pipeline waits {pipeline.bubble_share:.0%} of the time: {pipeline.microbatches} microbatches for "
        f"{pipeline.num_stages} stages; more microbatches or more stages per rank make it smaller",
        at=pipeline.decided_by,
    )


def _uneven_stages(plan: Plan, document: Explanation) -> Iterator[Caution]:
    loads = [
        stage.forward_flops.causal + stage.backward_flops.causal + stage.recompute_flops.causal
        for stage in document.stages
    ]
    mean = sum(loads) / len(loads)
    heaviest = max(range(len(loads)), key=lambda stage: loads[stage])
    if document.pipeline is not None and loads[heaviest] > UNEVEN_LIMIT * mean:
        yield Caution(
            kind=CautionKind.UNEVEN,
            message=f"stage {heaviest} computes {loads[heaviest] / mean:.2f} times as much as the mean stage; "
            "BALANCE BY time or PLACE makes them more equal",
            at=document.pipeline.decided_by,
        )


def _uneven_shares(plan: Plan, document: Explanation) -> Iterator[Caution]:
    work = plan.work
    if work.num_parts % work.replicas:
        yield Caution(
            kind=CautionKind.UNEVEN,
            message=f"{work.num_parts} shares for {work.replicas} replicas: the busiest computes "
            f"{work.parts_per_replica} while others wait",
            at=document.work.decided_by.get("fault_tolerance.shares", "") if document.work else "",
        )


def _repeated_work(plan: Plan, document: Explanation) -> Iterator[Caution]:
    if document.work is None or document.work.repeated_share <= REPEATED_LIMIT:
        return
    idle = [
        axis
        for axis, size in plan.mesh.axes
        if size > 1 and axis not in plan.bound.batch_axes and axis not in plan.bound.attention
    ]
    idle = [axis for axis in idle if axis != plan.pipeline.axis]
    over = f" over {', '.join(idle)}" if idle else ""
    yield Caution(
        kind=CautionKind.REPEATED_WORK,
        message=f"{document.work.repeated_share:.0%} of the FLOPs are computed by several ranks alike{over}, or on padding",
        at=document.mesh.decided_by,
    )


def _padding(plan: Plan, document: Explanation) -> Iterator[Caution]:
    seen = set()
    for parameter in plan.parameters.values():
        axes = parameter.computed.axes_cutting("vocab")
        pieces = 1
        for axis in axes:
            pieces *= plan.mesh.size(axis)
        rows = plan.network.vocab
        if rows % pieces == 0 or axes in seen:
            continue
        seen.add(axes)
        piece = -(-rows // pieces)
        yield Caution(
            kind=CautionKind.PADDING,
            message=f"a vocabulary of {rows} in {pieces} pieces over {', '.join(axes)}: each has {piece}, and "
            f"{piece * pieces - rows} are padding",
            at=at(parameter.lines.get(f"split {axes[0]}")),
        )


def _no_way_back(plan: Plan, document: Explanation) -> Iterator[Caution]:
    if document.on_loss.rule is OnLoss.ROLLBACK and document.checkpoints.every == "off":
        yield Caution(
            kind=CautionKind.ON_LOSS,
            message="a lost rank sends all back to a checkpoint, and none is made: the run would begin again",
            at=document.checkpoints.decided_by,
        )


def _no_effect(plan: Plan, document: Explanation) -> Iterator[Caution]:
    for problem in plan.warnings:
        yield Caution(kind=CautionKind.NO_EFFECT, message=problem.message, at=at(problem.span))


_RULES: tuple[Callable[[Plan, Explanation], Iterator[Caution]], ...] = (
    _memory,
    _border,
    _bubble,
    _uneven_stages,
    _uneven_shares,
    _repeated_work,
    _padding,
    _no_way_back,
    _no_effect,
)
