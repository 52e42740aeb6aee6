"""Why another system's checkpoint is not taken."""

from collections.abc import Sequence

from trimtab.terms import InputError


class ForeignError(InputError):
    """A checkpoint of another system is damaged, means harm, or does not hold what the job needs.

    Args:
        source: Which.
        problems: Each in a line.
        advice: What to do.
    """

    def __init__(self, source: str, problems: Sequence[str], advice: str) -> None:
        lines = [f"{source}: cannot be imported", *(f"  {problem}" for problem in problems), f"  {advice}"]
        super().__init__("\n".join(lines))
