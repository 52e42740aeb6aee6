"""Time and dollars of a step before it has run: a first model, each part of it stated.

A stage computes at the rate of ``stage_times.flops_per_s``, waits for collectives as ``communication`` says, and a
pipeline is simulated. The interval is that of published runs around this model, not the confidence of a fit.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from trimtab.catalog import Cluster, FlopConvention, UnknownNameError, price_of
from trimtab.catalog import Price as Offer
from trimtab.cost.block_bytes import compute_type
from trimtab.cost.counts import Counts, counts_of
from trimtab.cost.early_times import update_communication
from trimtab.cost.host_traffic import host_seconds
from trimtab.cost.stage_times import Passes, pipeline_times, stage_passes
from trimtab.plan.explanation import RankGroup
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import StageTimes, Timeline, simulate

FASTEST, SLOWEST = 0.75, 1.25
"""Measured over estimated step time that four of five published runs lie between."""

INTERVAL_SOURCE = (
    "four of five of 309 published step times lie between 0.75 and 1.25 times this model, each of five sets of runs "
    "weighing the same: Megatron-LM on A100 (Narayanan et al. 2021; BigScience tr11), llm-foundry on A100 of 40 and of "
    "80 GB, dgxc-benchmarking on H100; other hardware and software may lie outside"
)
"""Where the interval comes from."""

ASSUMPTIONS = (
    "compute: 62 % of the rate of the best measured matrix product for matrices, 32 % for attention",
    "collectives: 30 us, latency times hops, bytes over 82 % of the slowest link; nothing else on the links",
    "exposed: collectives of activations; gathers of stored parameters and sums of their gradients as far as they take "
    "longer than the pass; sums of the update as far as they outlast what is left of the last backward pass when their "
    "gradients are complete",
    "optimizer: parameters, gradients and states once through the device's memory; what waits in the host's memory goes "
    "there and back at the declared rate of PCI Express, beside nothing else",
)
"""What time rests on."""

PRICE_KEY = "orchestration.price_usd_per_device_hour"
"""Where a user says what a device costs."""

_REMEDY = f"say what you pay by {PRICE_KEY}, or in a table of your own, plan --prices FILE"

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A figure that is not known exactly.

    Args:
        low: Below it lies one published run of ten, measured against this model.
        expected: What the model says.
        high: Above it lies one of ten.
    """

    low: float
    expected: float
    high: float

    def per(self, amount: float) -> "Interval":
        """So much divided by this."""
        return Interval(low=amount / self.high, expected=amount / self.expected, high=amount / self.low)

    def times(self, factor: float) -> "Interval":
        """This, so many times."""
        return Interval(low=self.low * factor, expected=self.expected * factor, high=self.high * factor)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupTime:
    """Where the step of one rank of a group goes, in seconds; all but the last add up to the step.

    Args:
        compute_s: Forward and backward passes.
        recompute_s: Computing again.
        communication_s: Waiting for collectives that nothing hides, and for activations that come from host memory.
        waiting_s: Waiting for other stages and slower ranks.
        optimizer_s: The optimizer, bound by the memory's bandwidth, and its states on their way from and to the host.
        hidden_communication_s: Collectives beside the computation.
    """

    compute_s: float
    recompute_s: float
    communication_s: float
    waiting_s: float
    optimizer_s: float
    hidden_communication_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What a device costs.

    Args:
        usd_per_device_hour: In dollars, the mean of all devices.
        source: Who says so, and when.
        offers: That it was taken from, one a kind of device; none where the user says what it is.
    """

    usd_per_device_hour: float
    source: str
    offers: tuple[Offer, ...] = ()

    def warning(self, today: date) -> str:
        """What is to be said of the age of its offers: date, source, and how to give one's own; empty if nothing is."""
        said = [_said(offer, today) for offer in self.offers if offer.is_stale(today)]
        return f"{'; '.join(said)}; {_REMEDY}" if said else ""


