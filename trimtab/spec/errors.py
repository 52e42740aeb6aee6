"""What is wrong with what the user wrote, all of it at once.

InputError                 (terms)
├── UnknownPresetError     no preset of the strategy language has this name
└── SpecError              carries every problem found, each with its place
    ├── YamlError          the text is not the YAML that we read
    ├── StrategyError      a statement of the strategy language is wrong
    ├── JobFileError       the job file, its base files, its overrides or their combination is wrong
    ├── ScenarioError      a scenario file or its workload is wrong
    └── TuningError        a tuning file is wrong
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.terms import InputError, Span, caret_under


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A second place that a problem speaks of, such as the first of two equal keys.

    Args:
        span: Where it is.
        note: What stands there, as a short sentence.
    """

    span: Span
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong.

    Args:
        span: Where it was found.
        message: What was found and what was required.
        hint: What to do next; empty if the message says it.
        others: Further places that the problem speaks of.
        path: The dotted path of the key in the job file; empty where there is none.
    """

    span: Span
    message: str
    hint: str = ""
    others: tuple[Place, ...] = ()
    path: str = ""


class UnknownPresetError(InputError):
    """No preset of the strategy language has this name."""


class SpecError(InputError):
    """Everything that is wrong with a text.

    Args:
        problems: At least one.
        documents: The whole text of every source that the problems point into, by name.
    """

    def __init__(self, problems: Sequence[Problem], documents: Mapping[str, str]) -> None:
        assert problems, "an error without a problem"
        self.problems = tuple(problems)
        self.documents = dict(documents)
        super().__init__("\n".join(render_problem(problem, documents) for problem in self.problems))


class YamlError(SpecError):
    """The text is not YAML, or YAML that a job file may not use."""


class StrategyError(SpecError):
    """A statement of the strategy language is wrong."""


class JobFileError(SpecError):
    """The job file is wrong, or two of its settings cannot hold together."""


class ScenarioError(SpecError):
    """A scenario file is wrong, its workload is, or what it says of both cannot hold together."""


class TuningError(SpecError):
    """A tuning file is wrong, or two of its settings cannot hold together."""


def render_problem(problem: Problem, documents: Mapping[str, str]) -> str:
    """The problem as the user sees it: place and message, the line with a caret, the hint."""
    parts = [_at(problem.span, problem.message, documents)]
    parts += [_at(place.span, place.note, documents) for place in problem.others]
    if problem.hint:
        parts.append(f"  {problem.hint}")
    return "\n".join(parts)


def _at(span: Span, sentence: str, documents: Mapping[str, str]) -> str:
    heading = f"{span}  {sentence}"
    lines = documents.get(span.source, "").splitlines()
    if span.line > len(lines) or not lines[span.line - 1].strip():
        return heading
    line = lines[span.line - 1]
    shown = line.lstrip()
    indent = len(line) - len(shown)
    return f"{heading}\n{caret_under(replace(span, line=1, column=max(1, span.column - indent)), shown)}"
