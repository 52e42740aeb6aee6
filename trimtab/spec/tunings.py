"""A tuning file: what trials may vary, what they are judged by, and what they may cost."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from trimtab.spec.card_types import Card, Duration, NaturalInt, PositiveFloat, PositiveInt, Takes, Word, Words
from trimtab.spec.errors import Problem, TuningError
from trimtab.spec.validation import nearest_span, validate_as
from trimtab.spec.yaml_documents import MappingValue, read_mapping


class TuningObjective(StrEnum):
    """What a trial is judged by; each has one direction that is better."""

    TOKENS_PER_S = "tokens_per_s"
    """Tokens a second over the steps behind the first ones. More is better."""
    LOSS = "loss"
    """Mean training loss over the last tenth of the steps, nats a token. Less is better."""
    EVAL_LOSS = "eval_loss"
    """Held-out loss at the end, nats a token. Less is better."""
    USD_PER_MILLION_TOKENS = "usd_per_million_tokens"
    """Dollars of all devices at that rate. Less is better; the job must know a price."""
    PEAK_BYTES = "peak_bytes"
    """The most that a rank has held on its device. Less is better."""

    @property
    def is_more_better(self) -> bool:
        """Whether the greater value is the better one."""
        return self is TuningObjective.TOKENS_PER_S


class KnobCard(Card):
    """A key of the job, and what it may be: a list of values, or a range."""

    key: Word
    """The key of the job, with dots: train.microbatch. Required."""
    values: Annotated[
        tuple[bool | int | float | str, ...] | None,
        Field(min_length=1),
        Takes("a list of values, at least one"),
    ] = None
    """What it may be. Numbers are taken in their order, texts have none. Default: none."""
    between: Annotated[
        tuple[int | float, int | float] | None,
        Takes("a list of the lowest and the highest value"),
    ] = None
    """The lowest and the highest value; whole ones mean that only whole numbers are. Default: none."""
    scale: Annotated[Literal["linear", "log"], Takes("linear or log")] = "linear"
    """Of between. log: factors count, and not differences, as for a learning rate. Default: linear."""


class LinesCard(Card):
    """Formulas, one of which is put below the strategy."""

    name: Word
    """What they are called where trials are shown. Required."""
    one_of: Annotated[tuple[str, ...], Field(min_length=1), Takes("a list of formulas, at least one")]
    """The formulas; an empty one stands for none. Required."""


class PlannedStrategies(Card):
    """Strategies that are tried beside the job's own."""

    planned: NaturalInt = 4
    """How many of the planner's best for this job and its devices. Default: 4."""
    files: Words = ()
    """Paths of files with formulas. Default: none."""


class TrialLength(Card):
    """How long a trial is."""

    steps: PositiveInt = 30
    """Steps of each trial: it sets train.steps. Default: 30."""
    skip: NaturalInt = 5
    """The first of them that no speed is taken from. Default: 5."""


class TuningLimits(Card):
    """What all trials together may cost."""

    trials: PositiveInt = 20
    """Trials that end, whatever comes of them. Default: 20."""
    minutes: PositiveFloat | None = None
    """Minutes of trials, added up. Default: any."""
    usd: PositiveFloat | None = None
    """Dollars of trials, added up; the job must know a price. Default: any."""
    devices: PositiveInt | None = None
    """Devices at hand for trials at one time. Default: those of one trial, times workers."""


class Pruning(Card):
    """When a trial that is behind the others is ended; with one objective, if steps tell it."""

    after_steps: PositiveInt = 10
    """Steps before which nothing is judged. Default: 10."""
    after_trials: PositiveInt = 4
    """Finished trials before which nothing is judged. Default: 4."""
    percentile: Annotated[float, Field(gt=0, lt=100), Takes("a number between 0 and 100")] = 50.0
    """Of the finished trials, the best, that one must reach at the same step. Default: 50, their median."""


