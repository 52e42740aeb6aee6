"""What a program means on a number of devices."""

import pytest

from trimtab.spec import Mesh, Route, StrategyError, parse_strategy, resolve_layout, resolve_mesh


def problems_of(text: str, devices: int) -> list[str]:
    with pytest.raises(StrategyError) as caught:
        resolve_layout(parse_strategy(text, source="x.trim"), devices)
    return [
        f"{problem.span.line}:{problem.span.column} {problem.message}" for problem in caught.value.problems
    ]


@pytest.mark.parametrize(
    ("text", "devices", "axes"),
    [
        ("", 4, (("dp", 4),)),
        ("SPLIT batch OVER dp", 3, (("dp", 3),)),
        ("MESH a 2, b 3", 6, (("a", 2), ("b", 3))),
        ("MESH a *, b 3", 6, (("a", 2), ("b", 3))),
        ("MESH a *", 5, (("a", 5),)),
        ("MESH a 4, b *", 4, (("a", 4), ("b", 1))),
    ],
)
def test_mesh(text: str, devices: int, axes: tuple[tuple[str, int], ...]) -> None:
    """Otherwise ranks stand in another grid than was written."""
    mesh = resolve_mesh(parse_strategy(text, source="x.trim"), devices)
    assert mesh == Mesh(axes=axes)
    assert mesh.num_devices == devices


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MESH a 3", "1:1 the mesh a 3 needs 3 devices; orchestration.devices is 4"),
        ("MESH a 3, b *", "1:1 the mesh a 3 x b * needs a multiple of 3 devices"),
        ("MESH a 8, b *", "1:1 the mesh a 8 x b * needs a multiple of 8 devices"),
        ("MESH a 4, a 1", "1:11 axis 'a' is declared twice"),
        ("MESH a 0, b 4", "1:6 axis 'a' has size 0"),
        ("MESH a *, b *", "1:11 a second '*'"),
        ("MESH a 4\nMESH a 4", "2:1 a second MESH"),
    ],
)
def test_meshes_that_do_not_hold_the_devices(text: str, message: str) -> None:
    """Otherwise some devices are left out, or waited for."""
    with pytest.raises(StrategyError) as caught:
        resolve_mesh(parse_strategy(text, source="x.trim"), 4)
    (problem,) = caught.value.problems
    assert f"{problem.span.line}:{problem.span.column} {problem.message}".startswith(message)


def test_defaults_split_and_sum_over_every_axis() -> None:
    """Otherwise a mesh without further statements trains copies that drift apart."""
    layout = resolve_layout(parse_strategy("MESH a 2, b 2", source="x.trim"), 4)
    assert layout.batch_axes == ("a", "b")
    assert layout.routes == (("a", Route.NATIVE), ("b", Route.NATIVE))


def test_last_route_decides_and_the_lost_one_is_named() -> None:
    """Otherwise an overridden statement looks as if it held."""
    text = "MESH a 2, b 2\nREDUCE grads OVER a, b USING tree\nREDUCE grads OVER b USING native\n"
    layout = resolve_layout(parse_strategy(text, source="x.trim"), 4)
    assert layout.routes == (("a", Route.TREE), ("b", Route.NATIVE))
    assert layout.warnings == ()
    text += "REDUCE grads OVER a USING native\n"
    (warning,) = resolve_layout(parse_strategy(text, source="x.trim"), 4).warnings
    assert warning.span.line == 2


