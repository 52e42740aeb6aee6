"""The verb ``plan``: the best strategies for a job on some cards, as formulas, and why not others."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from datetime import date
from typing import Any

from trimtab.app.calendar import today
from trimtab.app.cost_curves import write_curves
from trimtab.app.output import print_document, refuse_unwritable, write_output
from trimtab.app.places import Place, place_of
from trimtab.app.plan_answers import Answer, answer_of, price_at
from trimtab.app.plan_questions import EVERY, Asked
from trimtab.app.plan_search import PoolAlone, Strategy
from trimtab.app.plan_text import plan_lines
from trimtab.app.side_by_side import side_by_side, side_by_side_lines
from trimtab.catalog import Price as Offer
from trimtab.cost.estimates import PRICE_KEY
from trimtab.cost.search import Candidate, Largest, Mixture, Objective
from trimtab.plan.pipelines import StageSchedule
from trimtab.terms import ExitCode


def plan_job(path: str, overrides: Sequence[str], asked: Asked) -> int:
    """Search, and say what was found.

    Returns: 3 if nothing keeps the limits.
    Raises: InputError for a question that cannot be asked; JobReadError at the line of what cannot be planned.
    """
    if (asked.beside or asked.plot is not None) and asked.devices is None:
        asked = replace(asked, devices=EVERY)
    for place, what in ((asked.plot, "the picture"), (asked.out, "the formulas")):
        if place is not None:
            refuse_unwritable(place, what=what)
    day = today()
    questions = [
        _here(overrides, asked),
        *(_beside(overrides, asked, place_of(text)) for text in asked.beside),
    ]
    for question in questions:
        price_at(path, *question)  # a wrong name is told before the first search, which takes seconds
    answer, *others = (answer_of(path, *question) for question in questions)
    table = side_by_side([answer, *others], asked.objective) if others else None
    if asked.plot is not None:
        write_curves([answer, *others], asked.plot)
    if asked.out is not None and answer.recommended is not None:
        write_output(asked.out, answer.recommended.formulas + "\n", what="the formulas")
    if asked.is_json:
        print_document(
            {
                **document_of(answer, day=day),
                "beside": [document_of(other, day=day) for other in others],
                "side_by_side": table.document(day=day) if table else None,
            }
        )
    else:
        for found in (answer, *others):
            for line in plan_lines(found, today=day):
                print(line)
        for line in side_by_side_lines(table, day=day) if table else ():
            print(line)
    return ExitCode.DONE if answer.strategies else ExitCode.INFEASIBLE


def _here(overrides: Sequence[str], asked: Asked) -> tuple[Sequence[str], Asked]:
    place = place_of(asked.cluster)
    return (*overrides, *place.overrides), replace(asked, provider=place.provider)


def _beside(overrides: Sequence[str], asked: Asked, place: Place) -> tuple[Sequence[str], Asked]:
    """The question of another place: what the job pays, and what was probed, holds where the job stands."""
    there = place if place.cluster is not None else replace(place, cluster=place_of(asked.cluster).cluster)
    return (
        (*overrides, *there.overrides, f"{PRICE_KEY}=null"),
        replace(asked, other=None, probe=None, provider=place.provider),
    )


def document_of(answer: Answer, *, day: date) -> dict[str, Any]:
    """As JSON can hold it; prices have their age by then."""
    findings = answer.findings
    return {
        "run": answer.loaded.job.run,
        "network": answer.question.network.name,
        "cluster": answer.cluster.name,
        "place": answer.place,
        "devices": list(answer.question.devices),
        "learned_from": answer.stack,
        "usd_per_device_hour": answer.limits.usd_per_device_hour,
        "price_source": answer.price.source if answer.price else "",
        "price_warning": answer.price.warning(day) if answer.price else "",
        "price_offers": [_offer(offer, day) for offer in answer.price.offers] if answer.price else [],
        "headroom": answer.limits.headroom,
        "evaluated": findings.evaluated,
        "verdicts": {verdict.value: count for verdict, count in findings.verdicts.items()},
        "refined": answer.num_refined,
        "is_exact": answer.is_exact,
        "strategies": [_strategy(strategy) for strategy in answer.strategies],
        "curve": [_strategy(strategy) for strategy in answer.curve],
        "front": [_strategy(strategy) for strategy in answer.front],
        "nearest": [_candidate(candidate) for candidate in answer.nearest],
        "why_not": _strategy(answer.other) if answer.other else None,
        "largest": _largest(answer.largest) if answer.largest else None,
        "pools": [_alone(found) for found in answer.alone],
        "recommended": answer.recommended.formulas if answer.recommended else None,
        "mixture": _mixture(answer.mixture, answer.objective) if answer.mixture else None,
    }


def _alone(found: PoolAlone) -> dict[str, Any]:
    return {
        "devices_of": found.pool.name,
        "num_devices": found.pool.num_devices,
        "product_flops_per_s": found.pool.fabric.product_flops_per_s,
        "usd_per_device_hour": found.usd_per_device_hour,
        "strategy": _strategy(found.strategy) if found.strategy else None,
    }


def _mixture(mixture: Mixture, objective: Objective) -> dict[str, Any]:
    return {
        "strong": mixture.strong.name,
        "weak": mixture.weak.name,
        "together_s": mixture.together_s,
        "alone_s": mixture.alone_s,
        "together_usd": mixture.together_usd,
        "alone_usd": mixture.alone_usd,
        "speed_ratio": mixture.speed_ratio,
        "ideal_ratio": mixture.ideal_ratio,
        "efficiency": mixture.efficiency,
        "usd_ratio": mixture.usd_ratio,
        "pays": mixture.pays(objective),
    }


def _offer(offer: Offer, day: date) -> dict[str, Any]:
    return {
        **asdict(offer),
        "kind": offer.kind.value,
        "age_days": offer.age_days(day),
        "is_stale": offer.is_stale(day),
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
        "sums": [
            {
                "route": found.route,
                "bucket": found.bucket or None,
                "exposed_s": found.exposed_s,
                "hidden_s": found.hidden_s,
            }
            for found in strategy.sums
        ],
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
