"""The verb ``explain``: what a job would hold, compute, send and cost, and which line decided each part of it."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.app.calendar import today
from trimtab.app.compiling import cluster_of, compiled
from trimtab.app.deciding import read_decided_job
from trimtab.app.explanation_text import Line, explanation_lines, plain
from trimtab.app.job_reading import network_key, refuse_script, say_warnings
from trimtab.app.losses import rule_on_loss
from trimtab.app.machines import MachineFacts, find_machine
from trimtab.app.output import json_text, write_output
from trimtab.catalog import THIS_MACHINE, Cluster
from trimtab.cost.explanation import Asked, Explanation, document_of, explanation, unplanned
from trimtab.cost.explanation.analysis import Analysis
from trimtab.cost.explanation.document import CheckpointFacts, DetectionFacts, ModelFacts
from trimtab.plan.layout import network_of, plan_layout, trains_as_replicas
from trimtab.plan.physical import Plan
from trimtab.spec import LoadedJob, Program, StrategyError
from trimtab.spec.language import is_replicated, unsupported_beside_class
from trimtab.terms import ExitCode, InputError, nearest_name

if TYPE_CHECKING:
    from trimtab.cost.explanation.tracing import TraceFacts


class Format(StrEnum):
    """In what form ``explain`` answers."""

    TEXT = "text"
    JSON = "json"
    DOT = "dot"
    HTML = "html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """How ``explain`` answers.

    Args:
        format: In what form.
        other: A second job to compare with; None for one job alone.
        out: The file to write; None for standard output.
        analyzed_steps: Real steps to run and to measure; None for none.
        is_traced: Whether the program of the plan is run without numbers, and counted.
    """

    format: Format = Format.TEXT
    other: str | None = None
    out: Path | None = None
    analyzed_steps: int | None = None
    is_traced: bool = False


def answer_of(
    form: str | None,
    *,
    other: str | None,
    out: Path | None,
    is_json: bool,
    analyzed_steps: int | None = None,
    is_traced: bool = False,
) -> Answer:
    """How the command line wants its answer.

    Raises: InputError for a form that there is not, two of them, or one that has no place for a trace.
    """
    if analyzed_steps is not None and other is not None:
        raise InputError(
            "explain --analyze --diff: real steps are of one job; analyze the two one after the other"
        )
    known = [found.value for found in Format]
    if form is not None and form not in known:
        nearest = nearest_name(form, known)
        hint = f" Did you mean {nearest!r}?" if nearest else ""
        raise InputError(f"explain --format {form}: there is {', '.join(known)}.{hint}")
    if is_json and form not in (None, Format.JSON.value):
        raise InputError(f"explain --json --format {form}: keep one of the two")
    chosen = Format.JSON if is_json else Format(form or Format.TEXT.value)
    if is_traced and other is not None:
        raise InputError("explain --trace --diff: one plan is traced at a time; leave one of the two out")
    if is_traced and chosen not in (Format.TEXT, Format.JSON):
        raise InputError(f"explain --trace --format {chosen.value}: a trace is text or json")
    return Answer(format=chosen, other=other, out=out, analyzed_steps=analyzed_steps, is_traced=is_traced)


def print_schema() -> int:
    """Print the JSON schema of an explanation."""
    from trimtab.cost.explanation.schema import explanation_schema

    print(json_text(explanation_schema()), flush=True)
    return ExitCode.DONE


def explain_job(path: str | None, overrides: Sequence[str], answer: Answer) -> int:
    """Say what a job would do, or what a second one would do otherwise.

    Returns: The exit code: 1 if a trace is not what the plan says, else 3 if the job (the second of two) cannot fit.
    Raises: StrategyError and JobReadError for a job that cannot be planned, at its lines.
    """
    if path is None:
        raise InputError("explain what? Name a job file: trimtab explain JOB")
    machine = find_machine()
    loaded = _loaded(path, overrides)
    plan, found = explained(loaded, machine)
    if answer.analyzed_steps is not None:
        found = replace(found, analysis=_analyzed(loaded, path, plan, machine, answer.analyzed_steps))
    trace = None
    if answer.is_traced:
        # Only who asks for a trace pays for torch.
        from trimtab.app.tracing import traced

        trace = traced(loaded, plan)
        _write_traced(found, trace, answer)
    elif answer.other is None:
        _write(found, answer)
    else:
        other = _loaded(answer.other, overrides)
        changed, change = explained(other, machine)
        _write_comparison((loaded.program, plan, found), (other.program, changed, change), answer)
        found = change
    return exit_code(found, trace)


def exit_code(found: Explanation, trace: "TraceFacts | None" = None) -> ExitCode:
    """What scripts learn: a trace that is not the plan's weighs more than a rank that does not fit."""
    if trace is not None and not trace.is_as_planned:
        return ExitCode.RUN_FAILED
    return ExitCode.INFEASIBLE if found.fits is False else ExitCode.DONE


