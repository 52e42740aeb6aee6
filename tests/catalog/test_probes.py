"""A probe of a machine as a document."""

import json
from dataclasses import replace

import pytest

from trimtab.catalog import CollectiveTime, Pair, Probe, ProbedRun, ProbeError, read_probe

PROBE = Probe(
    taken_at="2026-11-30T12:00:00+00:00",
    versions={"torch": "2.13.0"},
    compute="fp32",
    num_devices=4,
    memory_bytes=4 * 10**9,
    flops_per_s=(2.5e11, 2.4e11, 1.2e11, 2.5e11),
    memory_bytes_per_s=(4e10, 4e10, 4e10, 4e10),
    attention_flops_per_s=(1e11, 1.1e11, 0.6e11, 1e11),
    kernel_s=2e-6,
    start_s=1.5e-3,
    link_bytes_per_s=3e9,
    collectives=(CollectiveTime(name="all_reduce", ranks=4, size_bytes=1024, seconds=1e-4),),
    pairs=(Pair(first=0, second=1, latency_s=3e-5, bytes_per_s=3.8e9),),
    runs=(ProbedRun(name="replicas", columns={"layers": 4.0}, step_s=0.2),),
)


def test_it_is_read_as_it_was_written():
    assert read_probe(json.dumps(PROBE.document()), source="here.json") == PROBE


def test_a_slow_rank_is_named():
    assert PROBE.slow_ranks == (2,)
    assert replace(PROBE, flops_per_s=(2.5e11, 2.3e11, 2.4e11, 2.2e11)).slow_ranks == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 2, "pairs": 3}'])
def test_another_document_is_refused(text):
    with pytest.raises(ProbeError, match=r"here\.json: not a probe of a machine .*trimtab probe --out FILE"):
        read_probe(text, source="here.json")


def test_another_version_is_refused():
    text = json.dumps({**PROBE.document(), "version": 9})
    with pytest.raises(ProbeError, match="a probe of version 9; this Trimtab reads version 2"):
        read_probe(text, source="here.json")
