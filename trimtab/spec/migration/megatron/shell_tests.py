"""Conditions of a shell script: true, false, or not to be told from the text."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence

from trimtab.spec.migration.megatron.shell_arithmetic import evaluate
from trimtab.spec.migration.megatron.shell_tokens import Mark, PieceKind, Token, Word
from trimtab.spec.migration.megatron.shell_values import Variables


def holds(tokens: Sequence[Token], variables: Variables) -> bool | None:
    """Whether a condition holds; None where an argument, a file or a command decides."""
    alternatives = _split(tokens, ("||", "-o"))
    return _any(_all(_single(part, variables) for part in _split(one, ("&&", "-a"))) for one in alternatives)


def _split(tokens: Sequence[Token], signs: Sequence[str]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in tokens:
        text = token.text if isinstance(token, Mark) else token.plain if isinstance(token, Word) else None
        if text in signs:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


_BRACKETS = frozenset({"[", "[[", "]", "]]", "test"})


def _single(tokens: Sequence[Token], variables: Variables) -> bool | None:
    words = [token for token in tokens if isinstance(token, Word)]
    is_negated = bool(words) and words[0].plain == "!"
    verdict = _verdict(words[1:] if is_negated else words, variables)
    return verdict if verdict is None else verdict != is_negated


def _verdict(words: Sequence[Word], variables: Variables) -> bool | None:
    if len(words) == 1 and words[0].pieces[0].kind is PieceKind.ARITHMETIC:
        result = evaluate(words[0].pieces[0].text, variables.values)
        return None if result is None else result != 0
    inside = [word for word in words if word.plain not in _BRACKETS]
    if len(inside) == len(words) == 1:
        return {"true": True, "false": False}.get(variables.known(words[0]) or "")
    if inside and inside[0].plain == "!":
        verdict = _compare(inside[1:], variables)
        return None if verdict is None else not verdict
    return _compare(inside, variables)


def _compare(words: Sequence[Word], variables: Variables) -> bool | None:
    operands = [variables.known(word) for word in words]
    if len(words) == 1:
        return None if operands[0] is None else bool(operands[0])
    if len(words) == 2:
        return _unary(words[0].plain or "", operands[1])
    if len(words) == 3:
        return _binary(operands[0], words[1].plain or "", operands[2])
    return None


def _unary(sign: str, operand: str | None) -> bool | None:
    if operand is None or sign not in ("-n", "-z"):
        return None
    return bool(operand) == (sign == "-n")


_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
}


def _binary(left: str | None, sign: str, right: str | None) -> bool | None:
    if left is None or right is None:
        return None
    if sign in ("=", "=="):
        return fnmatch.fnmatchcase(left, right)
    if sign == "!=":
        return not fnmatch.fnmatchcase(left, right)
    if sign in _NUMBERS:
        try:
            return _NUMBERS[sign](int(left), int(right))
        except ValueError:
            return None
    return None


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """Three-valued AND."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    """Three-valued OR."""
    found = list(verdicts)
    return True if True in found else None if None in found else False
