"""The grammar of one statement. lark makes tables of it, which ``lalr`` follows."""

from trimtab.spec.language.tokens import PATTERNS

STARTS = ("statement", "header")
"""What a text can be: a statement, or the first line of a preset."""

_RULES = r"""
statement: mesh | split | place | store | reduce | average | recompute | offload | keep | compute | seal | use

mesh: "MESH" axis ("," axis)*
axis: NAME (NUMBER | "*") ["WITHIN" NAME]
split: "SPLIT" names (of | where | over | using | microbatches | balance | on | if_any)*
place: "PLACE" NAME (where | layers | at | if_any)*
store: "STORE" names (where | over | on | if_any)*
reduce: "REDUCE" NAME (where | over | using | bucket | compress | in_type | on | if_any)*
average: "AVERAGE" NAME (where | over | every | using | compress | in_type | on | if_any)*
recompute: "RECOMPUTE" NAME (where | on | if_any)*
offload: "OFFLOAD" names (where | to | on | if_any)*
keep: "KEEP" names (where | in_type | if_any)*
compute: "COMPUTE" NAME (where | in_type | if_any)*
seal: "SEAL" names (where | over | on | if_any)*
use: "USE" STRING [arguments]

of: "OF" NAME
where: "WHERE" expression
layers: "BETWEEN" NUMBER "AND" NUMBER
over: "OVER" names
at: "ON" NAME NUMBER
to: "TO" NAME
every: "EVERY" NUMBER "STEPS"
using: "USING" call
bucket: "BUCKET" (SIZE | NUMBER)
compress: "COMPRESS" call
in_type: "IN" NAME
microbatches: "MICROBATCHES" NUMBER
balance: "BALANCE" "BY" NAME
on: "ON" expression
if_any: "IF" "ANY"

names: NAME ("," NAME)*
call: (NAME | DIGIT_NAME) ["(" [setting ("," setting)*] ")"]
setting: NAME | literal
arguments: "(" [argument ("," argument)*] ")"
argument: NAME "=" literal
literal: NUMBER | "-" NUMBER | SIZE | STRING

?expression: conjunction | conjunction ("OR" conjunction)+ -> any_of
?conjunction: negation | negation ("AND" negation)+ -> all_of
?negation: predicate | "NOT" negation -> negated
?predicate: "(" expression ")" -> group
  | sum ("=" | COMPARATOR) sum -> comparison
  | sum ["NOT"] "IN" "(" literal ("," literal)* ")" -> in_list
  | sum ["NOT"] "LIKE" STRING -> like
  | sum ["NOT"] "BETWEEN" sum "AND" sum -> between
  | sum "IS" ["NOT"] "NULL" -> is_null
?sum: product | sum ("+" | "-") product -> arithmetic
?product: operand | product ("*" | "/" | "%") operand -> arithmetic
?operand: NAME -> column | literal | "(" sum ")" -> group

header: "PRESET" STRING [arguments]
"""

GRAMMAR = _RULES + "\n" + "".join(f"{name}: /{pattern}/\n" for name, pattern in PATTERNS.items())
"""One statement, and the first line of a preset; tokens are cut beforehand, by the same patterns."""
