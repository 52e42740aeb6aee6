"""Text of the strategy language into statements with spans, and every error in it at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from trimtab.spec.errors import Place, Problem
from trimtab.spec.language.lalr import END, UnexpectedTokenError, tables
from trimtab.spec.language.pieces import LONG_FORMS, RefusedStatementError
from trimtab.spec.language.syntax import UseStatement, WrittenStatement
from trimtab.spec.language.tokens import MAX_CHARACTERS, MAX_LINE, Places, Token, cut_into_statements
from trimtab.spec.language.vocabulary import CHANGES, CLAUSES, VERBS
from trimtab.spec.language.wording import MAX_PROBLEMS, did_you_mean, first_problems, listed
from trimtab.spec.located_text import LocatedText


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What could be read of a text.

    Args:
        statements: Those that can be read, in order.
        problems: What is wrong with the others, the first ones if there are many.
    """

    statements: tuple[WrittenStatement, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_statements(
    text: LocatedText, parameters: Mapping[str, int | float | str] = MappingProxyType({})
) -> Reading:
    """The statements of a text, USE among them; ``$name`` stands for the parameter's value."""
    if problem := _problem_of_size(text):
        return Reading(problems=(problem,))
    statements: list[WrittenStatement] = []
    problems: list[Problem] = []
    for tokens in cut_into_statements(text, parameters):
        parsed = parse_statement(tokens)
        if not isinstance(parsed, Problem):
            statements.append(parsed)
            continue
        problems.append(parsed)
        if len(problems) > MAX_PROBLEMS:
            break
    return Reading(statements=tuple(statements), problems=tuple(first_problems(problems)))


def parse_statement(tokens: Sequence[Token]) -> WrittenStatement | Problem:
    """The statement that the tokens make, of which there is at least one."""
    verb = tokens[0]
    if verb.type not in VERBS:
        return _unknown_verb(verb)
    parsed = _parse(tokens, start="statement")
    return parsed if isinstance(parsed, Problem) else cast(WrittenStatement, parsed)


def parse_header(tokens: Sequence[Token]) -> UseStatement | Problem:
    """The first line of a preset, ``PRESET 'name'(parameters)``, as the USE statement of its defaults."""
    parsed = _parse(tokens, start="header")
    return parsed if isinstance(parsed, Problem) else cast(UseStatement, parsed)


def _parse(tokens: Sequence[Token], *, start: str) -> Any:
    try:
        return tables().parse(tokens, start=start)
    except RefusedStatementError as error:
        return error.problem
    except UnexpectedTokenError as error:
        return _Unexpected(tokens=tokens, token=error.token, expected=error.expected).problem()


def _problem_of_size(text: LocatedText) -> Problem | None:
    """What is wrong with a text so long that reading it would take long."""
    if len(text.text) > MAX_CHARACTERS:
        span = Places(text).span(MAX_CHARACTERS, MAX_CHARACTERS + 1)
        message = f"the program has {len(text.text):,} characters; at most {MAX_CHARACTERS:,} can be read"
        return Problem(
            span=span, message=message, hint="A condition such as WHERE layer < 4 replaces many lines."
        )
    start = 0
    for line in text.text.split("\n"):
        if len(line) > MAX_LINE:
            span = Places(text).span(start + MAX_LINE, start + MAX_LINE + 1)
            message = f"the line has {len(line):,} characters; at most {MAX_LINE:,} can be read"
            hint = "Inside parentheses a statement goes on on the next line."
            return Problem(span=span, message=message, hint=hint)
        start += len(line) + 1
    return None


def _unknown_verb(verb: Token) -> Problem:
    if verb.type == "PRESET":
        message = "PRESET heads the text of a preset; a program brings one in with USE"
        return Problem(span=verb.span, message=message)
    hint = f"Statements: {', '.join(VERBS)}.{did_you_mean(verb.text.upper(), VERBS, quote='')}"
    return Problem(span=verb.span, message=f"unknown statement {verb.text!r}", hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unexpected:
    """A statement that stops making sense at a token, or at its end.

    Args:
        tokens: The whole statement.
        token: The first that cannot stand where it stands.
        expected: Types of the tokens that could stand there.
    """

    tokens: Sequence[Token]
    token: Token
    expected: frozenset[str]

    def problem(self) -> Problem:
        token = self.token
        match token.type:
            case _ if token.type == END:
                return self._at_end()
            case "UNCLOSED":
                return Problem(span=token.span, message="the quote that begins here is never closed")
            case "TOO_LARGE":
                hint = "Write large numbers as 1e20."
                return Problem(
                    span=token.span, message=f"the number {token.text[:20]} is too large", hint=hint
                )
            case "PARAMETER":
                hint = "Parameters stand in the texts of presets."
                return Problem(span=token.span, message=f"there is no parameter {token.text!r}", hint=hint)
            case clause if clause in CLAUSES and self._verb in CHANGES and not self._may_have(clause):
                return self._foreign_clause(token)
        return Problem(
            span=token.span,
            message=f"found {token.text!r}; expected {self._phrase()}",
            hint=self._hint(token),
        )

    def _at_end(self) -> Problem:
        last = self.tokens[-1]
        span = last.places.span(last.end - 1, last.end)
        opened = self._open_parenthesis()
        others = (Place(span=opened.span, note="this parenthesis is never closed"),) if opened else ()
        return Problem(
            span=span, message=f"the statement ends here; expected {self._phrase()}", others=others
        )

    def _foreign_clause(self, token: Token) -> Problem:
        verb = self._verb
        clauses = [LONG_FORMS.get(word, word) for word in CHANGES[verb].clauses]
        owners = [owner for owner, change in CHANGES.items() if token.type in change.clauses]
        return Problem(
            span=token.span,
            message=f"{verb} takes no {token.type}",
            hint=f"{verb} takes {listed(clauses)}; {token.type} belongs to {listed(owners)}.",
        )

    @property
    def _verb(self) -> str:
        return self.tokens[0].type

    def _may_have(self, clause: str) -> bool:
        # BETWEEN, IN and others are parts of conditions, too: then they are misplaced, not foreign.
        return clause in CHANGES[self._verb].clauses or clause in ("BETWEEN", "IN")

    def _phrase(self) -> str:
        return listed(sorted(_phrases(self.expected)), last=" or ")

    def _hint(self, token: Token) -> str:
        if token.type == "EQUALITY":
            return "Equality is one sign: =."
        if token.type == "NULL":
            return "NULL is equal to nothing; ask for it by IS NULL or IS NOT NULL."
        if token.type == "OTHER" and token.text[0].isalnum():
            return "Names are made of the letters a to z, digits and _."
        words = [kind for kind in self.expected if kind in _WORDS]
        return did_you_mean(token.text.upper(), words, quote="").strip()

    def _open_parenthesis(self) -> Token | None:
        opened: list[Token] = []
        for token in self.tokens:
            if token.type == "LPAR":
                opened.append(token)
            elif token.type == "RPAR":
                opened.pop()
        return opened[-1] if opened else None


def _phrases(expected: frozenset[str]) -> Iterator[str]:
    """Terminals as people call them; that one can go on calculating goes without saying."""
    arithmetic = {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT"}
    if "STAR" in expected and "SLASH" not in expected:
        yield "'*'"
    if "COMPARATOR" in expected:
        expected = expected - {"EQUAL"}
    if "SIZE" in expected and "STRING" not in expected:
        expected = expected - {"NUMBER"}  # only a preset's parameter can be a number there
    yield from {_PHRASES.get(kind, kind) for kind in expected - arithmetic}


_PHRASES = {
    "NAME": "a name",
    "DIGIT_NAME": "a name",
    "NUMBER": "a number",
    "SIZE": "a size such as 25MB",
    "STRING": "a text in quotes",
    "EQUAL": "'='",
    "COMPARATOR": "a comparison",
    "COMMA": "','",
    "LPAR": "'('",
    "RPAR": "')'",
    "BALANCE": "BALANCE BY",
    "IF": "IF ANY",
    "$END": "the end of the statement",
}
_WORDS = {*VERBS, *CLAUSES, "WITHIN", "STEPS", "BY", "ANY", "AND", "OR", "NOT", "LIKE", "IS", "NULL"}
