"""The verb ``plan``: the best strategies for a job on some cards, as formulas, and why not others."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from trimtab.app.cost_curves import write_curves
from trimtab.app.output import print_document, write_output
from trimtab.app.plan_answers import EVERY, Answer, Asked, Strategy, answer_of
from trimtab.app.plan_text import plan_lines
from trimtab.cost.search import Candidate, Largest
from trimtab.plan.pipelines import StageSchedule
from trimtab.terms import ExitCode


def plan_job(path: str, overrides: Sequence[str], asked: Asked) -> int:
    """Search, and say what was found.

    Returns: 3 if nothing keeps the limits.
    Raises: InputError for a question that cannot be asked; JobReadError at the line of what cannot be planned.
    """
    if (asked.beside or asked.plot is not None) and asked.devices is None:
        asked = replace(asked, devices=EVERY)
    answer = answer_of(path, overrides, asked)
    others = [
        answer_of(path, (*overrides, f"orchestration.cluster={name}"), replace(asked, other=None))
        for name in asked.beside
    ]
    if asked.plot is not None:
        write_curves([answer, *others], asked.plot)
    if asked.out is not None and answer.strategies:
        write_output(asked.out, answer.strategies[0].formulas + "\n", what="the formulas")
    if asked.is_json:
        print_document({**document_of(answer), "beside": [document_of(other) for other in others]})
    else:
        for found in (answer, *others):
            for line in plan_lines(found):
                print(line)
    return ExitCode.DONE if answer.strategies else ExitCode.INFEASIBLE


def document_of(answer: Answer) -> dict[str, Any]:
    """As JSON can hold it."""
    findings = answer.findings
    return {
        "run": answer.loaded.job.run,
        "network": answer.question.network.name,
        "cluster": answer.cluster.name,
        "devices": list(answer.question.devices),
        "learned_from": answer.stack,
        "usd_per_device_hour": answer.limits.usd_per_device_hour,
        "price_source": answer.price_source,
        "headroom": answer.limits.headroom,
        "evaluated": findings.evaluated,
        "verdicts": {verdict.value: count for verdict, count in findings.verdicts.items()},
        "strategies": [_strategy(strategy) for strategy in answer.strategies],
        "curve": [_strategy(strategy) for strategy in answer.curve],
        "front": [_strategy(strategy) for strategy in answer.front],
        "nearest": [_candidate(candidate) for candidate in answer.nearest],
        "why_not": _strategy(answer.other) if answer.other else None,
        "largest": _largest(answer.largest) if answer.largest else None,
    }


def _largest(found: Largest) -> dict[str, Any]:
    return {
        "what": found.what.value,
        "value": found.value,
        "parameters": found.question.network.num_parameters(),
        "candidate": _candidate(found.candidate) if found.candidate else None,
        "next_value": found.next_value,
        "next_lacks_bytes": found.next_lacks_bytes,
    }


def _strategy(strategy: Strategy) -> dict[str, Any]:
    comparison = strategy.comparison
    return {
        **_candidate(strategy.candidate),
        "step_s": {"low": strategy.low_s, "expected": strategy.step_s, "high": strategy.high_s},
        "formulas": strategy.formulas,
        "settings": dict(strategy.settings),
        "mfu": {convention.value: share for convention, share in strategy.mfu.items()},
        "refusal": strategy.candidate.refusal,
        "beside_best": {
            "ratio": comparison.ratio,
            "low": comparison.low,
            "high": comparison.high,
            "is_equal": comparison.is_equal,
            "longer": [{"part": name, "seconds": seconds} for name, seconds in comparison.longer],
        },
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    layout = candidate.layout
    return {
        "layout": {field.name: _plain(getattr(layout, field.name)) for field in fields(layout)},
        "closed_form_step_s": candidate.step_s,
        "parts_s": dict(candidate.parts),
        "closed_form_memory_bytes": candidate.closed_form_bytes,
        "memory_bytes": candidate.memory_bytes,
        "is_weighed": candidate.is_weighed,
        "memory_parts": dict(candidate.memory_parts),
        "usd_per_step": candidate.usd_per_step,
        "verdict": candidate.verdict.value,
        "shortfall_bytes": candidate.shortfall_bytes,
    }


def _plain(value: object) -> object:
    return value.value if isinstance(value, StageSchedule) else value