class Tuning(Card):
    """A tuning file."""

    objectives: Annotated[
        tuple[Annotated[TuningObjective, Field(strict=False)], ...],
        Field(min_length=1),
        Takes(f"a list of {', '.join(TuningObjective)}"),
    ] = (TuningObjective.TOKENS_PER_S,)
    """What trials are judged by. With several, all trials are kept that no other beats in every one. Default:
    tokens_per_s."""
    knobs: Annotated[
        tuple[KnobCard, ...], Takes("a list such as [{key: train.microbatch, values: [1, 2]}]")
    ] = ()
    """Keys of the job that vary. Default: none."""
    strategies: PlannedStrategies | None = None
    """Formulas that are tried beside the job's own. Default: the job's own only."""
    lines: Annotated[tuple[LinesCard, ...], Takes("a list such as [{name: bucket, one_of: [...]}]")] = ()
    """Lists of formulas, of each of which one is put below the strategy. Default: none."""
    trial: TrialLength = TrialLength()
    """How long a trial is. Default: 30 steps."""
    budget: TuningLimits = TuningLimits()
    """What all trials together may cost. Default: 20 trials."""
    prune: Annotated[
        Pruning | Literal["off"] | None, Takes("off, or a mapping such as {after_steps: 10}")
    ] = None
    """When a trial that is behind is ended. Default: with one objective, after 10 steps and 4 trials, behind their
    median; with several, never, for who is behind in one may be ahead in another."""
    confirm: NaturalInt = 3
    """Pairs of runs, the best one and the job as it is by turns, that the gain is taken from. Default: 3."""
    workers: PositiveInt = 1
    """Trials that are made at one time. Default: 1."""
    lease: Duration = 30.0
    """Seconds without a word of its worker after which a trial is made anew. Default: 30 s."""
    seed: NaturalInt = 0
    """Of what is proposed. Default: 0."""


def pruning_of(tuning: Tuning) -> Pruning | None:
    """When a trial that is behind is ended; None for never."""
    if len(tuning.objectives) > 1 or tuning.prune == "off":
        return None
    return tuning.prune if isinstance(tuning.prune, Pruning) else Pruning()


def load_tuning(text: str, *, source: str) -> Tuning:
    """The tuning that a text states.

    Args:
        text: The tuning file.
        source: Its name, shown in errors.

    Raises: SpecError with everything that is wrong.
    """
    tree = read_mapping(text, source=source, first="objectives: [tokens_per_s]")
    tuning = validate_as(Tuning, tree)
    problems = tuning if isinstance(tuning, list) else list(_contradictions(tuning, tree))
    if problems:
        raise TuningError(problems, {source: text})
    assert isinstance(tuning, Tuning)
    return tuning


def _contradictions(tuning: Tuning, tree: MappingValue) -> Iterator[Problem]:
    """What cannot hold in cards that are each right."""
    names = [*(knob.key for knob in tuning.knobs), *(lines.name for lines in tuning.lines)]
    found: list[tuple[tuple[str | int, ...], str, str]] = [
        (("knobs",), f"{name!r} is varied twice", "Put the values into one list.")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for number, knob in enumerate(tuning.knobs):
        if (knob.values is None) == (knob.between is None):
            found.append((("knobs", number), "a knob takes exactly one of values and between", "Keep one."))
        elif knob.between is not None:
            low, high = knob.between
            if low >= high:
                found.append(
                    (
                        ("knobs", number, "between"),
                        f"from {low:g} to {high:g} there is nothing",
                        "Write the smaller one first.",
                    )
                )
            elif knob.scale == "log" and low <= 0:
                found.append(
                    (
                        ("knobs", number, "scale"),
                        f"a log scale has no place for {low:g}",
                        "Begin above 0, or take it out.",
                    )
                )
    if isinstance(tuning.prune, Pruning) and len(tuning.objectives) > 1:
        found.append(
            (
                ("prune",),
                f"{len(tuning.objectives)} objectives leave nobody behind",
                "Take it out, or keep one objective.",
            )
        )
    if tuning.trial.skip + 2 > tuning.trial.steps:
        found.append(
            (
                ("trial",),
                f"{tuning.trial.steps} steps less the first {tuning.trial.skip} leave no speed to take",
                "Let steps exceed skip by 2 at least.",
            )
        )
    if not tuning.knobs and not tuning.lines and tuning.strategies is None:
        found.append(
            (
                (),
                "nothing is varied",
                "Add knobs, strategies or lines: `knobs: [{key: train.microbatch, values: [1, 2]}]`.",
            )
        )
    for path, message, hint in found:
        yield Problem(
            span=nearest_span(tree, path), message=message, hint=hint, path=".".join(map(str, path))
        )
