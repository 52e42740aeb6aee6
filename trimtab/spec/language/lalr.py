"""Tokens in, a tree out: the loop that follows the tables that lark made of the grammar.

The tables are data, made when the grammar changes, because making them takes longer than all the rest that a
command does with a strategy. ``tests/spec/language/lark_tables.py`` makes them and says what they hold.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

from trimtab.spec.language.building import Builder
from trimtab.spec.language.tokens import Token

END = "$END"
"""The type of the token behind the last one."""

_Build: TypeAlias = Callable[[list[Any]], Any]
_Shape: TypeAlias = Sequence[int | list[int] | None]


class UnexpectedTokenError(Exception):
    """No rule goes on with this token.

    Args:
        token: The first that cannot stand where it stands; of type ``$END`` if the statement ends too early.
        expected: Types of the tokens that could stand there.
    """

    def __init__(self, token: Token, expected: frozenset[str]) -> None:
        super().__init__(f"{token.type} where one of {sorted(expected)} is expected")
        self.token = token
        self.expected = expected


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One way to put parts together.

    Args:
        name: What they become, as the tables call it.
        size: The number of parts.
        build: Makes an element of the parts.
        shape: What ``build`` gets, if not just the parts: the number of a part, None for what was left out,
            or a list with the number of a part that is itself a list and whose items count.
    """

    name: str
    size: int
    build: _Build
    shape: _Shape | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """An LALR automaton.

    Args:
        actions: For each state and type of token: the next state, or -1 - the rule that ends here.
        gotos: For each state and name of a rule: the next state.
        rules: What is put together.
        starts: The state to begin in, by what is to be read.
        ends: The state in which it has been read.
    """

    actions: Sequence[Mapping[str, int]]
    gotos: Sequence[Mapping[str, int]]
    rules: Sequence[Rule]
    starts: Mapping[str, int]
    ends: Mapping[str, int]

    def parse(self, tokens: Sequence[Token], *, start: str) -> Any:
        """The tree of the tokens, of which there is at least one.

        Raises: UnexpectedTokenError at the first token that no rule goes on with; what the builder raises.
        """
        actions, rules, end_state = self.actions, self.rules, self.ends[start]
        states, parts = [self.starts[start]], list[Any]()
        for token in (*tokens, tokens[-1]._replace(type=END)):
            action = actions[states[-1]].get(token.type)
            while action is not None and action < 0:
                self._reduce(rules[-1 - action], states, parts)
                if token.type == END and states[-1] == end_state:
                    return parts[-1]
                action = actions[states[-1]].get(token.type)
            if action is None:
                raise UnexpectedTokenError(token, self._expected(states, end_state))
            states.append(action)
            parts.append(token)
        raise AssertionError("the last token ends the loop")

    def _reduce(self, rule: Rule, states: list[int], parts: list[Any]) -> None:
        found = parts[-rule.size :]
        del parts[-rule.size :], states[-rule.size :]
        states.append(self.gotos[states[-1]][rule.name])
        parts.append(rule.build(found if rule.shape is None else _shaped(found, rule.shape)))

    def _expected(self, states: Sequence[int], end_state: int) -> frozenset[str]:
        candidates = self.actions[states[-1]]
        return frozenset(kind for kind in candidates if self._goes_on(states, kind, end_state))

    def _goes_on(self, states: Sequence[int], kind: str, end_state: int) -> bool:
        """Whether a token of this type can follow; in LALR a rule may end before that is known."""
        stack = list(states)
        while (action := self.actions[stack[-1]].get(kind)) is not None:
            if action >= 0:
                return True
            rule = self.rules[-1 - action]
            del stack[-rule.size :]
            stack.append(self.gotos[stack[-1]][rule.name])
            if kind == END and stack[-1] == end_state:
                return True
        return False


@functools.cache
def tables() -> Tables:
    """The automaton of the grammar, read on first use."""
    file = resources.files("trimtab.spec").joinpath("data", "grammar.json")
    document = json.loads(file.read_text(encoding="utf-8"))
    builder = Builder()
    return Tables(
        actions=document["actions"],
        gotos=document["gotos"],
        rules=[
            Rule(name=name, size=size, build=_build(builder, method), shape=shape)
            for name, size, method, shape in document["rules"]
        ],
        starts=document["starts"],
        ends=document["ends"],
    )


def _build(builder: Builder, method: str) -> _Build:
    if method == "first":
        return _first
    return _listed if method == "list" else getattr(builder, method)


def _first(parts: list[Any]) -> Any:
    """A rule of one part is that part."""
    return parts[0]


def _listed(parts: list[Any]) -> list[Any]:
    """A repetition is a list until the rule around it takes its items."""
    return parts


def _shaped(parts: list[Any], shape: _Shape) -> list[Any]:
    first, *others = shape
    # A repetition that grows goes on in the same list: copying it would take the square of its length.
    shaped: list[Any] = parts[first[0]] if isinstance(first, list) else []
    for item in others if isinstance(first, list) else shape:
        if isinstance(item, list):
            shaped += parts[item[0]]
        else:
            shaped.append(None if item is None else parts[item])
    return shaped
