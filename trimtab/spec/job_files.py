"""A job file read: text in, a checked job out, or every error in it at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from trimtab.spec import resolved
from trimtab.spec.cards import Engine, Job, Parallelism
from trimtab.spec.constants import resolve_constants
from trimtab.spec.contradictions import DEVICES, Contradiction, contradictions
from trimtab.spec.errors import JobFileError, Place, Problem, StrategyError, render_problem
from trimtab.spec.fields import Path
from trimtab.spec.interpolation import Interpolator
from trimtab.spec.language import (
    Layout,
    Program,
    check_names,
    check_program,
    num_replicas,
    parse_located,
    print_program,
    resolve_layout,
)
from trimtab.spec.located_text import LocatedText
from trimtab.spec.sources import SourceReader
from trimtab.spec.validation import key_span_at, nearest_span, validate, value_at
from trimtab.spec.yaml_documents import MappingValue, ScalarValue
from trimtab.terms import Span

AUTO = "auto"
"""In place of formulas: whoever runs the job finds them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedJob:
    """A job that was read and checked.

    Args:
        job: The typed values; every ``auto`` is resolved, so this is what runs.
        program: The formulas of the parallelism card as written.
        layout: What they mean on these devices, defaults filled in.
        origins: Who set each value, by dotted path: ``default``, ``run.yaml:9``, ``--set #1``,
            ``environment NAME``, ``auto (default)``.
        warnings: What may be meant otherwise, each with its place, ready to print.
        is_undecided: Whether the parallelism card says ``auto``: the formulas are still to be found, and ``program`` is
            empty.
    """

    job: Job
    program: Program
    layout: Layout
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    is_undecided: bool = False

    def resolved_yaml(self) -> str:
        """The complete job file with the origin of every value; reading it gives the same digest."""
        return resolved.write_yaml(self.job, self.origins)

    def digest(self) -> str:
        """SHA-256 of the resolved values without secrets, in hexadecimal."""
        return resolved.digest(self.job)


def load_job(
    text: str,
    *,
    source: str,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    read: Callable[[str], str],
) -> LoadedJob:
    """The job that a text states.

    Args:
        text: The job file.
        source: Its name, shown in errors; other files are found relative to it.
        overrides: What stood after each ``--set``: ``train.steps=100``.
        environment: The variables that ``${NAME}`` may name.
        read: Gives the text of a file named by ``extends``, ``parallelism: {file: …}`` or ``model.folder``; raises
            OSError.

    Raises: JobFileError with everything that is wrong.
    """
    reader = SourceReader(read, source=source)
    return _load(reader, reader.read_job(text, overrides), environment)


def load_job_inside(
    tree: MappingValue,
    *,
    document: str,
    source: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    read: Callable[[str], str],
) -> LoadedJob:
    """The job that stands as a mapping inside another text, such as the workload of a scenario.

    Args:
        tree: The mapping.
        document: The whole text.
        source: Its name, shown in errors; other files are found relative to it.
        environment: As for ``load_job``.
        read: As for ``load_job``.

    Raises: JobFileError with everything that is wrong.
    """
    reader = SourceReader(read, source=source)
    return _load(reader, reader.read_bases(tree, document), environment)


def _load(reader: SourceReader, tree: MappingValue, environment: Mapping[str, str]) -> LoadedJob:
    interpolator = Interpolator(environment)
    filled = interpolator.fill(tree)
    assert isinstance(filled, MappingValue)
    if interpolator.problems:
        raise JobFileError(interpolator.problems, reader.documents)
    whole = reader.read_configuration(reader.read_formulas(filled))
    return _Checker(whole, reader.documents).check()


def _with_presets_written_out(job: Job, program: Program) -> Job:
    """The job with the formulas that its presets stand for: a later release may change a preset, not a run."""
    if not program.uses:
        return job
    return job.model_copy(update={"parallelism": Parallelism(text=print_program(program))})


@dataclass(slots=True)
class _Checker:
    """Turns one tree of values into a job, collecting problems on the way."""

    tree: MappingValue
    documents: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)

    def check(self) -> LoadedJob:
        program = self._program()
        written = validate(self.tree)
        if not isinstance(written, Job):
            self.problems = [*written, *self.problems, *check_names(program)]
            raise JobFileError(self.problems, self.documents)
        # How many replicas there will be is still to be found; what does not divide by it is refused then.
        replicas = 1 if self._says_auto() else num_replicas(program, written.orchestration.devices)
        job = _with_presets_written_out(resolve_constants(written, replicas=replicas), program)
        self.problems += [self._problem(contradiction) for contradiction in contradictions(job, replicas)]
        self.problems += check_program(program, job.orchestration.devices, devices_at=self._place(DEVICES))
        if self.problems:
            raise JobFileError(self.problems, self.documents)
        layout = resolve_layout(program, job.orchestration.devices)
        return LoadedJob(
            job=job,
            program=program,
            layout=layout,
            origins=resolved.find_origins(self.tree, job),
            is_undecided=self._says_auto(),
            warnings=tuple(
                render_problem(problem, self.documents)
                for problem in (*layout.warnings, *self._warnings(job))
            ),
        )

    def _program(self) -> Program:
        value = value_at(self.tree, ("parallelism",))
        if not isinstance(value, ScalarValue) or not isinstance(value.value, str) or self._says_auto():
            return Program()
        # A word needs no places of its own: it is one statement, and wrong.
        text = value.located or LocatedText.whole(value.text, source=value.span.source)
        try:
            program = parse_located(text)
        except StrategyError as error:
            self.problems += error.problems
            self.documents = {**error.documents, **self.documents}
            return Program()
        self.documents = {**program.documents, **self.documents}
        return program

    def _says_auto(self) -> bool:
        value = value_at(self.tree, ("parallelism",))
        return isinstance(value, ScalarValue) and value.value == AUTO

    def _problem(self, contradiction: Contradiction) -> Problem:
        first, *others = sorted(contradiction.paths, key=lambda path: self._span(path) is None)
        return Problem(
            span=self._span(first) or nearest_span(self.tree, first),
            message=contradiction.message,
            hint=contradiction.hint,
            others=tuple(place for path in others if (place := self._place(path))),
            path=".".join(first),
        )

    def _place(self, path: Path) -> Place | None:
        span = self._span(path)
        return Place(span=span, note=f"{'.'.join(path)} is set here") if span else None

    def _span(self, path: Path) -> Span | None:
        value = value_at(self.tree, path)
        return value.span if isinstance(value, ScalarValue) else key_span_at(self.tree, path)

    def _warnings(self, job: Job) -> list[Problem]:
        found = []
        for name, value in job.orchestration.environment.assigned.items():
            path = (*resolved.SECRETS_PATH, name)
            if value == resolved.REDACTED:
                message = (
                    f"the value of {name} was not written with the run; set it again or use environment.pass"
                )
                found.append(Problem(span=nearest_span(self.tree, path), message=message))
        every, engine = job.fault_tolerance.checkpoint.every, job.orchestration.engine
        checkpoint = ("fault_tolerance", "checkpoint", "every")
        if every == "off" and engine is Engine.TORCHRUN:
            message = "without checkpoints a rank that torchrun loses starts the run again at step 0"
            found.append(Problem(span=nearest_span(self.tree, checkpoint), message=message))
        if isinstance(every, int) and job.train.steps is not None and every > job.train.steps:
            message = f"checkpoint.every is {every}; the run of {job.train.steps} steps saves only at its end"
            found.append(Problem(span=nearest_span(self.tree, checkpoint), message=message))
        return found
