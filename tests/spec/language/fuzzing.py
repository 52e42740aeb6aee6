"""Texts that nobody would write, and what becomes of them: read, refused with our error, or a bug of ours.

Half of the texts are noise: random characters, and random words of the language. The other half are printed
random programs, most of them damaged: characters and words lost, doubled, exchanged, or nested too deep.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType
from typing import Any

from tests.spec.language.programs import Programs
from trimtab.spec import parse_strategy, print_program, resolve_layout
from trimtab.spec.language import (
    Program,
    compile_predicate,
    print_statement,
    unsupported_by_runtime,
)
from trimtab.spec.language.vocabulary import (
    CLAUSES,
    DIMS,
    KEYWORDS,
    ROUTES,
    STAGE_SCHEDULES,
    TABLE_COLUMNS,
    TABLES,
    TYPES,
    VERBS,
)
from trimtab.terms import InputError

DEVICES = 64
"""The programs are checked on so many devices."""

HANG_S = 10.0
"""A text that takes longer is a hang."""

WORDS = (
    *sorted(KEYWORDS), *VERBS, *CLAUSES, *TABLES, *DIMS, *TYPES, *TABLE_COLUMNS, *map(str, ROUTES),
    *map(str, STAGE_SCHEDULES), "dp", "tp", "pp", "1", "8", "0.5", "25MB", "1e9", "'norm'", "'%w'", "'zero3'", "*", "=", "<", "<>",
    "(", ")", ",", ";", "\n", "--", "'", "-", "+", "%", "/", "$tp", "==", "99999999999999999999", "1f1b",
)  # fmt: skip


@dataclass(kw_only=True)
class Outcome:
    """What became of the texts.

    Args:
        num_noise: Texts of the first half.
        num_noise_accepted: Of them, those that are programs without an error.
        num_damaged: Texts of the second half.
        num_damaged_accepted: Of them, those that are programs without an error.
        worst_s: The longest processor time that one text took.
        worst_text: That text.
        failures: What is not our error: the text and the exception.
    """

    num_noise: int = 0
    num_noise_accepted: int = 0
    num_damaged: int = 0
    num_damaged_accepted: int = 0
    worst_s: float = 0.0
    worst_text: str = ""
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Take in what another process found."""
        for name in ("num_noise", "num_noise_accepted", "num_damaged", "num_damaged_accepted", "failures"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.worst_s > self.worst_s:
            self.worst_s, self.worst_text = other.worst_s, other.worst_text


def compile_text(text: str) -> None:
    """All that is done with a strategy before it meets a model.

    Raises: InputError if the text is no strategy for these devices; AssertionError if it is another one
        after printing.
    """
    program = parse_strategy(text, source="fuzz.trim")
    resolve_layout(program, DEVICES)
    unsupported_by_runtime(program)
    compile_conditions(program)
    assert parse_strategy(print_program(program), source="printed.trim") == program


def compile_conditions(program: Program) -> None:
    """Compile every condition and ask it about a row without values."""
    for statement in program.statements:
        for condition in (getattr(statement, "where", None), getattr(statement, "on", None)):
            if condition is not None:
                compile_predicate(condition)(lambda column: None)


def fuzz(*, seed: int, inputs: int, compile_text: Callable[[str], None] = compile_text) -> Outcome:
    """Compile so many texts; the same seed gives the same texts."""
    random = Random(seed)
    outcome = Outcome()
    texts = zip(_noise(random), _damaged_programs(random), strict=False)
    for _ in range(-(-inputs // 2)):
        noise, damaged = next(texts)
        outcome.num_noise += 1
        outcome.num_noise_accepted += _is_accepted(noise, compile_text, outcome)
        outcome.num_damaged += 1
        outcome.num_damaged_accepted += _is_accepted(damaged, compile_text, outcome)
    return outcome


def _is_accepted(text: str, compile_text: Callable[[str], None], outcome: Outcome) -> bool:
    start = time.process_time()
    is_accepted = False
    try:
        with _limit(HANG_S):
            compile_text(text)
        is_accepted = True
    except InputError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the bug that is looked for
        outcome.failures.append(f"{error!r} for {text!r}")
    elapsed_s = time.process_time() - start
    if elapsed_s > outcome.worst_s:
        outcome.worst_s, outcome.worst_text = elapsed_s, text
    return is_accepted


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises: TimeoutError inside the block when the time is over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before: Any = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# The first half.


def _noise(random: Random) -> Iterator[str]:
    while True:
        length = random.randint(0, 60)
        match random.randrange(3):
            case 0:
                yield random.randbytes(length).decode("utf-8", errors="replace")
            case 1:
                yield " ".join(random.choices(WORDS, k=length // 2))
            case _:
                # A verb first: such texts get further.
                verbs = (f"{random.choice(VERBS)} {' '.join(random.choices(WORDS, k=8))}" for _ in range(3))
                yield "\n".join(verbs)


# The second half.


def _damaged_programs(random: Random) -> Iterator[str]:
    """Each random program whole, and then damaged in some ways."""
    while True:
        programs = Programs(random=random, sensible=random.random() < 0.8)
        statements = list(map(print_statement, programs.program(3).statements))
        if random.random() < 0.1:
            statements.append(print_statement(programs.use()))
        text = "\n".join(statements)
        yield text
        for _ in range(3):
            damaged = text
            for _ in range(random.randint(1, 3)):
                damaged = random.choice(_DAMAGES)(damaged, random)
            yield damaged


def _lose(text: str, random: Random) -> str:
    start = random.randint(0, len(text))
    return text[:start] + text[start + random.randint(1, 10) :]


def _double(text: str, random: Random) -> str:
    start = random.randint(0, len(text))
    end = start + random.randint(1, 30)
    return text[:end] + text[start:end] * random.randint(1, 3) + text[end:]


def _insert_word(text: str, random: Random) -> str:
    at = random.randint(0, len(text))
    return f"{text[:at]} {random.choice(WORDS)} {text[at:]}"


def _insert_character(text: str, random: Random) -> str:
    at = random.randint(0, len(text))
    return text[:at] + chr(random.choice((random.randrange(128), random.randrange(0xD800)))) + text[at:]


def _exchange_words(text: str, random: Random) -> str:
    words = text.split(" ")
    first, second = random.randrange(len(words)), random.randrange(len(words))
    words[first], words[second] = words[second], words[first]
    return " ".join(words)


def _replace_word(text: str, random: Random) -> str:
    words = text.split(" ")
    words[random.randrange(len(words))] = random.choice(WORDS)
    return " ".join(words)


def _exchange_lines(text: str, random: Random) -> str:
    lines = text.split("\n")
    random.shuffle(lines)
    return random.choice(("\n", "; ", " ")).join(lines)


def _change_case(text: str, random: Random) -> str:
    return random.choice((text.lower(), text.upper(), text.swapcase()))


def _nest(text: str, random: Random) -> str:
    at = random.randint(0, len(text))
    opened = random.choice(("(", "NOT ", "NOT (", "1 + ", "- ", "''", "a = 1 AND "))
    return text[:at] + opened * random.choice((2, 60, 400)) + text[at:]


_DAMAGES: tuple[Callable[[str, Random], str], ...] = (
    _lose, _double, _insert_word, _insert_character, _exchange_words, _replace_word, _exchange_lines, _change_case, _nest,
)  # fmt: skip
