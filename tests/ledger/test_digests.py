import array
import hashlib
import struct

import pytest

from trimtab.ledger.digests import WeightsDigest, weights_digest


def _floats(*values):
    return memoryview(array.array("f", values))


def test_digest_is_the_documented_byte_string():
    """A referee that recomputes the hash from an exported file would disagree with ``run --json``."""
    expected = hashlib.sha256(
        b"a" + struct.pack("<qqq", 2, 1, 2) + struct.pack("<ff", 1.0, 2.0)
        + b"b" + struct.pack("<q", 0) + struct.pack("<f", 3.0)
    )  # fmt: skip
    assert weights_digest([("b", (), _floats(3.0)), ("a", (1, 2), _floats(1.0, 2.0))]) == expected.hexdigest()


def test_digest_tells_signs_of_zero_and_shapes_apart():
    """Two runs that differ in one bit, or in one reshaped tensor, would be called the same."""
    digests = {
        weights_digest([("a", (2,), _floats(0.0, 1.0))]),
        weights_digest([("a", (2,), _floats(-0.0, 1.0))]),
        weights_digest([("a", (1, 2), _floats(0.0, 1.0))]),
        weights_digest([("b", (2,), _floats(0.0, 1.0))]),
    }
    assert len(digests) == 4


def test_wrong_size_and_repeated_name_are_refused():
    """A truncated or doubled (tied) tensor would give a hash that nobody can reproduce."""
    with pytest.raises(ValueError, match=r"'a' of shape \(3,\) has 8 bytes, expected 12"):
        weights_digest([("a", (3,), _floats(0.0, 1.0))])
    with pytest.raises(ValueError, match="'a' comes twice"):
        weights_digest([("a", (1,), _floats(0.0)), ("a", (1,), _floats(0.0))])


def test_tensors_out_of_order_are_refused():
    """One at a time nobody can sort them: the hash would depend on who sent first."""
    digest = WeightsDigest()
    digest.add("b", (1,), _floats(0.0))
    with pytest.raises(ValueError, match="'a' comes after 'b'"):
        digest.add("a", (1,), _floats(0.0))
