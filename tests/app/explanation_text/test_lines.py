from hypothesis import given
from hypothesis import strategies as st

from trimtab.app.explanation_text.lines import Piece, plain, row

WORDS = st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=30))


@given(
    words=WORDS,
    width=st.integers(40, 120),
    label=st.sampled_from(["", "memory"]),
    place=st.sampled_from(["", "job.yaml:9"]),
)
def test_a_row_keeps_its_words_and_its_width(words: list[str], width: int, label: str, place: str) -> None:
    """A word that wrapping loses is a fact that nobody reads."""
    lines = list(
        row(" ".join(words), width=width, label=label, label_width=12, place=place, indent=(Piece("│  "),))
    )
    text = plain(lines)
    assert max(map(len, text.splitlines()), default=0) <= width
    joined = "".join(text.replace("│", "").split())
    assert joined == label + "".join("".join(words).split()) + place


def test_a_place_stands_at_the_right_end() -> None:
    """Beside the text where there is room, else below."""
    (line,) = row("a short text", width=40, place="job.yaml:9")
    assert plain([line]) == "a short text                  job.yaml:9"
    first, second = row("a text that fills the whole line exactly", width=40, place="job.yaml:9")
    assert plain([first]) == "a text that fills the whole"
    assert plain([second]) == "line exactly                  job.yaml:9"


def test_a_number_keeps_its_unit() -> None:
    """``22.5`` at the end of one line and ``MB`` at the start of the next is read twice."""
    lines = plain(row("the largest rank needs 22.5 MB of 85.9 GB", width=34)).splitlines()
    assert lines == ["the largest rank needs 22.5 MB of", "85.9 GB"]
