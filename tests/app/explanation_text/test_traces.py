"""Does a trace say what differs, in words and in red, on every terminal?"""

from dataclasses import replace

import pytest

from tests.app.test_explanation_goldens import explained_job
from trimtab.app.explaining import exit_code
from trimtab.app.explanation_text import plain
from trimtab.app.explanation_text.lines import Style
from trimtab.app.explanation_text.traces import trace_lines
from trimtab.cost.explanation.tracing import (
    TracedBlock,
    TracedCollective,
    TracedFlops,
    TracedRank,
    TraceFacts,
)
from trimtab.plan.program import OperatorKind, Phase
from trimtab.terms import ExitCode

COLLECTIVE = TracedCollective(
    operation=OperatorKind.ALL_REDUCE,
    axes=("dp", "tp"),
    route="tree",
    traced_runs=64,
    planned_runs=64,
    traced_bytes=1_234_567_890,
    planned_bytes=1_234_567_890,
)
FORWARD = TracedFlops(phase=Phase.FORWARD, traced=1000, planned=1000)
RANK = TracedRank(
    rank=8,
    ranks="8-15",
    num_ranks=8,
    stages="1, 3",
    blocks=(TracedBlock(block="layers 0-3", phase=Phase.FORWARD, layer=2, times=32),),
    collectives=(COLLECTIVE,),
    flops=(FORWARD,),
    compression_flops=0,
)
EQUAL = TraceFacts(step=1, is_as_planned=True, differences=(), ranks=(RANK,))
DIFFERENT = replace(
    EQUAL,
    is_as_planned=False,
    differences=("rank 8: all_reduce of x over dp, tp (update, update): 64 runs, and the plan says 63 runs",),
    ranks=(
        replace(
            RANK,
            collectives=(replace(COLLECTIVE, planned_runs=63), replace(COLLECTIVE, route="ring")),
            flops=(replace(FORWARD, traced=1024),),
            compression_flops=12_000_000,
        ),
    ),
)


def test_what_is_equal_is_said_once() -> None:
    """A table without a verdict leaves the comparison to its reader."""
    text = plain(trace_lines(EQUAL, width=100))
    assert "as planned: every collective" in text
    assert "differs" not in text
    assert "rank 8 for 8 ranks (8-15), stages 1, 3" in text
    assert "layers 0-3 forward (layer 2) x 32" in text


def test_what_differs_is_in_words_and_in_red() -> None:
    """Colours are not shown everywhere, and words are not seen in a long table."""
    lines = list(trace_lines(DIFFERENT, width=100))
    red = plain([line for line in lines if any(piece.style is Style.BAD for piece in line)])
    assert "not as planned, 1 difference:" in red
    assert "1,024 FLOPs of 1,000 planned: 2.4 % more" in red
    assert red.count("differs") == 1
    assert "12 MFLOPs, which no plan counts" in plain(lines)


@pytest.mark.parametrize("width", [30, 60, 79, 120])
@pytest.mark.parametrize("trace", [EQUAL, DIFFERENT])
def test_no_line_is_wider_than_the_terminal(width: int, trace: TraceFacts) -> None:
    """A line that wraps by itself breaks the table; no figure may be lost for it."""
    text = plain(trace_lines(trace, width=width))
    assert max(map(len, text.splitlines())) <= max(width, 60)
    assert "1,234,567,890" in text


def test_the_exit_code_tells_a_trace_that_differs() -> None:
    """Whoever checks plans in a script reads no table."""
    found = explained_job("ddp").explanation
    assert exit_code(found) is ExitCode.DONE
    assert exit_code(found, EQUAL) is ExitCode.DONE
    assert exit_code(found, DIFFERENT) is ExitCode.RUN_FAILED
    too_large = replace(found, fits=False)
    assert exit_code(too_large, EQUAL) is ExitCode.INFEASIBLE
    assert exit_code(too_large, DIFFERENT) is ExitCode.RUN_FAILED
