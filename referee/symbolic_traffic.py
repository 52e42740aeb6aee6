"""What ranks sent against what a plan says they send: every collective, its runs, its bytes, and none left over."""

from collections import defaultdict
from collections.abc import Iterator

from symbolic_plan import Plan
from symbolic_wires import Sent, Wires

_Counts = dict[int, tuple[float, float]]
"""By rank: runs and bytes sent in all of them."""
_ROUNDING = 1e-9


def traffic_differences(plan: Plan, wires: Wires) -> Iterator[str]:
    """Everything that differs, in a sentence each."""
    said, counted = _said(plan), _counted(wires)
    for what in {**said, **counted}:
        told, found = said.get(what, {}), counted.get(what, {})
        for rank in sorted({*told, *found}):
            says, sends = told.get(rank, (0, 0)), found.get(rank, (0, 0))
            if says != sends:
                yield (
                    f"{what.kind} of {', '.join(what.tensors)} over {', '.join(what.axes)} in {what.block} "
                    f"({what.phase}, {what.route}): rank {rank} sends {sends[1]} bytes in {sends[0]} runs, and the "
                    f"plan says {says[1]} bytes in {says[0]} runs"
                )


def _counted(wires: Wires) -> dict[Sent, _Counts]:
    found: dict[Sent, _Counts] = {}
    for what, runs in wires.runs.items():
        sent: dict[int, int] = defaultdict(int)
        for (source, _), size in wires.sent_bytes[what].items():
            sent[source] += size
        found[what] = {rank: (count, sent[rank]) for rank, count in runs.items()}
    return found


def _said(plan: Plan) -> dict[Sent, _Counts]:
    """What happens only every few steps is told as the fraction of a time that it happens in one; we make it happen."""
    every = {operator.inputs: operator.every for operator in plan.update}
    found: dict[Sent, _Counts] = {}
    for traffic in plan.traffic:
        what = Sent(traffic.block, traffic.phase, traffic.kind, traffic.tensors, traffic.axes, traffic.route)
        counts = found.setdefault(what, {})
        times = every.get(traffic.tensors, 1) if traffic.block == "update" else 1
        for rank, size in traffic.sent_bytes.items():
            runs = _whole(traffic.runs.get(plan.place(rank), 0.0) * times)
            if runs:
                before = counts.get(rank, (0, 0))
                counts[rank] = (before[0] + runs, before[1] + runs * size)
    return found


def _whole(runs: float) -> float:
    """The whole number that was told as a fraction of several steps; what is none stays, and differs."""
    return round(runs) if abs(runs - round(runs)) < _ROUNDING else runs