def test_unknown_axis_is_shown_as_the_style_guide_shows_it() -> None:
    """Otherwise the one message that everybody copies has drifted."""
    text = "MESH pp 2, dp 8, tp 4\nSPLIT batch OVER tpp"
    with pytest.raises(StrategyError) as caught:
        resolve_layout(parse_strategy(text, source="run.yaml"), 64)
    assert str(caught.value) == (
        "run.yaml:2:18  unknown mesh axis 'tpp'\n"
        "    SPLIT batch OVER tpp\n"
        "                     ^^^\n"
        "  axes of this mesh: pp(2), dp(8), tp(4).  Did you mean 'tp'?"
    )


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("SPLIT btach OVER dp", ["1:7 unknown dim 'btach'"]),
        ("REDUCE params OVER dp", ["1:8 REDUCE takes grads, not params"]),
        ("REDUCE grad OVER dp", ["1:8 unknown table 'grad'"]),
        ("REDUCE grads OVER dp USING trees", ["1:28 unknown route 'trees'"]),
        ("REDUCE grads OVER dp USING Tree", ["1:28 unknown route 'Tree'"]),
        ("SPLIT x OVER y\nREDUCE z OVER y USING w", [
            "1:7 unknown dim 'x'", "1:14 unknown mesh axis 'y'",
            "2:8 unknown table 'z'", "2:15 unknown mesh axis 'y'", "2:23 unknown route 'w'",
        ]),
        ("MESH a 3\nSPLIT batch OVER b", [
            "1:1 the mesh a 3 needs 3 devices; orchestration.devices is 4", "2:18 unknown mesh axis 'b'",
        ]),
    ],
)  # fmt: skip
def test_unknown_words(text: str, messages: list[str]) -> None:
    """Otherwise a misspelt axis is silently no axis."""
    assert problems_of(text, 4) == messages


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MESH a 2, b 2\nSPLIT batch OVER a", "1:11 no statement splits anything over 'b'"),
        (
            "MESH a 2, b 2\nREDUCE grads OVER a",
            "2:1 the batch is split over b, but gradients are not summed over it",
        ),
        ("MESH a 4, b 1\nSPLIT batch OVER a\nREDUCE grads OVER a, b", "3:22 gradients are equal over 'b'"),
        ("REDUCE grads OVER dp, dp", "1:23 axis 'dp' is named twice"),
        ("SPLIT batch OVER dp\nSPLIT batch OVER dp", "2:7 'batch' is split over 'dp' twice"),
        ("SPLIT batch, batch OVER dp", "1:14 'batch' is split over 'dp' twice"),
    ],
)
def test_plans_that_add_twice_or_forget_to_add(text: str, message: str) -> None:
    """Otherwise replicas drift apart, or gradients come out too large, with a plausible loss."""
    (found,) = problems_of(text, 4)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("text", "batch_axes"),
    [
        ("MESH dp 2, tp 2\nSPLIT heads OVER tp", ("dp",)),
        ("MESH dp 2, tp 2\nSPLIT heads OVER tp\nSTORE params OVER dp\nREDUCE grads OVER dp", ("dp",)),
        ("MESH pp 2, dp 2\nPLACE layers BETWEEN 0 AND 3 ON pp 0", ("dp",)),
        ("MESH dp 2, ep 2\nSPLIT experts OVER ep\nSPLIT batch OVER dp, ep", ("dp", "ep")),
        ("MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ring", ("dp",)),
        ("MESH replica 2, dp 2\nSTORE params, grads, states OVER dp", ("replica", "dp")),
        ("MESH site 2, dp 2\nAVERAGE params OVER site EVERY 8 STEPS\nSEAL grads OVER site", ("site", "dp")),
        ("MESH tp 4\nSPLIT heads OVER tp", ()),
    ],
)
def test_batch_takes_the_axes_that_nothing_else_divides_by(text: str, batch_axes: tuple[str, ...]) -> None:
    """Otherwise devices compute the same samples, or an axis is used twice."""
    assert resolve_layout(parse_strategy(text, source="x.trim"), 4).batch_axes == batch_axes


def test_sums_of_other_programs_are_not_judged_by_the_rules_of_replicas() -> None:
    """Otherwise a right three-dimensional strategy is refused because tp needs no sum."""
    text = "MESH dp 2, tp 2\nSPLIT heads OVER tp\nREDUCE grads WHERE kind = 'norm' OVER dp USING ring"
    layout = resolve_layout(parse_strategy(text, source="x.trim"), 4)
    assert layout.routes == (("dp", Route.RING),)


def test_default_takes_a_route_back() -> None:
    """Otherwise `USING default` is a route that nobody knows."""
    text = "REDUCE grads OVER dp USING tree\nREDUCE grads OVER dp USING default"
    assert resolve_layout(parse_strategy(text, source="x.trim"), 4).routes == (("dp", Route.NATIVE),)


def test_a_statement_that_says_more_than_its_route_is_not_without_effect() -> None:
    """Otherwise a user deletes a bucket size because its route is overridden."""
    text = "REDUCE grads OVER dp USING tree BUCKET 1MB\nREDUCE grads OVER dp USING ring"
    assert resolve_layout(parse_strategy(text, source="x.trim"), 4).warnings == ()
    text = "REDUCE grads OVER dp USING tree\nREDUCE grads WHERE layer < 4 OVER dp USING ring"
    assert resolve_layout(parse_strategy(text, source="x.trim"), 4).warnings == ()


def test_an_axis_of_one_device_may_go_unnamed() -> None:
    """Otherwise the same strategy fails on a smaller cluster."""
    layout = resolve_layout(
        parse_strategy("MESH a 4, b 1\nSPLIT batch OVER a\nREDUCE grads OVER a", source="x"), 4
    )
    assert layout.batch_axes == ("a",)