def _analyzed(loaded: LoadedJob, path: str, plan: Plan | None, machine: MachineFacts, steps: int) -> Analysis:
    # Only who asks for real steps pays for it.
    from trimtab.app.analyzing import analyze

    if plan is None:
        raise InputError(f"{path}: explain --analyze runs plans, and there is none for a class of your own")
    return analyze(loaded, path, plan, cluster_of(loaded, machine), steps=steps)


def _loaded(path: str, overrides: Sequence[str]) -> LoadedJob:
    loaded = read_decided_job(path, overrides)
    refuse_script(loaded, verb="explain")
    say_warnings(loaded)
    return loaded


def explained(loaded: LoadedJob, machine: MachineFacts) -> tuple[Plan | None, Explanation]:
    """The plan of a job and everything that ``explain`` tells of it.

    Args:
        loaded: Read and checked.
        machine: Where it stands if it names no cluster.

    Returns: No plan for a class of the user's own.
    """
    if network_of(loaded.job) is None:
        return None, _explained_class(loaded, machine)
    plan = compiled(loaded, machine)
    return plan, explanation(plan, _asked(loaded, plan, machine))


def _explained_class(loaded: LoadedJob, machine: MachineFacts) -> Explanation:
    """What can be said of a class of the user's own: torch is asked only if its tensors are stored in pieces."""
    problems = unsupported_beside_class(loaded.program)
    if problems:
        raise StrategyError(problems, loaded.program.documents)
    found = unplanned(_asked(loaded, None, machine), loaded.layout.mesh)
    if is_replicated(loaded.program):
        return found
    from trimtab.app.module_storage import storage_facts, stored_module

    storage = stored_module(loaded, machine)
    facts = storage_facts(loaded.job, storage)
    model = replace(found.model, parameters=sum(p.numel for p in storage.parameters), layers=facts.layers)
    return replace(found, model=model, storage=facts)


def _write(found: Explanation, answer: Answer) -> None:
    match answer.format:
        case Format.JSON:
            _put(json_text(document_of(found)), answer.out)
        case Format.TEXT:
            _show(explanation_lines(found, width=_width(answer.out)), answer.out)
        case Format.HTML | Format.DOT:
            # Only who asks for a page pays for it.
            from trimtab.app.pages import render_dot, render_html

            render = render_html if answer.format is Format.HTML else render_dot
            _put(render(document_of(found)), answer.out)


def _write_traced(found: Explanation, trace: "TraceFacts", answer: Answer) -> None:
    if answer.format is Format.JSON:
        _put(json_text({**document_of(found), "trace": document_of(trace)}), answer.out)
        return
    from trimtab.app.explanation_text.traces import trace_lines

    width = _width(answer.out)
    lines = (*explanation_lines(found, width=width), (), *trace_lines(trace, width=width))
    _show(lines, answer.out)


_Known = tuple[Program, Plan | None, Explanation]
"""A job as it was explained."""


