"""Why the weights of a folder are not taken, or not written."""

from collections.abc import Sequence
from pathlib import Path

from trimtab.terms import InputError


class WeightsError(InputError):
    """A folder holds no weights that can be read, or not those of the network.

    Args:
        folder: That was read.
        problems: Everything that is wrong, at least one.
        advice: What to do next.
    """

    def __init__(self, folder: Path, problems: Sequence[str], advice: str) -> None:
        assert problems, "an error without a problem"
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"{folder}: its weights cannot be taken\n{lines}\n  {advice}")
