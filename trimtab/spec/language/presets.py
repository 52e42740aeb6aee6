"""Strategies with names: files of formulas that ``USE`` brings into a program."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable

from trimtab.spec.errors import Place, Problem, StrategyError, UnknownPresetError
from trimtab.spec.language.parser import Reading, parse_header, read_statements
from trimtab.spec.language.syntax import Argument, Program, Statement, UseStatement
from trimtab.spec.language.tokens import cut_into_statements
from trimtab.spec.language.wording import did_you_mean
from trimtab.spec.located_text import LocatedText
from trimtab.terms import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A strategy with a name.

    Args:
        name: What stands after USE.
        summary: What it is, in one sentence.
        parameters: Name and default of each value that USE may set.
        text: The whole file: header, summary, statements.
    """

    name: str
    summary: str
    parameters: Mapping[str, int | float | str]
    text: str


def preset_names() -> tuple[str, ...]:
    """The presets that there are, in order of name."""
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in _folder().iterdir()))


def preset(name: str) -> Preset:
    """The preset of a name.

    Raises: UnknownPresetError if there is none.
    """
    names = preset_names()
    if name not in names:
        raise UnknownPresetError(
            f"unknown preset {name!r}; presets: {', '.join(names)}.{did_you_mean(name, names)}"
        )
    return _load(name)


def read_preset(text: str, *, source: str) -> Preset:
    """The preset that a text states.

    Raises: StrategyError if its first two lines are not a header and a summary.
    """
    header, _, rest = text.partition("\n")
    summary, _, _ = rest.partition("\n")
    located = LocatedText.whole(header, source=source)
    tokens = next(cut_into_statements(located, {}), None)
    start = Span(source=source, line=1, column=1)
    if tokens is None or tokens[0].type != "PRESET":
        message = "the first line of a preset is its header: PRESET 'name'(parameter = default)"
        raise StrategyError([Problem(span=start, message=message)], {source: text})
    parsed = parse_header(tokens)
    if isinstance(parsed, Problem):
        raise StrategyError([parsed], {source: text})
    if not summary.startswith("-- "):
        message = "the second line of a preset is a comment that says what it is"
        raise StrategyError([Problem(span=replace(start, line=2), message=message)], {source: text})
    return Preset(
        name=str(parsed.preset.value),
        summary=summary.removeprefix("-- "),
        parameters={argument.name.text: argument.value.value for argument in parsed.arguments},
        text=text,
    )


def fill_in_presets(reading: Reading, document: Mapping[str, str]) -> tuple[Program, list[Problem]]:
    """The program that a text states, and what is wrong with its USE statements.

    Args:
        reading: What was read of the text.
        document: The text itself, by its name.
    """
    statements: list[Statement] = []
    documents, uses = dict(document), dict[str, Span]()
    problems: list[Problem] = []
    for statement in reading.statements:
        if not isinstance(statement, UseStatement):
            statements.append(statement)
            continue
        found = list(_use_problems(statement))
        problems += found
        if not found:
            chosen = _load(str(statement.preset.value))
            source = _source_name(chosen.name, documents)
            statements += _statements_of(chosen, statement, source)
            documents[source], uses[source] = chosen.text, statement.span
    return Program(statements=tuple(statements), documents=documents, uses=uses), problems


def name_uses(problems: Sequence[Problem], program: Program) -> list[Problem]:
    """The problems, those inside a preset with the USE statement that brought it in."""
    return [_with_use(problem, program) for problem in problems]


def _with_use(problem: Problem, program: Program) -> Problem:
    use = program.uses.get(problem.span.source)
    if use is None:
        return problem
    place = Place(span=use, note="the preset is used here")
    return problem if place in problem.others else replace(problem, others=(*problem.others, place))


def _statements_of(chosen: Preset, use: UseStatement, source: str) -> Iterator[Statement]:
    values = dict(chosen.parameters)
    values |= {argument.name.text: argument.value.value for argument in use.arguments}
    reading = read_statements(_body(chosen, source), values)
    assert not reading.problems, "a preset can be read whatever its parameters"
    for statement in reading.statements:
        assert not isinstance(statement, UseStatement), "a preset contains no USE"
        yield statement


def _body(chosen: Preset, source: str) -> LocatedText:
    """The text below the header; its places are those in the whole text."""
    start = chosen.text.index("\n") + 1
    return LocatedText(
        text=chosen.text[start:],
        source=source,
        document=chosen.text,
        offsets=tuple(range(start, len(chosen.text))),
    )


def _source_name(name: str, documents: Mapping[str, str]) -> str:
    """What errors call the text of a preset: ``preset ddp``, and ``preset ddp (2)`` when it is used again."""
    first, count = f"preset {name}", 2
    source = first
    while source in documents:
        source, count = f"{first} ({count})", count + 1
    return source


def _use_problems(statement: UseStatement) -> Iterator[Problem]:
    name = str(statement.preset.value)
    if name not in preset_names():
        hint = f"presets: {', '.join(preset_names())}.{did_you_mean(name, preset_names())}"
        yield Problem(span=statement.preset.span, message=f"unknown preset {name!r}", hint=hint)
        return
    parameters = _load(name).parameters
    seen: dict[str, Argument] = {}
    for argument in statement.arguments:
        parameter = argument.name.text
        if parameter in seen:
            others = (Place(span=seen[parameter].span, note="it is set here already"),)
            yield Problem(span=argument.span, message=f"{parameter!r} is set twice", others=others)
        elif parameter not in parameters:
            yield _unknown_parameter(name, argument, parameters)
        else:
            yield from _type_problems(argument, parameters[parameter])
        seen.setdefault(parameter, argument)


def _unknown_parameter(name: str, argument: Argument, parameters: Mapping[str, int | float | str]) -> Problem:
    known = ", ".join(f"{parameter} = {default}" for parameter, default in parameters.items())
    hint = f"{name} takes {known}." if known else f"{name} takes no parameters."
    return Problem(
        span=argument.name.span,
        message=f"preset {name!r} has no parameter {argument.name.text!r}",
        hint=hint + did_you_mean(argument.name.text, list(parameters)),
    )


def _type_problems(argument: Argument, default: int | float | str) -> Iterator[Problem]:
    value = argument.value.value
    accepted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, accepted):
        message = f"{argument.name.text} = {value!r}; expected {_KINDS[type(default)]}, such as {default!r}"
        yield Problem(span=argument.value.span, message=message)


_KINDS = {int: "a whole number", float: "a number", str: "a text in quotes"}
_SUFFIX = ".trim"


def _folder() -> Traversable:
    return resources.files("trimtab.spec").joinpath("data", "presets")


@functools.cache
def _load(name: str) -> Preset:
    text = _folder().joinpath(f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    found = read_preset(text, source=f"preset {name}")
    assert found.name == name, "a preset is named as its file"
    return found
