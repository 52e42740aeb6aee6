"""How long the passes of each stage take on one microbatch: computing, and waiting for collectives."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimtab.catalog import Accelerator, Cluster
from trimtab.cost.block_bytes import compute_type
from trimtab.cost.communication import collective_time
from trimtab.cost.counts import Counts
from trimtab.cost.flops import Flops
from trimtab.plan.explanation import CollectiveUse, RankGroup
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import StageTimes
from trimtab.plan.program import OperatorKind, Phase

MATRIX_SHARE, ATTENTION_SHARE = 0.62, 0.32
"""Part of the rate of the best matrix product that matrices and attention of a whole network reach while it computes.

Source: the two figures that make the median error smallest over 309 published step times, each of five sets of runs
weighing the same: Megatron-LM on A100 (Narayanan et al. 2021, Table 1; BigScience tr11), llm-foundry on A100 of 40 and
of 80 GB, dgxc-benchmarking on H100. They cover norms, activations, launches and everything else that is not a matrix product."""

ACHIEVABLE_SHARE = 0.80
"""Part of the declared peak that the best matrix product reaches where nobody has measured it: H100, 794 of 989."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """One pass of one stage on one microbatch, in seconds.

    Args:
        compute_s: Computing, recompute left out.
        recompute_s: Computing again.
        exposed_s: Waiting for collectives that nothing hides.
        hidden_s: Collectives that run beside the computation.
    """

    compute_s: float = 0.0
    recompute_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0

    @property
    def total_s(self) -> float:
        """What the pass takes its rank."""
        return self.compute_s + self.recompute_s + self.exposed_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """The passes of one stage.

    Args:
        forward: The forward pass.
        backward_input: Recompute, gradients of inputs, and every collective of the backward pass.
        backward_weight: Gradients of parameters.
    """

    forward: PassSeconds
    backward_input: PassSeconds
    backward_weight: PassSeconds

    @property
    def all(self) -> tuple[PassSeconds, PassSeconds, PassSeconds]:
        """In order."""
        return self.forward, self.backward_input, self.backward_weight


def best_flops_per_s(device: Accelerator, dtype: str) -> float | None:
    """The rate of a device's best matrix product; None if it is not known.

    Where only the peak is known, ACHIEVABLE_SHARE of it stands for the measurement.
    """
    if dtype == "fp32":
        peak, best = device.fp32_flops_per_s, None
    else:
        peak, best = device.bf16_flops_per_s, device.achievable_bf16_flops_per_s
    return best or (peak and peak * ACHIEVABLE_SHARE)


def compute_s(flops: Flops, best: float) -> float:
    """Seconds that a network takes for so many FLOPs where the best matrix product runs at a rate."""
    return (flops.causal - flops.attention) / (best * MATRIX_SHARE) + flops.attention / (
        best * ATTENTION_SHARE
    )


def stage_passes(
    plan: Plan, counts: Counts, cluster: Cluster, *, is_overlapped: bool = True
) -> tuple[Passes, ...] | None:
    """The passes of every stage; None if the rate of some device is not known.

    Collectives of activations stand on the path of the computation. Gathers of stored parameters are fetched ahead
    and sums of their gradients are sent behind: they cost what they take longer than the pass computes; all that they
    take where nothing is overlapped.
    """
    found = []
    for stage in range(plan.pipeline.num_stages):
        place = plan.pipeline.rank_of_stage[stage]
        candidates = [
            _passes(plan, counts, cluster, stage, number, is_overlapped=is_overlapped)
            for number, group in enumerate(counts.groups)
            if group.place == place
        ]
        known = [passes for passes in candidates if passes is not None]
        if len(known) < len(candidates):
            return None
        found.append(max(known, key=lambda passes: sum(part.total_s for part in passes.all)))
    return tuple(found)


def pipeline_times(plan: Plan, counts: Counts, cluster: Cluster, passes: Sequence[Passes]) -> StageTimes:
    """What the simulation of a pipeline needs."""
    places = plan.pipeline.rank_of_stage
    hops = _hops(counts, cluster)
    return StageTimes(
        forward_s=tuple(stage.forward.total_s for stage in passes),
        backward_input_s=tuple(stage.backward_input.total_s for stage in passes),
        backward_weight_s=tuple(stage.backward_weight.total_s for stage in passes),
        hop_s=tuple(hops.get(border, 0.0) for border in pairwise(places)),
    )


def _passes(
    plan: Plan, counts: Counts, cluster: Cluster, stage: int, group: int, *, is_overlapped: bool
) -> Passes | None:
    """The passes of a stage on the ranks of one group."""
    rates = _rates(plan, counts.groups[group], cluster)
    sent = _sent(counts.uses[group], cluster)
    forward_s = recompute_s = input_s = weight_s = 0.0
    waits = dict.fromkeys(_PHASES, _Sent())
    for block in plan.blocks:
        count = plan.num_instances(block, stage)
        if not count:
            continue
        rate, flops = rates[compute_type(block)], counts.flops[block.name][stage]
        if rate is None:
            return None
        forward_s += compute_s(flops.forward, rate)
        recompute_s += compute_s(flops.recompute, rate)
        input_s += compute_s(flops.backward_input, rate)
        weight_s += compute_s(flops.backward_weight, rate)
        for phase in _PHASES:
            waits[phase] += sent.get((block.name, phase), _Sent()).times(count)
    ahead = waits[Phase.FORWARD]
    behind = waits[Phase.RECOMPUTE] + waits[Phase.BACKWARD]
    return Passes(
        forward=_pass(forward_s, 0.0, ahead, forward_s if is_overlapped else 0.0),
        backward_input=_pass(
            input_s, recompute_s, behind, recompute_s + input_s + weight_s if is_overlapped else 0.0
        ),
        backward_weight=PassSeconds(compute_s=weight_s),
    )


_PHASES = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD)


@dataclass(frozen=True, slots=True)
class _Sent:
    """Seconds of collectives: on the path of the computation, and beside it."""

    on_path_s: float = 0.0
    beside_s: float = 0.0

    def __add__(self, other: "_Sent") -> "_Sent":
        return _Sent(self.on_path_s + other.on_path_s, self.beside_s + other.beside_s)

    def times(self, count: int) -> "_Sent":
        return _Sent(self.on_path_s * count, self.beside_s * count)


def _pass(compute_s: float, recompute_s: float, sent: _Sent, hiding_s: float) -> PassSeconds:
    too_long_s = max(0.0, sent.beside_s - hiding_s)
    return PassSeconds(
        compute_s=compute_s,
        recompute_s=recompute_s,
        exposed_s=sent.on_path_s + too_long_s,
        hidden_s=sent.beside_s - too_long_s,
    )


def _rates(plan: Plan, group: RankGroup, cluster: Cluster) -> dict[str, float | None]:
    """The rate of the slowest device of a group, by compute type; None where one is not known."""
    nodes = {plan.bound.devices[rank].node for rank in group.ranks}
    devices = {cluster.nodes[node].accelerator.name: cluster.nodes[node].accelerator for node in nodes}
    found: dict[str, float | None] = {}
    for dtype in {compute_type(block) for block in plan.blocks}:
        rates = [best_flops_per_s(device, dtype) for device in devices.values()]
        known = [rate for rate in rates if rate is not None]
        found[dtype] = min(known) if len(known) == len(rates) else None
    return found


def _sent(uses: Iterable[CollectiveUse], cluster: Cluster) -> dict[tuple[str, Phase], _Sent]:
    """Seconds of the collectives of one run of each block, by phase."""
    found: dict[tuple[str, Phase], _Sent] = {}
    for use in uses:
        traffic = use.traffic
        if traffic.phase in _PHASES and traffic.operator.kind is not OperatorKind.SEND:
            seconds = collective_time(use, cluster).seconds
            sent = _Sent(beside_s=seconds) if runs_beside(use) else _Sent(on_path_s=seconds)
            key = (traffic.block, traffic.phase)
            found[key] = found.get(key, _Sent()) + sent
    return found


def runs_beside(use: CollectiveUse) -> bool:
    """Whether a collective of a block moves parameters or their gradients, which nobody waits for at once."""
    return use.traffic.tensors[0].startswith(("stored:", "grad:param:"))


def _hops(counts: Counts, cluster: Cluster) -> dict[tuple[int, int], float]:
    """Seconds from each place of the pipeline to a neighbouring one."""
    places = {rank: group.place for group in counts.groups for rank in group.ranks}
    found: dict[tuple[int, int], float] = {}
    for use in (use for uses in counts.uses for use in uses):
        if use.traffic.operator.kind is OperatorKind.SEND:
            source, target = (places[rank] for rank in use.traffic.groups[0])
            seconds = collective_time(use, cluster).seconds
            found[source, target] = max(seconds, found.get((source, target), 0.0))
    return found
