"""What is asked of a plan, and what it is answered with: a question about a job on a cluster, constants, a price."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trimtab.app.compiling import training_of
from trimtab.catalog import (
    THIS_MACHINE,
    Cluster,
    Machine,
    Probe,
    read_prices,
    read_probe,
)
from trimtab.catalog import Price as Offer
from trimtab.catalog import cluster as cluster_named
from trimtab.cost.calibration import (
    Belief,
    Calibrated,
    by_source,
    calibrate,
    calibrated_on,
    measured_runs,
    published_fits,
    reported_bytes,
    step_seconds,
)
from trimtab.cost.closed_form import THIS_RUNTIME, Values
from trimtab.cost.estimates import PRICE_KEY, Price, offered_price
from trimtab.cost.search import (
    Growing,
    Limits,
    Objective,
    Pool,
    Question,
    fabric_of,
    fabric_of_probe,
    pools_of,
)
from trimtab.spec import LoadedJob
from trimtab.terms import InputError, nearest_name

EVERY = "every"
"""Powers of two, and all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command line asks for.

    Args:
        cluster: Where, as written: ``512xH100@Lambda``; the job's cluster if None.
        devices: Numbers of devices to look at, as written: ``64,128``; all of the cluster if None.
        limits: Without a price.
        price: In dollars a device and hour; None: the provider's, else the job's, else the newest offer.
        provider: The only one whose offers count; None: all.
        prices: A table of the user's own, which goes before the catalog; None for none.
        top: How many strategies to show.
        other: A layout to explain, as written: ``tp=8, pp=4``; None for none.
        measured: A file of measured runs of this stack; None for none.
        probe: A file with a probe of this machine; None for none.
        out: Where to write the best one's formulas; nowhere if None.
        growing: What is to be as large as fits; None for nothing.
        beside: Other places to compare with, written as the cluster.
        plot: Where to draw the curves; nowhere if None.
    """

    cluster: str | None = None
    devices: str | None = None
    limits: Limits
    objective: Objective = Objective.TIME
    price: float | None = None
    provider: str | None = None
    prices: Path | None = None
    top: int = 5
    other: str | None = None
    measured: Path | None = None
    probe: Path | None = None
    out: Path | None = None
    growing: Growing | None = None
    beside: Sequence[str] = ()
    plot: Path | None = None
    is_json: bool = False


def probe_of(path: Path | None) -> Probe | None:
    if path is None:
        return None
    try:
        return read_probe(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read a probe: {error}") from error


def cluster_of_probe(probe: Probe) -> Cluster:
    return cluster_named(
        THIS_MACHINE,
        machine=Machine(
            num_devices=probe.num_devices,
            cores=probe.num_devices,
            memory_bytes=probe.memory_bytes * probe.num_devices,
            fp32_flops_per_s=min(probe.flops_per_s),
        ),
    )


def question_of(
    loaded: LoadedJob, cluster: Cluster, devices: str | None, probe: Probe | None = None
) -> Question:
    """What is asked of a job on a cluster.

    Raises: InputError for numbers of devices that are none; SpaceError for devices whose rates are not known.
    """
    training = training_of(loaded)
    counts: tuple[int, ...] = (cluster.num_devices,)
    if devices == EVERY:
        sizes = {1 << power for power in range(cluster.num_devices.bit_length())}
        counts = tuple(sorted({*sizes, cluster.num_devices}))
    elif devices is not None:
        try:
            counts = tuple(sorted({int(part) for part in devices.split(",")}))
        except ValueError:
            raise InputError(
                f"--devices {devices}: it takes whole numbers, separated by commas: 64,128,256"
            ) from None
    return Question(
        network=training.network,
        sequence=training.sequence,
        batch=training.batch,
        fabric=fabric_of(cluster, training.compute) if probe is None else fabric_of_probe(probe),
        devices=counts,
        compute=training.compute,
        shares=None if leaves_shares_open(loaded) else training.shares,
        num_states=training.num_states,
        pools=_pools(cluster, training.compute, counts) if probe is None else (),
    )


def _pools(cluster: Cluster, compute: str, counts: Sequence[int]) -> tuple[Pool, ...]:
    """Of the devices that are looked at: two, or none where they are alike."""
    pools = pools_of(cluster, compute)
    if not pools or max(counts) <= pools[1].first:
        return ()
    first, second = pools
    asked = replace(second.fabric, num_devices=max(counts) - second.first)
    return first, replace(second, fabric=asked)


def leaves_shares_open(loaded: LoadedJob) -> bool:
    return loaded.origins["fault_tolerance.shares"].startswith("auto")


def growing_of(text: str | None) -> Growing | None:
    """What ``--fit`` names.

    Raises: InputError for what there is not.
    """
    if text is None:
        return None
    known = [what.value for what in Growing]
    if text not in known:
        nearest = nearest_name(text, known)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise InputError(f"--fit {text}: there is {', '.join(known)}.{hint}")
    return Growing(text)


def constants(measured: Path | None, probe: Probe | None = None) -> tuple[Calibrated, Values, str]:
    """Of time, of memory, and what those of time were learned from.

    Memory is that of this runtime unless measured runs tell it; what is shown is weighed besides.

    Raises: InputError for a file that holds no measured runs.
    """
    fits = published_fits()
    time, memory = fits.time_belief(), fits.memory_belief()
    if probe is not None:
        said = f"a probe of this machine of {probe.taken_at}, {len(probe.runs)} real runs of it among them"
        return calibrated_on(time, probe), THIS_RUNTIME, said
    if measured is None:
        names = f"{len(fits.time)} published stacks"
        return _calibrated(time), THIS_RUNTIME, names
    try:
        with measured.open(encoding="utf-8", newline="") as file:
            runs = measured_runs(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{measured}: cannot read measured runs: {error}") from error
    timed = [run for run in runs if not run.problem]
    weighed = [run for run in runs if run.peak_bytes is not None and run.columns]
    if not timed:
        problems = "; ".join(dict.fromkeys(run.problem for run in runs)) or "no rows"
        raise InputError(
            f"{measured}: no row with a plan and a time was found: {problems}\n  bench/README.md says what is needed"
        )
    sources = ", ".join(by_source(timed))
    return (
        calibrate(step_seconds, timed, np.asarray([run.step_s for run in timed], dtype=np.float64), time),
        calibrate(
            reported_bytes, weighed, np.asarray([run.peak_bytes for run in weighed], dtype=np.float64), memory
        ).values
        if weighed
        else THIS_RUNTIME,
        f"{len(timed)} measured runs of {sources}, and {len(fits.time)} published stacks",
    )


def _calibrated(belief: Belief) -> Calibrated:
    return calibrate(step_seconds, [], np.zeros(0), belief)


def price_of_question(loaded: LoadedJob, cluster: Cluster, asked: Asked) -> Price | None:
    """Of a device and hour: the question's, else its provider's, else the job's, else the newest offers.

    Raises: InputError for a question with two answers, PricesError for a table with mistakes, UnknownNameError for a provider
        without an offer.
    """
    if asked.price is not None:
        if asked.provider is not None:
            raise InputError(
                f"--price {asked.price:g} and a cluster at {asked.provider} are two prices; keep one"
            )
        return Price(usd_per_device_hour=asked.price, source="--price")
    own = _own_prices(asked.prices)
    written = loaded.job.orchestration.price_usd_per_device_hour
    if written is not None and asked.provider is None:
        return Price(usd_per_device_hour=written, source=PRICE_KEY)
    kinds = [node.accelerator.name for node in cluster.nodes for _ in range(node.num_devices)]
    return offered_price(kinds, own=own, provider=asked.provider)


def _own_prices(path: Path | None) -> Sequence[Offer]:
    if path is None:
        return ()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read prices: {error}") from error
    return read_prices(text, source=str(path))
