"""The wire: a message that arrives changed, or a foreign one that is believed, would corrupt a run."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy import wire
from trimtab.terms import Phase

MESSAGES = [
    wire.Hello(rank=1, incarnation=0, pid=7, proof="x", fingerprint={"torch": "2.13.0"}),
    wire.Parked(left_epoch=-1, committed=3, held=(0, 2), store_port=1234, t_ns=5),
    wire.Beat(step=3, phase=Phase.REDUCE, progress=9, waiting=True, t_ns=5),
    wire.Committed(epoch=2, step=3, t_ns=5, metrics={"loss": 2.5, "targets": 31}),
    wire.Form(
        epoch=2,
        members=(0, 2),
        active=(0, 2),
        store_host="127.0.0.1",
        store_port=9,
        step=3,
        source=2,
        is_healing=True,
        owners=(0, 2),
    ),
    wire.Fence(epoch=2, fault_ns=4, reason="rank 1 is lost"),
    wire.Trouble(epoch=2, error="reset", t_ns=5),
    wire.Stop(),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=8), st.integers(1, 50))
def test_messages_survive_any_cut_of_the_stream(messages: list[wire.Message], piece: int) -> None:
    """TCP delivers bytes in any pieces; a decoder that needs whole frames would lose a fence."""
    stream = b"".join(map(wire.encode, messages))
    decoder = wire.Decoder()
    found = [m for i in range(0, len(stream), piece) for m in decoder.feed(stream[i : i + piece])]
    assert found == messages


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b'["Nobody",{}]',
        b'["Stop",{"x":1}]',
        b'["Beat",{}]',
        b"\xff\xfe",
        b'["Stop",[]]',
        b"null",
    ],
)
def test_foreign_bytes_are_refused(body: bytes) -> None:
    """A port scanner or another version must get an error, not a crash somewhere else."""
    with pytest.raises(wire.WireError):
        list(wire.Decoder().feed(struct.pack(">I", len(body)) + body))


def test_a_huge_frame_is_refused_before_it_is_buffered() -> None:
    """Four bytes from a stranger must not make the agent reserve gigabytes."""
    with pytest.raises(wire.WireError, match="at most"):
        list(wire.Decoder().feed(struct.pack(">I", 1 << 31)))


def test_only_the_run_s_token_proves_a_rank() -> None:
    """A process of another run on the same host must not be taken for a rank of this one."""
    hello = wire.Hello(
        rank=1, incarnation=0, pid=1, proof=wire.prove("a", rank=1, incarnation=0), fingerprint={}
    )
    assert wire.is_proven(hello, "a")
    assert not wire.is_proven(hello, "b")
    assert not wire.is_proven(
        wire.Hello(rank=2, incarnation=0, pid=1, proof=hello.proof, fingerprint={}), "a"
    ), "a proof is good for one rank only"


def test_the_wire_holds_json_only() -> None:
    """Pickled objects would let a peer run code here."""
    frame = wire.encode(MESSAGES[0])
    assert json.loads(frame[4:])[0] == "Hello"
