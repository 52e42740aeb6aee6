"""An explanation as a graph for Graphviz: rank groups, and what they send over which axes and links."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.app.explanation_text.quantities import elements
from trimtab.app.pages.dot_writing import attributes, cluster, digraph, edge, node
from trimtab.app.pages.facts import Facts
from trimtab.app.pages.quantities import axes, level_bytes, percent, plural, runs
from trimtab.app.pages.rank_groups import group_name, stage_label
from trimtab.app.pages.rank_ranges import members
from trimtab.plan.meshes import groups
from trimtab.spec import Mesh
from trimtab.terms import format_bytes, format_seconds

_SEND = "send"
"""The operation that goes from stage to stage rather than around a process group."""

_EDGE_COLOURS = {"node": "#0072B2", "site": "#D55E00"}
"""By the slowest level that an edge crosses."""


def render_dot(document: Facts) -> str:
    """The graph of an explanation: a cluster for each rank group, an edge for each operation over some axes.

    Args:
        document: As ``document_of`` gives it, or as it is read back from JSON.
    """
    defaults = (
        f"node {attributes(shape='box', style='filled,rounded', fillcolor='#F3F3EE', fontname='Helvetica', fontsize=11)};",
        f"edge {attributes(fontname='Helvetica', fontsize=10)};",
    )
    return digraph(
        (*defaults, *_Graph(document).lines()),
        rankdir="LR",
        labelloc="t",
        fontname="Helvetica",
        fontsize=16,
        nodesep=0.35,
        ranksep=1.4,
        label=_title(document),
    )


def _title(document: Facts) -> str:
    where, cost = document["where"], document["cost"]
    first = (
        f"{document['model']['network']} on {plural(where['num_devices'], 'device')} of {where['cluster']}"
    )
    second = axes(document["mesh"]["axes"])
    if cost["step_s"]:
        second += f", {format_seconds(cost['step_s']['expected'])} a step"
    if document["fits"] is False:
        second += ", does not fit"
    return f"{document['run']}: {first}\n{second}\nblue: inside nodes, orange: between nodes"


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Where process groups over some axes meet.

    Args:
        over: The axes with their sizes.
        groups: Names of the rank groups whose ranks meet there.
    """

    over: str
    groups: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its node."""
        return f"{self.over} of {', '.join(self.groups)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _HandOver:
    """What one rank group hands to another between stages.

    Args:
        source: Name of the group that sends.
        target: Of the group that receives.
        phase: forward or backward.
        sent: Bytes of a step by level.
        decided_by: The line of the pipeline.
    """

    source: str
    target: str
    phase: str
    sent: Mapping[str, int]
    decided_by: str

    @property
    def label(self) -> str:
        """As a line of an edge's label."""
        return f"{_SEND} {self.phase}, {self.source} to {self.target}: {level_bytes(self.sent)}"