def _said(offer: Offer, today: date) -> str:
    age_days = offer.age_days(today)
    age = "of an unknown date" if age_days is None else f"of {offer.as_of}, {age_days} days old"
    return f"the newest price of {offer.accelerator} is {age} ({offer.provider}; {offer.source})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a step takes.

    Args:
        unknown: Why there is no time; empty if there is.
        step_s: Of one step.
        groups: Where it goes, by rank group; empty if there is no time.
        timeline: Of the pipeline, for one share; None without a pipeline.
        is_timeline_in_seconds: False if its unit is the mean forward pass of a stage, computation alone.
        tokens_per_s: Of all devices together.
        mfu: Model FLOPs over the declared peak, by the convention of attention.
        price: Of a device; None if no price is known.
        usd_per_step: Of all devices.
        usd: Of all steps; None if their number is not known.
    """

    unknown: str = ""
    step_s: Interval | None = None
    groups: tuple[GroupTime, ...] = ()
    timeline: Timeline | None = None
    is_timeline_in_seconds: bool = False
    tokens_per_s: Interval | None = None
    mfu: tuple[tuple[FlopConvention, Interval], ...] = ()
    price: Price | None = None
    usd_per_step: Interval | None = None
    usd: Interval | None = None


def estimate(
    plan: Plan,
    cluster: Cluster,
    *,
    steps: int | None = None,
    usd_per_device_hour: float | None = None,
    counts: Counts | None = None,
    is_overlapped: bool = True,
) -> Estimate:
    """What a step of a plan takes on a cluster.

    Args:
        plan: Compiled for this cluster.
        cluster: Its devices and links.
        steps: Of the whole run, for its dollars.
        usd_per_device_hour: What the user pays; the catalog's newest offer if None.
        counts: Of the plan, if they are there already.
        is_overlapped: Whether the passes of blocks run beside their gathers of parameters and sums of gradients; a plan
            that is run operator by operator waits for each. Sums of the update may start before it either way.
    """
    counts = counts or counts_of(plan)
    price = price_for(plan, usd_per_device_hour)
    passes = stage_passes(plan, counts, cluster, is_overlapped=is_overlapped)
    if passes is None:
        return Estimate(
            unknown=f"the rate of {_devices(plan)} is not known",
            timeline=_relative_timeline(plan, counts),
            price=price,
        )
    hosts = [host_seconds(plan, counts, group, cluster) for group in counts.groups]
    known = [found for found in hosts if found is not None]
    if len(known) < len(hosts):
        return Estimate(
            unknown=f"the rate between {_devices(plan)} and host memory is not known",
            timeline=_relative_timeline(plan, counts),
            price=price,
        )
    timeline = None
    if counts.actions is not None:
        timeline = simulate(counts.actions, times=pipeline_times(plan, counts, cluster, passes))
    busy = [
        _busy(plan, counts, cluster, number, passes, known[number]) for number in range(len(counts.groups))
    ]
    update_s = max(time.optimizer_s + time.update_s for time in busy)
    passes_s = max(time.passes_s for time in busy)
    if timeline is not None:
        passes_s = timeline.makespan_s * plan.work.parts_per_replica + max(time for time, _ in known)
    step = _interval(passes_s + update_s)
    per_step = None
    if price is not None:
        per_step = step.times(price.usd_per_device_hour * plan.mesh.num_devices / _SECONDS_PER_HOUR)
    return Estimate(
        step_s=step,
        groups=tuple(time.of_step(step.expected) for time in busy),
        timeline=timeline,
        is_timeline_in_seconds=True,
        tokens_per_s=step.per(plan.work.tokens),
        mfu=_mfu(plan, cluster, step),
        price=price,
        usd_per_step=per_step,
        usd=per_step.times(steps) if per_step and steps else None,
    )


def price_for(plan: Plan, usd_per_device_hour: float | None) -> Price | None:
    """What the user pays, else the mean of the newest offers for the plan's devices; None if one has none."""
    if usd_per_device_hour is not None:
        return Price(usd_per_device_hour=usd_per_device_hour, source=PRICE_KEY)
    return offered_price(device.kind for device in plan.bound.devices)


