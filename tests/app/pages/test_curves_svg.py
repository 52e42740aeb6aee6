"""Cost curves as a picture."""

import itertools
import xml.etree.ElementTree as ET

import pytest

from trimtab.app.pages.curves_svg import Curve, Panel, Point, curves_svg

SVG = "{http://www.w3.org/2000/svg}"


def point(devices: int, expected: float) -> Point:
    return Point(devices=devices, low=expected / 1.3, expected=expected, high=expected * 1.3)


def panel(*curves: Curve, unit: float = 1.0) -> Panel:
    return Panel(title="a step", curves=curves, say=lambda value: f"{value / unit:g}", unit=unit)


FAST = Curve(name="fast & new", points=[point(8, 8.0), point(16, 4.0), point(32, 2.0)])
SLOW = Curve(name="slow", points=[point(8, 20.0), point(16, 10.0)])


def places(picture: str) -> list[list[tuple[float, float]]]:
    """The lines through the points of each curve."""
    found = []
    for path in ET.fromstring(picture).iter(f"{SVG}path"):
        if path.get("stroke-width") == "1.8":
            pairs = (path.get("d") or "").removeprefix("M").split(" L")
            found.append([tuple(map(float, pair.split())) for pair in pairs])
    return found


def test_a_curve_goes_through_its_points_on_logarithmic_axes():
    fast, slow = places(curves_svg("title", [], [panel(FAST, SLOW)]))
    assert len(fast) == 3
    assert len(slow) == 2
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(fast)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)  # halving at each doubling is a straight line
    assert steps[0][0] > 0
    assert steps[0][1] > 0  # less is lower, and lower is further down
    assert slow[0][0] == fast[0][0]
    assert slow[0][1] < fast[0][1]


def test_words_are_escaped_and_all_there():
    picture = curves_svg("a <b>", ["note & price"], [panel(FAST, SLOW)])
    words = [text.text for text in ET.fromstring(picture).iter(f"{SVG}text")]
    for expected in ("a <b>", "note & price", "fast & new", "slow", "a step", "8", "16", "32", "devices"):
        assert expected in words


def test_lines_stand_at_round_numbers_of_the_unit():
    picture = curves_svg("t", [], [panel(Curve(name="c", points=[point(8, 86_400 * 300.0)]), unit=86_400)])
    words = [text.text for text in ET.fromstring(picture).iter(f"{SVG}text")]
    assert "300" in words


def test_one_point_is_drawn():
    (line,) = places(curves_svg("t", [], [panel(Curve(name="c", points=[point(8, 1.0)]))]))
    assert len(line) == 1
