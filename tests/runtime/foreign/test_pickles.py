"""S-SEC-03: another system's checkpoint is read, and nothing in it is run. The bombs are real ones."""

import builtins
import io
import os
import pickle
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from trimtab.runtime.foreign.dcp import METADATA_FILE, DcpFolder
from trimtab.runtime.foreign.errors import ForeignError

BOX = ((0, 4), (0, 3))


class Bomb:
    """Calls something when it is unpickled."""

    def __init__(self, call, *arguments):
        self._what = call, arguments

    def __reduce__(self):
        return self._what


@pytest.fixture
def mark(tmp_path):
    """What a bomb leaves behind."""
    return tmp_path / "mark"


@pytest.fixture
def saved(tmp_path):
    """A checkpoint that torch has written."""
    folder = tmp_path / "saved"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is there
        dcp.save({"w": torch.arange(12.0).view(4, 3), "step": 5}, checkpoint_id=folder, no_dist=True)
    return folder


def change(folder, **fields):
    """Write the metadata anew, with fields replaced."""
    found = pickle.loads((folder / METADATA_FILE).read_bytes())
    assert isinstance(found, Metadata)
    for name, value in fields.items():
        setattr(found, name, value)
    (folder / METADATA_FILE).write_bytes(pickle.dumps(found))


def bombs(mark):
    """By the name that the message must give."""
    return {
        "posix.system": Bomb(os.system, f"touch {mark}"),
        "posix.mkdir": Bomb(os.mkdir, str(mark)),
        "builtins.eval": Bomb(eval, f"__import__('os').mkdir({str(mark)!r})"),
        "builtins.exec": Bomb(exec, f"__import__('os').mkdir({str(mark)!r})"),
        "builtins.getattr": Bomb(getattr, os, "system"),
        "subprocess.check_call": Bomb(subprocess.check_call, ["touch", str(mark)]),
        "torch.serialization.load": Bomb(torch.load, io.BytesIO(b"")),
        "pathlib.Path.touch": None,
    }


def test_what_is_whole_is_read(saved):
    """A reader that refuses everything is safe and useless."""
    folder = DcpFolder(saved)
    assert list(folder.tensors) == ["w"]
    assert torch.equal(folder.read("w", BOX), torch.arange(12.0).view(4, 3))
    assert folder.read("w", ((1, 3), (2, 3))).tolist() == [[5.0], [8.0]]


@pytest.mark.parametrize("name", ["posix.system", "posix.mkdir", "builtins.eval", "builtins.exec",
                                  "subprocess.check_call"])  # fmt: skip
@pytest.mark.parametrize("where", ["whole", "planner_data", "state_dict_metadata", "storage_meta"])
def test_a_bomb_in_the_metadata_does_not_go_off(saved, mark, name, where):
    """Whoever sends a checkpoint would run what he likes as the user who imports it."""
    bomb = bombs(mark)[name]
    if where == "whole":
        (saved / METADATA_FILE).write_bytes(pickle.dumps(bomb))
    else:
        change(saved, **{where: {"w": bomb}})
    with pytest.raises(ForeignError, match=rf"names {name}, which metadata has no use for; nothing"):
        DcpFolder(saved)
    assert not mark.exists()
    pickle.loads(
        (saved / METADATA_FILE).read_bytes()
    )  # the bomb is live: so torch's own reader would have run it
    assert mark.exists()


def test_a_bomb_in_a_piece_does_not_go_off(saved, mark):
    """The files of pieces are pickles as well."""
    contents = io.BytesIO()
    torch.save({"w": Bomb(os.mkdir, str(mark))}, contents)
    folder = DcpFolder(saved)
    (piece,) = folder.tensors["w"].pieces
    body = (saved / piece.file).read_bytes()[: piece.offset_bytes] + contents.getvalue()
    (saved / piece.file).write_bytes(body)
    change(saved, storage_data=_longer(saved, len(contents.getvalue())))
    with pytest.raises(ForeignError, match="w: "):
        DcpFolder(saved).read("w", BOX)
    assert not mark.exists()
    torch.load(contents.seek(0) or contents, weights_only=False)
    assert mark.exists()