class _Graph:
    """The parts of the graph of one explanation."""

    def __init__(self, document: Facts) -> None:
        self._document = document
        self._groups: Sequence[Facts] = document["groups"]
        self._mesh = Mesh(axes=tuple((axis["axis"], axis["size"]) for axis in document["mesh"]["axes"]))
        self._process_groups: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        self._names = [group["name"] for group in self._groups]
        self._group_of = {rank: group["name"] for group in self._groups for rank in members(group["ranks"])}

    def lines(self) -> Iterator[str]:
        """Clusters, what meets between them, and the hand-over between stages."""
        for group in self._groups:
            yield from self._cluster(group)
        shared = {meeting: size for group in self._groups for meeting, size in self._meetings(group).items()}
        for meeting, size in shared.items():
            if len(meeting.groups) > 1:
                yield _meeting_node(meeting, size)
        for group in self._groups:
            yield from self._edges(group)
        yield from self._hand_over()

    def _cluster(self, group: Facts) -> Iterator[str]:
        lines = [node(group["name"], label=self._held(group))]
        lines += [
            _meeting_node(meeting, size)
            for meeting, size in self._meetings(group).items()
            if len(meeting.groups) == 1
        ]
        label = f"{group_name(group)}\n{plural(group['num_ranks'], 'rank')} ({group['ranks']}) on nodes {group['nodes']}"
        yield from cluster(
            group["name"], lines, label=label, labeljust="r", style="rounded", color="#A0A098", fontsize=12
        )

    def _held(self, group: Facts) -> str:
        memory, device_bytes = group["memory"], self._document["where"]["device_bytes"]
        room = f", {percent(memory['peak_bytes'] / device_bytes)} of a device" if device_bytes else ""
        held = sum(stage["parameters"] for stage in group["stages"])
        return "\n".join(
            (
                *(stage_label(stage) for stage in group["stages"]),
                f"{elements(held)} parameters",
                f"{format_bytes(memory['peak_bytes'])} at the peak{room}",
            )
        )

    def _meetings(self, group: Facts) -> dict[_Meeting, int]:
        """Where the ranks of a group meet others, with the size of the process groups there."""
        return {
            self._meeting(group, facts): facts["group_size"]
            for facts in group["collectives"]
            if facts["operation"] != _SEND
        }

    def _meeting(self, group: Facts, facts: Facts) -> _Meeting:
        over = tuple(axis["axis"] for axis in facts["axes"])
        ranks = self._process_group(members(group["ranks"])[0], over)
        names = tuple(dict.fromkeys(self._group_of[rank] for rank in ranks))
        return _Meeting(axes(facts["axes"]), names)

    def _process_group(self, rank: int, over: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks that a rank talks to over some axes, in order, itself among them."""
        if over not in self._process_groups:
            self._process_groups[over] = groups(self._mesh, over)
        return next(found for found in self._process_groups[over] if rank in found)

    def _edges(self, group: Facts) -> Iterator[str]:
        """An edge for each operation over the same axes, its bytes those of all ranks of the group in a step."""
        found: dict[tuple[str, str], list[Facts]] = {}
        for facts in group["collectives"]:
            if facts["operation"] != _SEND:
                found.setdefault((self._meeting(group, facts).name, facts["operation"]), []).append(facts)
        for (meeting, operation), alike in found.items():
            sent = _sum(facts["group_bytes"] for facts in alike)
            places = ", ".join(dict.fromkeys(facts["decided_by"] for facts in alike))
            times = runs(sum(facts["runs_per_step"] for facts in alike))
            label = f"{operation}, {times} a step\n{level_bytes(sent)}\n{places}"
            yield edge(group["name"], meeting, label=label, dir="both", **_style(sent))

    def _hand_over(self) -> Iterator[str]:
        """An edge between rank groups that hold neighbouring stages, with what goes forwards and backwards."""
        found: dict[tuple[str, ...], list[_HandOver]] = {}
        for handed in self._handed_over():
            ends = tuple(sorted((handed.source, handed.target), key=self._names.index))
            found.setdefault(ends, []).append(handed)
        for (first, second), parts in found.items():
            places = dict.fromkeys(part.decided_by for part in parts)
            label = "\n".join((*(part.label for part in parts), *places))
            style = _style(_sum(part.sent for part in parts))
            yield edge(first, second, label=label, dir="both", constraint="false", **style)

    def _handed_over(self) -> Iterator[_HandOver]:
        for group in self._groups:
            for facts in group["collectives"]:
                if facts["operation"] == _SEND:
                    yield from self._sent_on(group, facts)

    def _sent_on(self, group: Facts, facts: Facts) -> Iterator[_HandOver]:
        """What a group hands to each neighbour of its stages."""
        targets = self._targets(group, facts["axes"][0]["axis"], 1 if facts["phase"] == "forward" else -1)
        for target in dict.fromkeys(targets):
            # Every stage hands over the same residual stream.
            part = targets.count(target) / len(targets)
            yield _HandOver(
                source=group["name"],
                target=target,
                phase=facts["phase"],
                sent={level: round(size * part) for level, size in facts["group_bytes"].items()},
                decided_by=facts["decided_by"],
            )

    def _targets(self, group: Facts, axis: str, step: int) -> list[str]:
        """The rank groups that the stages of a group hand on to; a stage on the same rank sends nothing."""
        place_of = {stage["stage"]: stage["place"] for stage in self._document["stages"]}
        rank = members(group["ranks"])[0]
        following = (place_of.get(stage["stage"] + step) for stage in group["stages"])
        return [
            self._group_of[self._process_group(rank, (axis,))[place]]
            for place in following
            if place is not None and place != group["place"]
        ]


def _meeting_node(meeting: _Meeting, size: int) -> str:
    label = f"over {meeting.over}\nprocess groups of {plural(size, 'rank')}"
    return node(meeting.name, label=label, shape="ellipse", fillcolor="#FFFFFF")


def _sum(sent: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    """Bytes by level, added up."""
    found: dict[str, int] = {}
    for by_level in sent:
        for level, size in by_level.items():
            found[level] = found.get(level, 0) + size
    return found


def _style(sent: Mapping[str, int]) -> Mapping[str, str | float]:
    """Colour by the slowest level, width by the decimal places of the bytes."""
    level = "site" if sent.get("site") else "node"
    total = sum(sent.values())
    return {"color": _EDGE_COLOURS[level], "penwidth": round(0.5 + len(str(total)) / 5, 1)}
