"""The formula lines of an explanation: the numbers that a page gives them, and chips that lead to them."""

from collections.abc import Iterable, Sequence

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.markup import Markup, element, joined


class FormulaLines:
    """Formulas by the place where they stand.

    Args:
        formulas: As the explanation lists them; several may stand on one line.
        sign: Stands before every number: ``-`` and ``+`` tell the lines of two jobs apart.
    """

    def __init__(self, formulas: Sequence[Facts], *, sign: str = "") -> None:
        self._numbers: dict[str, list[str]] = {}
        for number, formula in enumerate(formulas, start=1):
            self._numbers.setdefault(formula["at"], []).append(f"{sign}{number}")

    def numbers(self, *places: str) -> tuple[str, ...]:
        """The numbers of the formulas at some places, each once; places without a formula give none."""
        return tuple(dict.fromkeys(number for place in places for number in self._numbers.get(place, ())))

    def attribute(self, *places: str) -> str | None:
        """Value of the attribute that says what decided an element."""
        return " ".join(self.numbers(*places)) or None

    def chip(self, place: str) -> Markup:
        """A small link to the formulas at a place; the place itself where none stands there."""
        found = self._numbers.get(place)
        if not found:
            return element("small", place)
        return joined(
            (
                element(
                    "a", number, href=f"#line-{number}", class_="by", title=place, aria_label=f"line {number}"
                )
                for number in found
            ),
            " ",
        )

    def chips(self, places: Iterable[str]) -> Markup:
        """Links to the formulas at some places, each once."""
        return joined((self.chip(place) for place in dict.fromkeys(places) if place), " ")
