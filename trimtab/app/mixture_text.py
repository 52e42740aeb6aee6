"""What ``plan`` says of two kinds of devices: each alone, both together, and whether the weaker ones pay."""

from collections.abc import Iterator

from trimtab.app.plan_answers import Answer
from trimtab.app.plan_search import Strategy
from trimtab.app.plan_words import degrees
from trimtab.cost.search import Mixture, Objective
from trimtab.terms import format_seconds


def mixture_lines(answer: Answer) -> Iterator[str]:
    """Line by line."""
    yield ""
    yield "two kinds of devices, all on the links of the cluster"
    if answer.strategies:
        yield _line("together", answer.strategies[0])
    for found in answer.alone:
        strategy = found.strategy
        yield (
            f"  {found.pool.name} alone: nothing keeps every limit"
            if strategy is None
            else _line(f"{found.pool.name} alone", strategy)
        )
    if answer.mixture is not None:
        yield from _verdict(answer.mixture, answer.objective)
    for found in answer.alone:
        strategy = found.strategy
        if strategy is not None and strategy is answer.recommended:
            yield f"  recommended: the {found.pool.name} alone, as a cluster of their own"
            yield from (f"     {line}" for line in strategy.formulas.splitlines())
            yield "   " + " ".join(f"--set {key}={value}" for key, value in strategy.settings.items())


def _line(name: str, strategy: Strategy) -> str:
    usd = "" if strategy.usd_per_step is None else f", ${strategy.usd_per_step:,.4f}"
    return (
        f"  {name}: {strategy.candidate.layout.devices} devices, step {format_seconds(strategy.step_s)}{usd}; "
        f"{degrees(strategy.candidate)}"
    )


def _verdict(mixture: Mixture, objective: Objective) -> Iterator[str]:
    strong, weak = mixture.strong.name, mixture.weak.name
    yield (
        f"  together {mixture.speed_ratio:.2f} times as fast as the {strong} alone, of {mixture.ideal_ratio:.2f} that "
        f"rates of products allow: efficiency {mixture.efficiency:.0%}"
    )
    ratio = mixture.usd_ratio
    dollars = "" if ratio is None else f"a step costs {ratio:.2f} times as much, "
    dollars += "" if ratio is None else f"${mixture.together_usd:,.4f} in place of ${mixture.alone_usd:,.4f}"
    if mixture.speed_ratio <= 1:
        yield f"  the {weak} do not pay: with them a step is no shorter" + (f"; {dollars}" if dollars else "")
    elif ratio is None:
        yield f"  the {weak} pay in time; no price is known"
    elif ratio < 1:
        yield f"  the {weak} pay: {dollars}"
    elif objective is Objective.TIME:
        yield f"  the {weak} pay in time alone: {dollars}; --cheapest leaves them out"
    else:
        yield f"  the {weak} do not pay: {dollars}"
