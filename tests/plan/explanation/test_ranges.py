from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.explanation import ranges


def numbers_of(text: str) -> list[int]:
    """The numbers that a text stands for, read in another way than it was written."""
    found: list[int] = []
    for part in text.split(", ") if text else []:
        run, _, step = part.partition(" step ")
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


@given(st.sets(st.integers(0, 200)))
def test_every_number_stands_there_once(numbers: set[int]) -> None:
    """A rank that a list leaves out has no plan; one that stands there twice is paid twice."""
    assert sorted(numbers_of(ranges(numbers))) == sorted(numbers)


def test_strides_are_runs() -> None:
    """The ranks of one pipeline place are far apart where the pipeline is the last axis: 64 numbers are no answer."""
    assert ranges(range(0, 512, 8)) == "0-504 step 8"
    assert ranges([*range(8), *range(64, 72)]) == "0-7, 64-71"
