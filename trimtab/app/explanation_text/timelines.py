"""A pipeline's timeline in text, drawn from the document."""

import re
from collections.abc import Iterator

from trimtab.app.explanation_text.lines import Line, Piece
from trimtab.cost.explanation.document import PipelineFacts, TimelineFacts
from trimtab.plan.pipelines import Action, ActionKind, Bar, Timeline, draw

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")

_IN_SECONDS = ("step ", "a column is ")
"""How the lines of a drawing begin that give its unit."""


def timeline_lines(pipeline: PipelineFacts, width: int) -> Iterator[Line]:
    """The drawing of one share, with its unit."""
    facts = pipeline.timeline
    is_in_seconds = facts.unit == "s"
    for line in draw(timeline_of(facts), width=width - 2):
        if is_in_seconds or not line.startswith(_IN_SECONDS):
            yield (Piece(f"  {line}"),)
    if not is_in_seconds:
        yield (Piece(f"  no rate is known: computation alone, {facts.makespan:.3g} times a {facts.unit}"),)


def timeline_of(facts: TimelineFacts) -> Timeline:
    """The timeline that a document tells of."""
    return Timeline(
        bars=tuple(
            tuple(
                Bar(action=_action(action), start_s=start, end_s=end)
                for action, start, end in zip(lane.actions, lane.starts, lane.ends, strict=True)
            )
            for lane in facts.lanes
        )
    )


def _action(text: str) -> Action:
    match = _ACTION.fullmatch(text)
    assert match is not None, "actions are written by Action"
    return Action(kind=ActionKind(match[2]), stage=int(match[1]), microbatch=int(match[3]))
