"""What lark makes of the grammar: the tables that the parser follows, as a document.

actions  for each state: type of token -> next state, or -1 - number of the rule that ends here
gotos    for each state: name of a rule -> next state
rules    name, number of parts, method of Builder (or first, list), shape of its argument (or null)
starts   what is to be read -> first state
ends     what is to be read -> last state
"""

import json
from typing import Any

from lark import Lark
from lark.grammar import Rule
from lark.parsers.lalr_analysis import Shift

from trimtab.spec.language.grammar import GRAMMAR, STARTS


def lark_parser() -> Lark:
    """lark's own parser of the grammar."""
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        start=list(STARTS),
        keep_all_tokens=True,
        maybe_placeholders=True,
    )


def make_tables() -> str:
    """The tables as they stand in the package, a state or a rule a line.

    lark numbers its states in an order that changes from process to process; here they are numbered as they
    are reached from the first ones.
    """
    parser = lark_parser()
    confs = [parser.parse_interactive(start=start).parser_state.parse_conf for start in STARTS]
    states = confs[0].parse_table.states
    numbers = _numbers(states, [conf.start_state for conf in confs])
    rules: dict[Rule, int] = {}
    actions: list[dict[str, int]] = []
    gotos: list[dict[str, int]] = []
    for state in numbers:
        row: dict[str, int] = {}
        for name, (action, target) in sorted(states[state].items()):
            row[name] = numbers[target] if action is Shift else -1 - rules.setdefault(target, len(rules))
        actions.append({name: number for name, number in row.items() if _is_terminal(name)})
        gotos.append({name: number for name, number in row.items() if not _is_terminal(name)})
    return _written(
        {
            "actions": actions,
            "gotos": gotos,
            "rules": [_rule(rule) for rule in rules],
            "starts": [{conf.start: numbers[conf.start_state] for conf in confs}],
            "ends": [{conf.start: numbers[conf.end_state] for conf in confs}],
        }
    )


def _numbers(states: Any, first: list[int]) -> dict[int, int]:
    """States as they are reached, each with its number."""
    numbers = {state: number for number, state in enumerate(first)}
    for state in (waiting := list(first)):
        for _, (action, target) in sorted(states[state].items()):
            if action is Shift and target not in numbers:
                numbers[target] = len(numbers)
                waiting.append(target)
    assert set(numbers) == set(states)
    return numbers


def _is_terminal(name: str) -> bool:
    return name.isupper()


def _rule(rule: Rule) -> list[Any]:
    return [rule.origin.name, len(rule.expansion), _method(rule), _shape(rule)]


def _method(rule: Rule) -> str:
    if rule.origin.name.startswith("_"):
        return "list"
    if rule.options.expand1 and rule.alias is None:
        return "first"
    return str(rule.alias or rule.origin.name)


def _shape(rule: Rule) -> list[Any] | None:
    """Parts in order, None for each that was left out, a list for a part whose items are taken."""
    holes = "".join(str(int(is_empty)) for is_empty in rule.options.empty_indices or ())
    counts = [len(ones) for ones in holes.split("0")] if holes else [0] * (len(rule.expansion) + 1)
    shape: list[Any] = []
    for index, symbol in enumerate(rule.expansion):
        shape += [None] * counts[index]
        shape.append([index] if not symbol.is_term and symbol.name.startswith("_") else index)
    shape += [None] * counts[-1]
    return None if shape == list(range(len(rule.expansion))) else shape


def _written(document: dict[str, list[Any]]) -> str:
    parts = []
    for name, rows in document.items():
        if name in ("starts", "ends"):
            parts.append(f'"{name}": {json.dumps(rows[0])}')
        else:
            parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"