def offered_price(
    devices: Iterable[str], *, own: Sequence[Offer] = (), provider: str | None = None
) -> Price | None:
    """The mean of the newest offers for devices by their kinds; None if one kind has none.

    Args:
        devices: Kinds, one a device.
        own: The user's own table, which goes before the catalog.
        provider: The only one whose offers count; None: all.

    Raises: UnknownNameError if a provider is named and has no offer for one of the kinds.
    """
    kinds = Counter(devices)
    try:
        offers = {kind: price_of(kind, own=own, provider=provider) for kind in kinds}
    except UnknownNameError:
        if provider is not None:
            raise
        return None
    total = sum(offer.usd_per_device_hour * kinds[kind] for kind, offer in offers.items())
    source = "; ".join(
        f"{offer.provider}, {offer.accelerator} {offer.kind.value.replace('_', ' ')}, as of "
        f"{offer.as_of or 'an unknown date'}"
        for offer in offers.values()
    )
    return Price(usd_per_device_hour=total / kinds.total(), source=source, offers=tuple(offers.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Busy:
    """What keeps a rank busy in one step, in seconds."""

    compute_s: float
    recompute_s: float
    exposed_s: float
    hidden_s: float
    update_s: float
    optimizer_s: float

    @property
    def passes_s(self) -> float:
        """All forward and backward passes."""
        return self.compute_s + self.recompute_s + self.exposed_s

    def of_step(self, step_s: float) -> GroupTime:
        """The same with what is left of a step as waiting."""
        communication_s = self.exposed_s + self.update_s
        busy_s = self.compute_s + self.recompute_s + communication_s + self.optimizer_s
        return GroupTime(
            compute_s=self.compute_s,
            recompute_s=self.recompute_s,
            communication_s=communication_s,
            waiting_s=step_s - busy_s if step_s - busy_s > _ROUNDING * step_s else 0.0,
            optimizer_s=self.optimizer_s,
            hidden_communication_s=self.hidden_s,
        )


_ROUNDING = 1e-9
"""Part of a step that sums of floats may miss."""


def _busy(
    plan: Plan,
    counts: Counts,
    cluster: Cluster,
    number: int,
    passes: Sequence[Passes],
    host_s: tuple[float, float],
) -> _Busy:
    group = counts.groups[number]
    own = [part for stage in group.stages for part in passes[stage].all]
    runs = plan.work.microbatches
    exposed_s, hidden_s = update_communication(plan, counts, number, cluster, passes)
    return _Busy(
        compute_s=runs * sum(part.compute_s for part in own),
        recompute_s=runs * sum(part.recompute_s for part in own),
        exposed_s=runs * sum(part.exposed_s for part in own) + host_s[0],
        hidden_s=runs * sum(part.hidden_s for part in own) + hidden_s,
        update_s=exposed_s,
        optimizer_s=_optimizer_s(plan, counts, group, cluster) + host_s[1],
    )


def _optimizer_s(plan: Plan, counts: Counts, group: RankGroup, cluster: Cluster) -> float:
    """Seconds in which the optimizer reads parameters, gradients and states and writes parameters and states."""
    device = cluster.nodes[plan.bound.devices[group.ranks[0]].node].accelerator
    if device.memory_bytes_per_s is None:
        return 0.0
    params, grads, states = (table.total_bytes for table in counts.holdings.of(group.stages))
    return (2 * params + grads + 2 * states) / device.memory_bytes_per_s


def _mfu(plan: Plan, cluster: Cluster, step: Interval) -> tuple[tuple[FlopConvention, Interval], ...]:
    """Useful FLOPs of the network, once each, over what all devices could do at their declared peak."""
    peaks = []
    for device in plan.bound.devices:
        accelerator = cluster.nodes[device.node].accelerator
        peak = accelerator.fp32_flops_per_s if _is_fp32(plan) else accelerator.bf16_flops_per_s
        if peak is None:
            return ()
        peaks.append(peak)
    flops = plan.network.flops_by_convention(plan.work.sequence)
    return tuple(
        (convention, step.per(count * plan.work.tokens / sum(peaks))) for convention, count in flops.items()
    )


def _is_fp32(plan: Plan) -> bool:
    return all(compute_type(block) == "fp32" for block in plan.blocks)


def _relative_timeline(plan: Plan, counts: Counts) -> Timeline | None:
    """The pipeline with computation alone; the unit is the mean forward pass of a stage."""
    if counts.actions is None:
        return None
    stages = [counts.flops_of_stage(stage) for stage in range(plan.pipeline.num_stages)]
    unit = sum(stage.forward.causal for stage in stages) / len(stages)
    times = StageTimes(
        forward_s=tuple(stage.forward.causal / unit for stage in stages),
        backward_input_s=tuple((stage.recompute + stage.backward_input).causal / unit for stage in stages),
        backward_weight_s=tuple(stage.backward_weight.causal / unit for stage in stages),
        hop_s=(0.0,) * (len(stages) - 1),
    )
    return simulate(counts.actions, times=times)


def _interval(expected: float) -> Interval:
    return Interval(low=expected * FASTEST, expected=expected, high=expected * SLOWEST)


def _devices(plan: Plan) -> str:
    return ", ".join(dict.fromkeys(device.kind for device in plan.bound.devices))