def _longer(folder, size_bytes):
    found = pickle.loads((folder / METADATA_FILE).read_bytes()).storage_data
    for place in found.values():
        place.length = size_bytes
    return found


@pytest.mark.parametrize(
    "contents",
    [
        b"cposix\nsystem\n(S'touch {mark}'\ntR.",  # protocol 0
        b"(S'touch {mark}'\niposix\nsystem\n.",  # INST
        b"\x80\x02cbuiltins\ngetattr\n(cos\nS'system'\ntR(S'touch {mark}'\ntR.",
        b"\x80\x02ctorch\nload\n(S'{mark}'\ntR.",
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nos.system\n(S'touch {mark}'\ntR.",
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}(S'__class__'\nctorch\nfloat32\nub(S'a'\ntR.",
        b"\x80\x02ctorch\nfloat32\n(S'touch {mark}'\ntR.",
        b"\x80\x02\x82\x01.",  # a registered extension
        b"\x80\x02Pcall\n.",  # an object from outside
        b"\x80\x02N.",
        b"",
        b"not a pickle",
    ],
)
def test_programs_written_by_hand_do_not_run(saved, mark, contents):
    """A pickle need not be one that Python would write."""
    (saved / METADATA_FILE).write_bytes(contents.replace(b"{mark}", str(mark).encode()))
    with pytest.raises(ForeignError, match=r"\.metadata: cannot be imported"):
        DcpFolder(saved)
    assert not mark.exists()


def test_stand_ins_hold_values_and_do_nothing():
    """A class that the list names must not lead to one that it does not."""
    from trimtab.runtime.foreign import pickles

    for found in pickles._ALLOWED.values():
        assert found.__module__ == pickles.__name__
    assert not {found for found in pickles._ALLOWED.values() if found.__name__ in dir(builtins)}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../outside", "could lead outside"),
        ("/etc/passwd", "could lead outside"),
        ("absent", "w: "),
        ("link", "w: "),
    ],
)
def test_pieces_stand_in_the_folder(saved, name, message):
    """S-SEC-01: a checkpoint from elsewhere would read any file of the machine."""
    (saved / "link").symlink_to(saved / "__0_0.distcp")
    found = pickle.loads((saved / METADATA_FILE).read_bytes()).storage_data
    for place in found.values():
        place.relative_path = name
    change(saved, storage_data=found)
    with pytest.raises(ForeignError, match=message):
        DcpFolder(saved).read("w", BOX)


@pytest.mark.parametrize("cut", [1, 100, 1000])
def test_a_cut_file_is_named(saved, cut):
    """It would be half of a tensor."""
    path = saved / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ForeignError, match=r"__0_0\.distcp"):
        DcpFolder(saved).read("w", BOX)


@pytest.mark.parametrize("cut", [1, 50, 500])
def test_cut_metadata_is_named(saved, cut):
    """As for the files."""
    path = saved / METADATA_FILE
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ForeignError, match=r"\.metadata: cannot be imported"):
        DcpFolder(saved)


def test_pieces_that_do_not_make_up_a_tensor_are_refused(saved):
    """Elements that nobody wrote would be whatever memory held."""
    found = pickle.loads((saved / METADATA_FILE).read_bytes()).state_dict_metadata
    found["w"].size = torch.Size([8, 3])
    change(saved, state_dict_metadata=found)
    with pytest.raises(ForeignError, match=r"the pieces of w have 12 elements, its shape is \[8, 3\]"):
        DcpFolder(saved)


def test_a_folder_that_is_none_is_named(tmp_path):
    """The step's folder is meant, not the one above it."""
    with pytest.raises(ForeignError, match=r"\.metadata: No such file"):
        DcpFolder(Path(tmp_path))
