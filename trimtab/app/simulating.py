"""`trimtab simulate`: what becomes of a job in weeks of failures?"""

import json
import math
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.app.compiling import cluster_of, compiled, training_of
from trimtab.app.deciding import read_decided_job
from trimtab.app.errors import JobReadError
from trimtab.app.job_reading import refuse_script, say_warnings
from trimtab.app.losses import rule_on_loss
from trimtab.app.output import print_document, say
from trimtab.catalog import Cluster
from trimtab.catalog.failures import FailureMixture, failure_mixture, failure_mixture_names, mixture_of
from trimtab.cost.estimates import estimate
from trimtab.plan.explanation import replica_axes
from trimtab.plan.physical import Plan
from trimtab.policy.cadence import expected_save_s, prior_mttf_s
from trimtab.policy.recovery import IN_THE_STEP
from trimtab.sim.cadences import Adaptive, Cadence, Every
from trimtab.sim.goodput import Outcome, SimulatedRun
from trimtab.sim.trials import Difference, Policy, paired_difference, spread, try_policies
from trimtab.spec import LoadedJob
from trimtab.terms import ExitCode, InputError, LedgerClass, OnLoss, format_seconds

FIXED_S = (120.0, 300.0, 600.0, 900.0, 1_800.0, 3_600.0, 7_200.0)
"""Intervals that the adaptive cadence is compared with; the best is chosen in hindsight."""
DEFAULT_S = 1_800.0
"""What others save at if nobody says otherwise: every half an hour."""

MOST_DAYS = 3_650
"""Longer than any training."""
SNAPSHOT_EVERY_S = 60.0
"""Between two snapshots in buddies' memory: at most so much is lost."""

RESTART, BUDDIES = "all started again, same cadence", "from buddies' memory"
"""Names of what the job's rule is compared with."""

_DAY_S, _HOUR_NS = 86_400.0, 3_600 * 10**9
_SPARES = 0.02
"""Spare nodes, as a part of the others: ByteRobust (arXiv 2509.16293) has 4 for 1,024, BLOOM had 4 for 48."""
_BYTES_PER_ELEMENT = 4
"""Of the master copy of a parameter and of each optimizer state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command line asks for.

    Args:
        failures: A mixture of the catalog, or a TOML file with one.
        days: To train.
        num_seeds: Sets of faults.
        step_s: Seconds of a step; the estimate's if None.
        num_spares: Spare nodes; a fiftieth of the others if None.
        events: Where to write what happened under the first seed; nowhere if None.
    """

    failures: str
    days: float
    num_seeds: int
    step_s: float | None = None
    num_spares: int | None = None
    events: Path | None = None
    is_json: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """Policies, and what became of them.

    Args:
        ours: The name of the policy that the job asks for.
        found: Outcomes by policy, in order of the seeds.
        mixture: What failed.
        run: As the job asks.
        usd_per_node_hour: None if no price is known.
    """

    ours: str
    found: Mapping[str, Sequence[Outcome]]
    mixture: FailureMixture
    run: SimulatedRun
    usd_per_node_hour: float | None


def simulate_job(path: str, overrides: Sequence[str], asked: Asked) -> int:
    """Say what is left of so many days when things fail, under the job's policies and under others.

    Raises: InputError for what cannot be simulated; JobReadError and StrategyError for a job that cannot be planned.
    """
    loaded = read_decided_job(path, overrides)
    refuse_script(loaded, verb="simulate")
    say_warnings(loaded)
    done = simulated(loaded, asked)
    if asked.events is not None:
        _write_events(done.found[done.ours][0], asked.events)
    if asked.is_json:
        print_document(document_of(done, asked))
    else:
        for line in lines_of(done, asked):
            print(line)
        sys.stdout.flush()
    return ExitCode.DONE


def simulated(loaded: LoadedJob, asked: Asked) -> Simulated:
    """Simulate the job's policy, restarts instead of survival, and fixed intervals instead of its cadence."""
    _refuse_impossible(asked)
    plan, cluster = compiled(loaded), cluster_of(loaded)
    mixture = _mixture(asked.failures)
    run, usd = _run_of(loaded, plan, cluster, asked)
    policies = _policies(loaded, run)
    total = len(policies) * asked.num_seeds
    trials = iter(range(1, total + 1))

    def tell() -> None:
        done = next(trials)
        if sys.stderr.isatty() and done % 10 == 0:
            say(f"{done} of {total} runs")

    found = try_policies(
        policies, mixture, horizon_s=asked.days * _DAY_S, seeds=range(asked.num_seeds), on_trial=tell
    )
    return Simulated(ours=next(iter(policies)), found=found, mixture=mixture, run=run, usd_per_node_hour=usd)


