"""Text of the strategy language into a program: statements read, presets filled in, every error at once."""

from trimtab.spec.errors import StrategyError
from trimtab.spec.language.meaning import check_names
from trimtab.spec.language.parser import read_statements
from trimtab.spec.language.presets import fill_in_presets
from trimtab.spec.language.syntax import MeshStatement, Program
from trimtab.spec.language.wording import in_order
from trimtab.spec.located_text import LocatedText


def parse_strategy(text: str, *, source: str) -> Program:
    """The program that a text states; `source` names the text in errors.

    Raises: StrategyError with every statement that cannot be read; then also with what `check_names` finds
        in the others, so that all errors are shown at once.
    """
    return parse_located(LocatedText.whole(text, source=source))


def parse_located(text: LocatedText) -> Program:
    """As `parse_strategy`, for a text that stands inside another document.

    Raises: StrategyError, as `parse_strategy`.
    """
    reading = read_statements(text)
    program, problems = fill_in_presets(reading, {text.source: text.document})
    problems = [*reading.problems, *problems]
    if not problems:
        return program
    # Without a MESH that could be read, the broken part may be the one that names the axes.
    has_mesh = any(isinstance(statement, MeshStatement) for statement in program.statements)
    problems += check_names(program, are_axes_known=has_mesh)
    raise StrategyError(in_order(problems), program.documents)
