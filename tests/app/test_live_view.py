import io
from pathlib import Path

from rich.console import Console

from trimtab.app.live_view import LineView, LivePage, StepParts
from trimtab.app.progress import Progress, event_line, step_line
from trimtab.engines.launch import Launch
from trimtab.policy import Limits
from trimtab.terms import Clock, OnLoss

SECOND_NS = 1_000_000_000


def step(number, **changes):
    return {
        "step": number,
        "loss": 3.0,
        "grad_norm": 1.0,
        "lr": 1e-3,
        "tokens": 1024,
        "targets": 1024,
    } | changes


def launch(folder=Path("/runs/quick-1")):
    return Launch(
        run="quick-1",
        folder=folder,
        attempt=1,
        devices=2,
        module="m",
        rank_settings={},
        environment={},
        limits=Limits(),
        num_shares=4,
        on_loss=OnLoss.EXACT,
        is_replacing=False,
        grace_s=30.0,
        device_price_usd_per_hour=1800.0,
    )


def test_speed_is_that_of_the_last_steps():
    """Tokens over the time in which they were computed; nothing before the second step."""
    progress = Progress()
    progress.take("step", 0, step(0))
    assert progress.tokens_per_s is None
    progress.take("step", 2 * SECOND_NS, step(1))
    assert progress.tokens_per_s == 512.0
    for number in range(2, 30):
        progress.take("step", (number + 1) * SECOND_NS, step(number))
    assert progress.tokens_per_s == 1024.0


def test_a_step_without_a_loss_is_a_dash():
    """NaN is a gap in the journal; the line must not break over it."""
    assert step_line(step(4, loss=None, grad_norm=None), None) == "step 5  loss -  norm -  lr 0.001"


def test_lines_come_once_a_second_and_for_every_event():
    """A log of a long run stays readable, and no fault is hidden in it."""
    stream = io.StringIO()
    view = LineView(stream)
    for number in range(10):
        view("step", number * SECOND_NS // 4, step(number))
    view("decision", 3 * SECOND_NS, {"reason": "rank 1 is lost"})
    view("spawned", 3 * SECOND_NS, {"rank": 1})
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1", "step 5", "step 9", "rank 1 is lost"]


def test_every_kind_of_event_that_people_read_has_its_line():
    """A field that is missing would end the agent's loop."""
    told = {
        "decision": {"reason": "why"},
        "recovered": {"step": 4, "resumed_s": 0.5},
        "failed": {"rank": 1, "step": 4, "error": "boom"},
        "refused": {"reason": "no token"},
        "planted": {"rank": 1, "fault": "kill", "step": 4},
        "evaluation": {"step": 4, "loss": None},
        "checkpoint": {"step": 4, "state": "saved"},
        "signal": {"signal": 15},
    }
    for kind, fields in told.items():
        assert event_line(kind, fields), kind
    assert event_line("hello", {"rank": 1}) is None


def test_the_page_shows_progress_ranks_money_and_events(tmp_path):
    """What somebody who watches wants to know at a glance."""
    page = LivePage(launch(tmp_path), num_steps=6)
    page("allocated", 0, {"device": 0})
    page("spawned", 0, {"rank": 0})
    page("formed", 0, {"members": [0, 1]})
    page("step", SECOND_NS, step(2))
    page("exited", SECOND_NS, {"rank": 1})
    page("evaluation", SECOND_NS, {"step": 3, "loss": 2.5})
    text = drawn(page)
    for expected in ("step 3 of 6", "loss 3.0000", "0 training  1 gone", "$", "loss 2.5000"):
        assert expected in text


def test_markup_from_jobs_and_ranks_is_data(tmp_path):
    """An error text with brackets must neither vanish nor colour the terminal."""
    page = LivePage(launch(tmp_path), num_steps=None)
    page(
        "failed",
        0,
        {"rank": 0, "step": 1, "error": "[bold red]x[/bold red] [link=http://a]y[/link] \x1b[31mz"},
    )
    text = drawn(page)
    assert "[bold red]x[/bold red] [link=http://a]y[/link]" in text
    assert "\x1b[31m" not in text


def test_parts_of_time_are_those_since_the_last_look(written_run):
    """Shares of the ranks' clocks; while nothing is switched, the last measurement stands."""
    run = written_run().attempt(1, range(3))
    parts = StepParts(run.folder / "clocks")
    assert parts.measure() == {Clock.COMPUTE: 1.0}
    assert parts.measure() == {Clock.COMPUTE: 1.0}


def drawn(page):
    stream = io.StringIO()
    Console(file=stream, width=120, force_terminal=True, color_system=None).print(page.render())
    return stream.getvalue()
