"""What becomes of questions whose answers are errors?"""

import pytest

from trimtab.runtime.asking import Asking, answered


class EpochEndedError(Exception):
    """What a collective inside a backward pass may raise."""


def _refuse(question: int) -> None:
    raise EpochEndedError(f"question {question}")


def test_an_error_is_raised_where_the_question_was_asked() -> None:
    """A rank that waits for a dead one in its own backward pass must come to the next epoch."""

    def asking() -> Asking[list[str]]:
        heard = []
        for number in range(3):
            try:
                yield number
            except EpochEndedError as error:
                heard.append(str(error))
        return heard

    assert answered(asking(), _refuse) == ["question 0", "question 1", "question 2"]


def test_an_error_that_nobody_expects_goes_through() -> None:
    """After whoever asked has put away what it held."""
    closed = []

    def asking() -> Asking[None]:
        try:
            yield 1
        finally:
            closed.append(True)

    with pytest.raises(EpochEndedError, match="question 1"):
        answered(asking(), _refuse)
    assert closed