def _write_comparison(before: _Known, after: _Known, answer: Answer) -> None:
    # Only who asks what a change does pays for it.
    from trimtab.app.explanation_text.comparisons import comparison_lines
    from trimtab.cost.explanation.comparing import Explained, comparison

    first, second = (
        Explained(program=program, plan=plan, explanation=found) for program, plan, found in (before, after)
    )
    found = comparison(first, second)
    match answer.format:
        case Format.JSON:
            _put(json_text(document_of(found)), answer.out)
        case Format.TEXT:
            _show(comparison_lines(found, width=_width(answer.out)), answer.out)
        case Format.HTML:
            from trimtab.app.pages import render_html

            _put(render_html(document_of(found)), answer.out)
        case Format.DOT:
            raise InputError("explain --diff --format dot: a comparison is text, json or html")


def _put(text: str, out: Path | None) -> None:
    if out is None:
        print(text, flush=True)
        return
    write_output(out, text + "\n", what="the explanation")


def _show(lines: Iterable[Line], out: Path | None) -> None:
    """Lines for people: in colours on a terminal, unless NO_COLOR is set."""
    if out is not None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        _put(plain(lines), out)
        return
    # Only a terminal pays for it.
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    for line in lines:
        console.print(Text.assemble(*((piece.text, piece.style.value) for piece in line)))


_FILE_WIDTH = 100
"""Columns of a text that goes into a file or a pipe."""


def _width(out: Path | None) -> int:
    """What COLUMNS says, else the columns of the terminal that is written to."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return int(columns)
    if out is not None or not sys.stdout.isatty():
        return _FILE_WIDTH
    return shutil.get_terminal_size((_FILE_WIDTH, 24)).columns


def _asked(loaded: LoadedJob, plan: Plan | None, machine: MachineFacts) -> Asked:
    job, origins = loaded.job, loaded.origins
    cluster = cluster_of(loaded, machine)
    is_here = cluster.name == THIS_MACHINE
    asked = Asked(
        run=job.run,
        digest=loaded.digest(),
        program=loaded.program,
        model=_model(loaded, plan),
        compute=job.train.compute.value,
        cluster=cluster,
        device_bytes=None if is_here and machine.has_accelerator else _smallest_memory(plan, cluster),
        steps=job.train.steps,
        usd_per_device_hour=job.orchestration.price_usd_per_device_hour,
        today=today(),
        on_loss=rule_on_loss(loaded, plan),
        checkpoints=CheckpointFacts(
            every=job.fault_tolerance.checkpoint.every,
            keep=job.fault_tolerance.checkpoint.keep,
            decided_by=origins["fault_tolerance.checkpoint.every"],
        ),
        detection=_detection(loaded),
        origins=origins,
    )
    if plan is None or not trains_as_replicas(job, loaded.program):
        return asked
    # Only where ranks hold the same: who shares the work stands in another room.
    from trimtab.app.replicas import largest_memory, replicated_facts

    layout = plan_layout(job, plan.network)
    return replace(asked, allocated=largest_memory(job, layout), replicated=replicated_facts(job, layout))


def _detection(loaded: LoadedJob) -> DetectionFacts:
    card = loaded.job.fault_tolerance.detection
    can_compare = trains_as_replicas(loaded.job, loaded.program)
    has_shares = can_compare and loaded.job.fault_tolerance.shares != "off"
    return DetectionFacts(
        deadline_s=card.deadline,
        limits_s=card.limits_s(),
        probe_share=card.probe if has_shares else 0.0,
        compare_every=card.compare if can_compare else 0,
        decided_by=loaded.origins["fault_tolerance.detection.deadline"],
    )


def _model(loaded: LoadedJob, plan: Plan | None) -> ModelFacts:
    decided_by = loaded.origins[network_key(loaded.job)]
    if plan is None:
        return ModelFacts(
            network=str(loaded.job.model.module),
            parameters=None,
            active_parameters=None,
            layers=None,
            decided_by=decided_by,
        )
    network = plan.network
    return ModelFacts(
        network=network.name,
        parameters=network.num_parameters(),
        active_parameters=network.num_active_parameters(),
        layers=network.layers,
        decided_by=decided_by,
    )


def _smallest_memory(plan: Plan | None, cluster: Cluster) -> int | None:
    """Memory of the smallest device that the plan uses."""
    if plan is None:
        return None
    return min(cluster.nodes[device.node].accelerator.memory_bytes for device in plan.bound.devices)
