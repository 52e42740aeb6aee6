import json

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.ledger.manifests import CheckpointError
from trimtab.runtime.checkpoint.tensorfile import header_of, parse_header, split_name, stored_name

shapes = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
        lambda name: name != "__metadata__"
    ),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    max_size=6,
)


def _file(header, body=b""):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return memoryview(len(text).to_bytes(8, "little") + text + body)


def _tensor(first, last, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


@given(shapes)
def test_header_comes_back(shapes):
    """A tensor found at another place than it was written to would hold its neighbour's values."""
    header, entries = header_of(shapes.items())
    contents = header + bytes(sum(entry.size_bytes for entry in entries))
    found = parse_header(memoryview(contents), "f")
    assert {entry.name: entry for entry in found} == {entry.name: entry for entry in entries}
    assert all(entry.offset_bytes >= len(header) for entry in entries)


def test_others_read_our_files_and_we_theirs(kit, tmp_path):
    """An export that only Trimtab opens is no export."""
    state = kit.state()
    (tmp_path / "ours").write_bytes(kit.contents(state)["model.safetensors"])
    theirs = safetensors.torch.load_file(tmp_path / "ours")
    assert kit.same_bits({"parameters": theirs}, {"parameters": state["parameters"]})
    safetensors.torch.save_file(state["parameters"], tmp_path / "theirs")
    contents = (tmp_path / "theirs").read_bytes()
    for entry in parse_header(memoryview(contents), "theirs"):
        body = bytearray(contents[entry.offset_bytes : entry.offset_bytes + entry.size_bytes])
        found = torch.frombuffer(body, dtype=torch.float32).view(entry.shape)
        assert torch.equal(found, state["parameters"][entry.name])


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (memoryview(b"\x80\x04"), "2 bytes are too few"),
        (memoryview(b"\x80\x04\x95" + bytes(40)), "not a safetensors file: its header would have"),
        (memoryview((10**18).to_bytes(8, "little")), "its header would have 1000000000000000000 bytes"),
        (memoryview((9).to_bytes(8, "little") + b'{"a": 1}' + bytes(9)), "leaves the tensors unaligned"),
        (memoryview((4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc"), "not a safetensors file"),
        (memoryview((4).to_bytes(8, "little") + b"{nan"), "not strict JSON"),
        (_file([1]), "its header is no object"),
        (_file({"a": 1}), "'a' is not described as fp32"),
        (_file({"a": _tensor(0, 4, [2], "F16")}, bytes(4)), "'a' is not described as fp32"),
        (_file({"a": _tensor(0, 8, [1])}, bytes(8)), r"'a' of shape \[1\] has 8 bytes"),
        (_file({"a": _tensor(0, 4, [-1, -1])}, bytes(4)), r"'a' has shape \[-1, -1\]"),
        (_file({"a": _tensor(4, 8, [1])}, bytes(8)), "a gap or overlap before tensor 'a'"),
        (_file({"a": _tensor(0, 4, [1]), "b": _tensor(0, 4, [1])}, bytes(4)), "overlap before tensor 'b'"),
        (_file({"a": _tensor(0, 4, [1])}, bytes(8)), "but its tensors end at"),
        (_file({"a": _tensor(0, 8, [2])}, bytes(4)), "but its tensors end at"),
    ],
)
def test_what_is_no_tensor_file_is_refused_by_name(contents, message):
    """S-SEC-03: a crafted header would make the loader read memory that is not the tensor's."""
    with pytest.raises(CheckpointError, match=f"^model: .*{message}"):
        parse_header(contents, "model")


@pytest.mark.parametrize("part", ["parameters", "exp_avg"])
@pytest.mark.parametrize("name", ["head.weight", "a/b"])
def test_stored_names_come_back(part, name):
    """S-CKP-24: a moment would go to another parameter."""
    file = "model.safetensors" if part == "parameters" else "optimizer.safetensors"
    assert split_name(file, stored_name(part, name)) == (part, name)
