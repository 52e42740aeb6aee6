"""What a referee found: sentences that hold, sentences that do not, and the exit code that follows."""

import sys
from collections.abc import Callable
from typing import NoReturn


class RefereeError(Exception):
    """The referee could not do its work; nothing is shown by that."""


def exit_with(referee: Callable[[], int]) -> NoReturn:
    """End the program with what ``referee`` returns, and with 1 and one sentence if it could not do its work."""
    try:
        code = referee()
    except RefereeError as error:
        print(f"NOT SHOWN: {error}")
        code = 1
    sys.exit(code)


class Verdict:
    """Prints each finding as it is made. It stands until one check fails.

    Args:
        guarantee: What is being refereed, in one sentence.
    """

    def __init__(self, guarantee: str) -> None:
        self._guarantee = guarantee
        self._num_checks = 0
        self._broken: list[str] = []

    def check(self, holds: bool, sentence: str) -> bool:
        """Note a finding: ``sentence`` says what must hold, with the figures found. Returns ``holds``."""
        self._num_checks += 1
        print(f"  {'holds ' if holds else 'BROKEN'}  {sentence}", flush=True)
        if not holds:
            self._broken.append(sentence)
        return holds

    def conclude(self) -> int:
        """Print the verdict; 0 if the guarantee held in every check, else 1. Without a check nothing was shown: 1."""
        if not self._num_checks:
            print(f"NOT SHOWN: {self._guarantee}: nothing was checked")
            return 1
        if self._broken:
            print(f"BROKEN: {self._guarantee}: {self._broken[0]}")
            return 1
        print(f"HELD: {self._guarantee} ({self._num_checks} checks)")
        return 0
