"""`plan --plot`: what the best strategy for each number of cards takes and costs, clusters side by side."""

from collections.abc import Callable, Sequence
from pathlib import Path

from trimtab.app.output import write_output
from trimtab.app.pages.curves_svg import Curve, Panel, Point, curves_svg
from trimtab.app.plan_answers import Answer
from trimtab.app.plan_search import Strategy
from trimtab.terms import InputError, format_seconds

_TRILLION, _DAY_S = 1e12, 86_400.0


def write_curves(answers: Sequence[Answer], path: Path) -> None:
    """Draw the curves of several searches for one job.

    Args:
        answers: One a cluster.
        path: Of the SVG to write.

    Raises: InputError where nothing fits anywhere.
    """
    if not any(answer.curve for answer in answers):
        raise InputError(
            "--plot: nothing keeps every limit on any number of devices: there is nothing to draw"
        )
    write_output(path, _picture(answers), what="the picture")


def _picture(answers: Sequence[Answer]) -> str:
    first = answers[0]
    question, steps = first.question, first.loaded.job.train.steps
    tokens = question.batch * question.sequence
    panels = [
        _panel(f"a step of {tokens:,} tokens", answers, lambda strategy, step_s: step_s, format_seconds)
    ]
    if all(answer.limits.usd_per_device_hour for answer in answers):

        def per_trillion(strategy: Strategy, step_s: float) -> float:
            usd_per_s = (strategy.candidate.usd_per_step or 0.0) / strategy.candidate.step_s
            return usd_per_s * step_s / tokens * _TRILLION

        panels.append(_panel("dollars a trillion tokens", answers, per_trillion, _usd))
    if steps is not None:
        panels.append(
            _panel(
                f"all {steps:,} steps", answers, lambda _, step_s: step_s * (steps or 1), _days, unit=_DAY_S
            )
        )
    notes = [
        f"{answer.place}: ${answer.price.usd_per_device_hour:.2f} a device and hour, {answer.price.source}"
        for answer in answers
        if answer.price
    ]
    notes.append("Bands hold nine of ten; no restarts, no waiting for cards. Predicted, not measured.")
    return curves_svg(f"{question.network.name}, the best strategy for each number of devices", notes, panels)


def _panel(
    title: str,
    answers: Sequence[Answer],
    figure: Callable[[Strategy, float], float],
    say: Callable[[float], str],
    unit: float = 1.0,
) -> Panel:
    return Panel(
        title=title,
        curves=[
            Curve(
                name=answer.place,
                points=[
                    Point(
                        devices=strategy.candidate.layout.devices,
                        low=figure(strategy, strategy.low_s),
                        expected=figure(strategy, strategy.step_s),
                        high=figure(strategy, strategy.high_s),
                    )
                    for strategy in answer.curve
                ],
            )
            for answer in answers
        ],
        say=say,
        unit=unit,
    )


def _usd(value: float) -> str:
    """Short, for an axis.

    >>> _usd(250_000), _usd(2_000_000), _usd(900)
    ('$250k', '$2M', '$900')
    """
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"${value / unit:g}{name}"
    return f"${value:g}"


def _days(seconds: float) -> str:
    """Short, for an axis.

    >>> _days(86_400 * 20), _days(8_640)
    ('20 d', '0.1 d')
    """
    return f"{seconds / _DAY_S:,.4g} d"
