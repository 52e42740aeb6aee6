"""Jobs whose parallelism is ``auto``: the planner finds the formulas, with its reasons, and the job is read with them."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.app.compiling import cluster_of
from trimtab.app.errors import JobReadError
from trimtab.app.job_reading import read_open_job, read_open_text
from trimtab.app.output import say
from trimtab.catalog import THIS_MACHINE, read_probe
from trimtab.spec import LoadedJob, parse_strategy, resolve_layout
from trimtab.terms import format_seconds

if TYPE_CHECKING:
    from trimtab.app.plan_answers import Answer

DECIDED = "auto (planned)"
"""Who set the formulas, and what goes with them."""


def read_decided_job(path: str, overrides: Sequence[str] = ()) -> LoadedJob:
    """The job of a file, its formulas found if it says ``auto``.

    Args:
        path: Of the job file, as the user wrote it.
        overrides: What stood after each ``--set``.

    Raises: As ``job_reading.read_job``; JobReadError at the line that says ``auto`` where nothing can be found.
    """
    return _decided(read_open_job(path, overrides), lambda more: read_open_job(path, (*overrides, *more)))


def read_decided_text(text: str, *, source: str, overrides: Sequence[str] = ()) -> LoadedJob:
    """The same of a text; ``source`` is what errors call it."""
    return _decided(
        read_open_text(text, source=source, overrides=overrides),
        lambda more: read_open_text(text, source=source, overrides=(*overrides, *more)),
    )


def probe_file() -> Path:
    """Where ``trimtab probe`` leaves the newest map of this machine, and where ``auto`` looks for it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "trimtab" / "probe.json"


def planned_strategies(loaded: LoadedJob, *, top: int, origin: str) -> "Answer":
    """The planner's best strategies for a job on its own devices, at least one.

    Args:
        loaded: The job, whatever its formulas say.
        top: How many.
        origin: What asks for them, for errors.

    Raises: JobReadError where nothing is known of the devices' rates, or nothing fits.
    """
    # Only who leaves the formulas open pays for a search.
    from trimtab.app.plan_answers import answer_for
    from trimtab.app.plan_questions import Asked
    from trimtab.app.plan_text import undivided
    from trimtab.cost.search import Limits

    devices = loaded.job.orchestration.devices
    is_here = loaded.job.orchestration.cluster in (None, THIS_MACHINE)
    probe = (
        probe_file() if is_here and not cluster_of(loaded).nodes[0].accelerator.memory_bytes_per_s else None
    )
    if probe is not None and not probe.exists():
        raise JobReadError(
            f"{origin}, and nothing is known of this machine's rates\n"
            f"  measure it once: trimtab probe --devices {devices}"
        )
    if (
        probe is not None
        and read_probe(probe.read_text(encoding="utf-8"), source=str(probe)).num_devices < devices
    ):
        raise JobReadError(
            f"{origin}, and this machine was measured with fewer ranks than {devices}\n"
            f"  measure it with as many: trimtab probe --devices {devices}"
        )
    answer = answer_for(loaded, Asked(devices=str(devices), limits=Limits(), top=top, probe=probe))
    if not answer.findings.evaluated:
        raise JobReadError(f"{origin}, and no layout divides: {undivided(answer.question)}")
    if not answer.strategies:
        nearest = answer.nearest
        lacking = f"; the nearest lacks {nearest[0].shortfall_bytes / 1e9:.1f} GB a device" if nearest else ""
        raise JobReadError(
            f"{origin}, and none of {answer.findings.evaluated:,} layouts of "
            f"{answer.question.network.name} keeps every limit on {devices} devices{lacking}\n"
            "  trimtab plan says what each lacks, and what more devices would do"
        )
    return answer


def _decided(loaded: LoadedJob, read: Callable[[Sequence[str]], LoadedJob]) -> LoadedJob:
    if not loaded.is_undecided:
        return loaded
    if loaded.job.orchestration.devices == 1:
        return _with(read, {"parallelism": "MESH dp 1  -- one device"})
    origin = f"{loaded.origins['parallelism']}  parallelism is auto"
    answer = planned_strategies(loaded, top=1, origin=origin)
    best = answer.strategies[0]
    say(
        f"parallelism: auto: {answer.findings.evaluated:,} layouts, the best takes about {format_seconds(best.step_s)} a "
        f"step ({format_seconds(best.low_s)} to {format_seconds(best.high_s)})"
    )
    return _with(read, {"parallelism": best.formulas, **best.settings})


def _with(read: Callable[[Sequence[str]], LoadedJob], decided: dict[str, int | str]) -> LoadedJob:
    found = read([f"{key}={json.dumps(value)}" for key, value in decided.items()])
    program = parse_strategy(str(decided["parallelism"]), source="auto")
    return replace(
        found,
        program=program,
        layout=resolve_layout(program, found.job.orchestration.devices),
        origins={**found.origins, **dict.fromkeys(decided, DECIDED)},
    )
