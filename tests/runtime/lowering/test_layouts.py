"""Does a parallel run compute what one device computes, whatever the layout, and send what its plan says?"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.lowering.small_plans import (
    DROPPING,
    EXPERTS,
    LEARNED,
    ROTARY,
    WINDOWED,
    question,
    small_plan,
)
from trimtab.runtime.lowering import Crew, verify

pytestmark = pytest.mark.process

SEQUENCE_PARALLEL = "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp"

Layout = tuple[int, str, dict[str, Any], dict[str, Any]]

FAST: dict[str, Layout] = {
    "dp, three ranks and four shares": (3, "MESH dp 3", DROPPING, {"shares": 4}),
    "zero 1, tree": (2, "MESH dp 2\nSTORE states OVER dp\nREDUCE grads OVER dp USING ring", ROTARY, {}),
    "buckets beside the backward pass": (
        4,
        "MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\nSTORE states OVER dp\n"
        "REDUCE grads OVER replica, dp BUCKET 16KB\nREDUCE grads WHERE kind = 'norm' OVER replica, dp USING ring",
        ROTARY,
        {},
    ),
    "zero 3, recomputed": (
        4,
        "MESH dp 4\nSTORE params, grads, states OVER dp\nRECOMPUTE activations WHERE layer % 2 = 0",
        DROPPING,
        {},
    ),
    "hsdp, hierarchical": (
        4,
        "MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\nSTORE params, grads, states OVER dp\n"
        "REDUCE grads OVER replica, dp USING hierarchical(node)",
        ROTARY,
        {},
    ),
    "tp and sequence parallel": (
        4,
        f"MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\n{SEQUENCE_PARALLEL}",
        DROPPING,
        {},
    ),
    "tensors, logits in chunks": (
        2,
        "MESH tp 2\nSPLIT heads, mlp, vocab OVER tp\nRECOMPUTE activations WHERE name = 'logits'",
        {**LEARNED, "vocab": 2051},
        {"microbatch": 4},
    ),
    "context by ulysses, a window": (
        4,
        "MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ulysses",
        WINDOWED,
        {},
    ),
    "context by ring, a window": (4, "MESH cp 4\nSPLIT sequence OVER cp USING ring", WINDOWED, {}),
    "gathered keys, a window": (
        2,
        "MESH cp 2\nSPLIT sequence OVER cp USING allgather",
        {**WINDOWED, "dropout": 0.2},
        {},
    ),
    "experts beside data": (
        4,
        "MESH dp 2, ep 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep",
        {**EXPERTS, "dropout": 0.2},
        {},
    ),
    "1f1b, a tied matrix on two stages": (
        4,
        "MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 4",
        LEARNED,
        {},
    ),
    "zbv": (2, "MESH pp 2\nSPLIT layers OVER pp USING zbv MICROBATCHES 4", DROPPING, {}),
    "diloco": (
        4,
        "MESH site 2, dp 2\nSPLIT batch OVER site, dp\nREDUCE grads OVER dp\n"
        "AVERAGE params OVER site EVERY 2 STEPS USING nesterov(0.9)",
        DROPPING,
        {},
    ),
    "stages, data and tensors": (
        8,
        "MESH pp 2, dp 2, tp 2\nSPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 4\n"
        f"SPLIT heads, mlp, vocab OVER tp\n{SEQUENCE_PARALLEL}\nSTORE states OVER dp",
        DROPPING,
        {},
    ),
}
"""Ranks, strategy, network, and what else is unusual."""

SLOW: dict[str, Layout] = {
    "dp, native": (4, "MESH dp 4", LEARNED, {}),
    "dp, ring": (4, "MESH dp 4\nREDUCE grads OVER dp USING ring", LEARNED, {}),
    "dp, tree of three": (3, "MESH dp 3\nREDUCE grads OVER dp USING tree", ROTARY, {"batch": 6}),
    "dp, tree of eight": (8, "MESH dp 8\nREDUCE grads OVER dp USING tree", ROTARY, {}),
    "dp, recursive doubling": (8, "MESH dp 8\nREDUCE grads OVER dp USING recursive_doubling", LEARNED, {}),
    "dp, direct": (4, "MESH dp 4\nREDUCE grads OVER dp USING reduce_scatter", LEARNED, {}),
    "dp, routes by tensor": (
        4,
        "MESH dp 4\nREDUCE grads OVER dp USING ring BUCKET 4KB\nREDUCE grads WHERE kind = 'norm' OVER dp USING tree",
        LEARNED,
        {},
    ),
    "dp, wires and compression set aside": (
        2,
        "MESH dp 2\nREDUCE grads OVER dp IN bf16\nREDUCE grads WHERE dims LIKE '%,%' OVER dp COMPRESS powersgd(2)",
        LEARNED,
        {},
    ),
    "dp, five shares on two ranks": (2, "MESH dp 2", ROTARY, {"shares": 5, "batch": 10}),
    "zero 1": (4, "MESH dp 4\nSTORE states OVER dp", LEARNED, {}),
    "zero 2": (4, "MESH dp 4\nSTORE grads, states OVER dp", ROTARY, {}),
    "zero 3": (8, "MESH dp 8\nSTORE params, grads, states OVER dp", LEARNED, {}),
    "zero 3, direct": (
        4,
        "MESH dp 4\nSTORE params, grads, states OVER dp\nREDUCE grads OVER dp USING reduce_scatter",
        ROTARY,
        {},
    ),
    "zero by layer": (
        4,
        "MESH dp 4\nSTORE params, grads, states WHERE layer < 2 OVER dp\nSTORE states WHERE layer >= 2 OVER dp",
        LEARNED,
        {},
    ),
    "hsdp": (
        8,
        "MESH replica 2, dp 4\nSPLIT batch OVER replica, dp\nSTORE params, grads, states OVER dp",
        ROTARY,
        {},
    ),
    "storage over two axes": (
        4,
        "MESH a 2, b 2\nSPLIT batch OVER a, b\nSTORE params, grads, states OVER a, b",
        LEARNED,
        {},
    ),
    "tp": (4, "MESH tp 4\nSPLIT heads, mlp, vocab OVER tp", ROTARY, {}),
    "tp without vocabulary": (2, "MESH tp 2\nSPLIT heads, mlp OVER tp", LEARNED, {}),
    "vocabulary alone": (4, "MESH tp 4\nSPLIT vocab OVER tp", LEARNED, {}),
    "tp in storage": (
        4,
        "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\nSTORE params, grads, states OVER dp",
        ROTARY,
        {},
    ),
    "sequence parallel": (4, f"MESH tp 4\nSPLIT heads, mlp, vocab OVER tp\n{SEQUENCE_PARALLEL}", ROTARY, {}),
    "states and activations on the host": (
        2,
        "MESH dp 2\nSTORE states OVER dp\nOFFLOAD states TO host\n"
        "OFFLOAD activations WHERE kind IN ('linear', 'norm') TO host",
        LEARNED,
        {},
    ),
    "apart, states on the host": (
        2,
        "MESH site 2\nSPLIT batch OVER site\nAVERAGE params OVER site EVERY 1 STEPS USING nesterov(0.5)\n"
        "OFFLOAD states TO host",
        ROTARY,
        {},
    ),
    "stages and storage, logits in chunks": (
        4,
        "MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 4\nSTORE params, grads, states OVER dp\n"
        "RECOMPUTE activations WHERE name = 'logits'",
        {**ROTARY, "vocab": 2051},
        {},
    ),
    "sequence parallel, recomputed": (
        2,
        f"MESH tp 2\nSPLIT heads, mlp, vocab OVER tp\n{SEQUENCE_PARALLEL}\nRECOMPUTE activations",
        LEARNED,
        {},
    ),
    "one matrix differently": (
        2,
        "MESH tp 2\nSPLIT heads, mlp OVER tp\nSPLIT embed OF params WHERE name LIKE '%.wo.weight' AND layer = 1 OVER tp",
        ROTARY,
        {},
    ),
    "a residual stream in columns": (
        2,
        "MESH tp 2\nSPLIT heads, mlp OVER tp\n"
        "SPLIT embed OF activations WHERE kind = 'residual' AND layer >= 0 OVER tp",
        DROPPING,
        {},
    ),
    "ulysses": (4, "MESH cp 4\nSPLIT sequence OVER cp USING ulysses", ROTARY, {}),
    "gathered keys": (4, "MESH cp 4\nSPLIT sequence OVER cp USING allgather", LEARNED, {}),
    "ring of keys": (8, "MESH cp 8\nSPLIT sequence OVER cp USING ring", LEARNED, {}),
    "ring of four, everything seen": (4, "MESH cp 4\nSPLIT sequence OVER cp USING ring", ROTARY, {}),
    "a window in tensors": (
        4,
        f"MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\n{SEQUENCE_PARALLEL}\nRECOMPUTE activations",
        {**LEARNED, "window": 5},
        {},
    ),
    "a ring in tensors, a window": (
        4,
        "MESH cp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\nSPLIT sequence OVER cp USING ring",
        WINDOWED,
        {},
    ),
    "ring of keys, recomputed": (
        2,
        "MESH cp 2\nSPLIT sequence OVER cp USING ring\nRECOMPUTE activations",
        ROTARY,
        {},
    ),
    "ulysses in tensors": (
        8,
        "MESH dp 2, cp 2, tp 2\nSPLIT sequence OVER cp USING ulysses\nSPLIT heads, mlp, vocab OVER tp",
        ROTARY,
        {},
    ),
    "ring in tensors": (
        4,
        "MESH cp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\nSPLIT sequence OVER cp USING ring",
        ROTARY,
        {},
    ),
    "ring with storage": (
        4,
        "MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ring\nSTORE params, grads, states OVER dp, cp",
        LEARNED,
        {},
    ),
    "experts": (4, "MESH ep 4\nSPLIT batch OVER ep\nSPLIT experts OVER ep", EXPERTS, {}),
    "experts of the same tokens": (2, "MESH ep 2\nSPLIT experts OVER ep", EXPERTS, {}),
    "experts in tensors": (
        4,
        "MESH ep 2, tp 2\nSPLIT batch OVER ep\nSPLIT experts OVER ep\nSPLIT heads, mlp, vocab OVER tp",
        EXPERTS,
        {},
    ),
    "experts in storage": (
        8,
        "MESH dp 4, ep 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep\nSTORE params, grads, states OVER dp",
        EXPERTS,
        {},
    ),
    "gpipe": (2, "MESH pp 2\nSPLIT layers OVER pp USING gpipe MICROBATCHES 4", LEARNED, {}),
    "1f1b on four": (4, "MESH pp 4\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 8", ROTARY, {}),
    "interleaved": (
        2,
        "MESH pp 2\nSPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 4",
        LEARNED,
        {},
    ),
    "breadth first": (2, "MESH pp 2\nSPLIT layers OVER pp USING looped_bfs(2) MICROBATCHES 4", ROTARY, {}),
    "interleaved zero bubble": (
        2,
        "MESH pp 2\nSPLIT layers OVER pp USING interleaved_zero_bubble(2) MICROBATCHES 4",
        LEARNED,
        {},
    ),
    "dualpipev": (2, "MESH pp 2\nSPLIT layers OVER pp USING dualpipev MICROBATCHES 4", LEARNED, {}),
    "uneven stages": (
        2,
        "MESH pp 2\nSPLIT layers OVER pp MICROBATCHES 4\nPLACE layers BETWEEN 0 AND 2 ON pp 0",
        ROTARY,
        {},
    ),
    "stages in storage": (
        4,
        "MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 4\nSTORE params, grads, states OVER dp",
        LEARNED,
        {},
    ),
    "stages and experts": (
        8,
        "MESH pp 2, dp 2, ep 2\nSPLIT layers OVER pp MICROBATCHES 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep",
        EXPERTS,
        {},
    ),
    "stages and rings": (
        8,
        "MESH pp 2, cp 2, tp 2\nSPLIT layers OVER pp MICROBATCHES 4\nSPLIT sequence OVER cp USING ring\n"
        "SPLIT heads, mlp, vocab OVER tp",
        ROTARY,
        {},
    ),
    "mean of apart": (
        2,
        "MESH site 2\nSPLIT batch OVER site\nAVERAGE params OVER site EVERY 1 STEPS",
        ROTARY,
        {},
    ),
    "apart over two axes": (
        4,
        "MESH a 2, b 2\nSPLIT batch OVER b, a\nAVERAGE params OVER a EVERY 1 STEPS\n"
        "AVERAGE params OVER b EVERY 2 STEPS USING nesterov(0.5)",
        LEARNED,
        {},
    ),
    "apart in tensors": (
        4,
        "MESH site 2, tp 2\nSPLIT batch OVER site\nSPLIT heads, mlp, vocab OVER tp\n"
        "AVERAGE params OVER site EVERY 2 STEPS",
        LEARNED,
        {},
    ),
}
"""The same; with those above more than sixty."""


def _check(layout: Layout, crew_of: Callable[[int], Crew]) -> None:
    devices, text, fields, more = layout
    verdict = verify(question(small_plan(text, devices, **more, **fields)), crew_of(devices))
    assert verdict.divergence is None
    assert verdict.unplanned == ()
    assert verdict.num_tensors > 100
    assert verdict.largest_error < 1e-5


@pytest.mark.parametrize("name", FAST)
def test_equals_one_device(name: str, crew_of: Callable[[int], Crew]) -> None:
    """A sum too few or too many in a layout would train another model and show no error."""
    _check(FAST[name], crew_of)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_equals_one_device_in_every_layout(name: str, crew_of: Callable[[int], Crew]) -> None:
    """As above, for layouts that users combine less often."""
    _check(SLOW[name], crew_of)