def _refuse_impossible(asked: Asked) -> None:
    """Raises: InputError for the first option that cannot be."""
    for option, value, is_right, required in (
        ("--days", asked.days, 0 < asked.days <= MOST_DAYS, f"more than 0, up to {MOST_DAYS}"),
        ("--seeds", asked.num_seeds, asked.num_seeds >= 1, "1 or more"),
        ("--spares", asked.num_spares, asked.num_spares is None or asked.num_spares >= 0, "0 or more"),
        ("--step-seconds", asked.step_s, asked.step_s is None or 1e-6 <= asked.step_s <= 1e6, "1e-6 to 1e6"),
    ):
        if not is_right:
            raise InputError(f"simulate {option} {value:g}: it takes {required}")


def _mixture(failures: str) -> FailureMixture:
    """Of the catalog, else of a file.

    Raises: InputError for a file that cannot be read or is no mixture, and for a name that there is not.
    """
    if failures in failure_mixture_names() or not failures.endswith(".toml"):
        return failure_mixture(failures)
    try:
        return mixture_of(Path(failures).stem, tomllib.loads(Path(failures).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise JobReadError(f"{failures}: cannot be read as a mixture of faults: {error}") from error


def _run_of(
    loaded: LoadedJob, plan: Plan, cluster: Cluster, asked: Asked
) -> tuple[SimulatedRun, float | None]:
    """What is simulated, and the dollars of a node in an hour."""
    found = estimate(plan, cluster, usd_per_device_hour=loaded.job.orchestration.price_usd_per_device_hour)
    step_s = asked.step_s
    if step_s is None and found.step_s is not None:
        step_s = found.step_s.expected
    if step_s is None:
        raise InputError(
            f"how long does a step take? {found.unknown}: say so, as by --step-seconds 5, or name a cluster in "
            "orchestration.cluster"
        )
    num_nodes = 1 + max(device.node for device in plan.bound.devices)
    devices_per_node = math.ceil(plan.mesh.num_devices / num_nodes)
    replicas = math.prod(dict(plan.mesh.axes)[axis] for axis in replica_axes(plan))
    # What waits in the memory of each rank is written by all of them at once.
    elements = (
        plan.network.num_parameters()
        * (1 + training_of(loaded).num_states)
        / (plan.mesh.num_devices / replicas)
    )
    stall_s, drain_s = expected_save_s(round(elements * _BYTES_PER_ELEMENT))
    run = SimulatedRun(
        step_s=step_s,
        num_nodes=num_nodes,
        num_spares=max(1, round(_SPARES * num_nodes)) if asked.num_spares is None else asked.num_spares,
        unit_nodes=max(1, num_nodes // replicas),
        num_shares=plan.work.num_parts if plan.work.has_fixed_order else 0,
        rule=rule_on_loss(loaded, plan).rule,
        stall_s=stall_s,
        drain_s=drain_s,
    )
    usd = found.price.usd_per_device_hour * devices_per_node if found.price else None
    return run, usd


def _policies(loaded: LoadedJob, run: SimulatedRun) -> dict[str, Policy]:
    """The job's own first; then its cadence with restarts, and its rule with fixed intervals."""
    every = loaded.job.fault_tolerance.checkpoint.every

    def cadence_of(run: SimulatedRun) -> Cadence:
        if every != "adaptive":
            return Every(seconds=math.inf if every == "off" else every * run.step_s)
        survives = run.rule in IN_THE_STEP
        return Adaptive(prior_mttf_s=prior_mttf_s(run.num_nodes, survives_in_the_step=survives))

    own = cadence_of(run)
    policies = {f"{run.rule}, saves {_cadence_name(own)}": Policy(run=run, cadence=own)}
    if run.rule in IN_THE_STEP:
        restart = replace(run, rule=OnLoss.ROLLBACK, unit_nodes=run.num_nodes)
        policies[RESTART] = Policy(run=restart, cadence=cadence_of(restart))
    else:
        # Nobody holds the state again: what a copy in a buddy's memory would be worth.
        every_s = max(SNAPSHOT_EVERY_S, 2 * run.stall_s)
        kept = replace(run, snapshot_every_s=every_s, snapshot_stall_s=run.stall_s)
        policies[f"{BUDDIES}, {_every(every_s)}"] = Policy(run=kept, cadence=own)
    for seconds in FIXED_S:
        cadence = Every(seconds=seconds)
        policies[f"{run.rule}, saves {_cadence_name(cadence)}"] = Policy(run=run, cadence=cadence)
    return policies


def _cadence_name(cadence: Cadence) -> str:
    if isinstance(cadence, Adaptive):
        return "adaptively"
    assert isinstance(cadence, Every)
    return "never" if math.isinf(cadence.seconds) else _every(cadence.seconds)


def _every(seconds: float) -> str:
    """As 2 min, 1 h; without the seconds of a round number of minutes.

    >>> _every(120.0), _every(7200.0), _every(90.0)
    ('every 2 min', 'every 2 h', 'every 1 min 30 s')
    """
    text = format_seconds(seconds)
    return f"every {text.removesuffix(' 0 s').removesuffix(' 0 min')}"


def lines_of(done: Simulated, asked: Asked) -> Iterator[str]:
    """The answer for people."""
    run, mixture = done.run, done.mixture
    yield (
        f"{run.num_nodes} nodes and {run.num_spares} spare ones, {asked.days:g} days, {asked.num_seeds} sets of faults "
        f"({mixture.name}: {mixture.per_1000_node_days:g} of 1,000 nodes a day; {mixture.covers})"
    )
    yield f"a step {format_seconds(run.step_s)}; a save stalls {format_seconds(run.stall_s)}, is durable after {format_seconds(run.drain_s)}"
    yield ""
    yield f"{'policy':40} {'goodput':>8} {'of ten, nine':>17} {'lost':>9} {'saves':>7}{'   lost dollars' if done.usd_per_node_hour else ''}"
    for name, outcomes in done.found.items():
        goodputs = spread([outcome.goodput for outcome in outcomes])
        row = (
            f"{name:40} {goodputs.median:8.2%} {goodputs.low:8.2%} {goodputs.high:8.2%} "
            f"{format_seconds(_median([outcome.lost_ns / 1e9 for outcome in outcomes])):>9} "
            f"{_median([outcome.num_saves for outcome in outcomes]):7.0f}"
        )
        usd = _usd_not_standing(done, outcomes)
        yield row + (f" {usd:14,.0f}" if usd is not None else "")
    yield ""
    for text, found in _differences(done).items():
        yield f"{text}: {100 * found.mean:+.2f} points of goodput ({100 * found.low:+.2f} to {100 * found.high:+.2f})"
    yield ""
    yield f"where the time of {done.ours} goes"
    for name, part in _parts(done).items():
        yield f"  {name:20} {part:8.3%}"


def document_of(done: Simulated, asked: Asked) -> dict[str, Any]:
    """The answer as JSON."""
    return {
        "days": asked.days,
        "seeds": asked.num_seeds,
        "failures": asdict(done.mixture),
        "run": {**asdict(done.run), "usd_per_node_hour": done.usd_per_node_hour},
        "policies": [
            {
                "name": name,
                "is_ours": name == done.ours,
                "goodput": asdict(spread([outcome.goodput for outcome in outcomes])),
                "lost_s": asdict(spread([outcome.lost_ns / 1e9 for outcome in outcomes])),
                "saves": _median([outcome.num_saves for outcome in outcomes]),
                "usd_not_standing": _usd_not_standing(done, outcomes),
                "ways": {
                    way.value: sum(outcome.ways[way] for outcome in outcomes) for way in outcomes[0].ways
                },
            }
            for name, outcomes in done.found.items()
        ],
        "differences": {text: asdict(found) for text, found in _differences(done).items()},
        "classes": _parts(done),
    }


def _differences(done: Simulated) -> dict[str, Difference]:
    """Of the job's policy against each that somebody would ask for; paired over the seeds."""
    goodputs = {name: [outcome.goodput for outcome in outcomes] for name, outcomes in done.found.items()}
    ours = goodputs[done.ours]
    other = next(name for name in goodputs if name.startswith((RESTART, BUDDIES)))
    fixed = {
        name: goodputs[name] for name in (f"{done.run.rule}, saves {_every(seconds)}" for seconds in FIXED_S)
    }
    best = max(fixed, key=lambda name: sum(fixed[name]))
    default = f"{done.run.rule}, saves {_every(DEFAULT_S)}"
    return {
        f"against {other}": paired_difference(ours, goodputs[other]),
        f"against {best}, the best fixed interval in hindsight": paired_difference(ours, fixed[best]),
        f"against {default}, the usual interval": paired_difference(ours, fixed[default]),
    }


def _parts(done: Simulated) -> dict[str, float]:
    """Of the job's policy: part of the time of each class of the ledger, and of the work that was done again."""
    outcomes = done.found[done.ours]
    elapsed_ns = sum(outcome.elapsed_ns for outcome in outcomes)
    parts = {
        found.value: sum(outcome.classes.get(found, 0) for outcome in outcomes) / elapsed_ns
        for found in LedgerClass
    }
    lost = {"of it lost_work": sum(outcome.lost_ns for outcome in outcomes) / elapsed_ns}
    return {name: part for name, part in parts.items() if part} | lost


def _usd_not_standing(done: Simulated, outcomes: Sequence[Outcome]) -> float | None:
    """Dollars of the time, in the median run, that left no standing work."""
    if done.usd_per_node_hour is None:
        return None
    usd_per_ns = done.usd_per_node_hour * (done.run.num_nodes + done.run.num_spares) / _HOUR_NS
    return _median([(outcome.elapsed_ns - outcome.work_ns) * usd_per_ns for outcome in outcomes])


def _median(values: Sequence[float]) -> float:
    return spread(values).median


def _write_events(outcome: Outcome, path: Path) -> None:
    """One JSON object a line."""
    text = "".join(json.dumps(asdict(event)) + "\n" for event in outcome.events)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise JobReadError(f"{path}: cannot write the events: {error.strerror}") from error
