import fcntl
import json
import os

import pytest
import safetensors.torch

from trimtab.ledger.manifests import CheckpointError, UnsupportedFormatError, seal
from trimtab.runtime.checkpoint.errors import UnsafePathError
from trimtab.runtime.checkpoint.exporting import export_model
from trimtab.runtime.checkpoint.store import (
    OpenCheckpoint,
    find_checkpoints,
    look_until_still,
    newest_complete,
    resolve_inside,
    set_aside,
    verify_checkpoint,
)

FILES = ["model.safetensors", "optimizer.safetensors", "manifest.json"]

PAYLOADS = [
    "..", "../x", "../../etc/passwd", "a/../../x", "a/..", "./a", ".", "", "/", "//", "/etc/passwd", "//etc/passwd",
    "a//b", "a/", "/a", "%2e%2e/x", "..%2fx", "%2e%2e%2fx", "%252e%252e/x", "..%c0%afx", "..\\x", "a\\..\\x",
    "C:\\x", "\\\\server\\x", "file:///etc/passwd", "file:x", "http://x/y", "s3://bucket/x", "x?../../y", "x#../y",
    "x?file=/etc/passwd", "a\0b", "a\n", "a\r\n../x", " ..", ".. /x", "~/x", "~root", ".hidden", ".ssh/id_rsa",
    "..../x", "a/.../b", "$HOME", "`id`", "\u2025/x", "\uff0e\uff0e/x", "a\u2215b", "step-1/../../x",
]  # fmt: skip


@pytest.mark.parametrize("name", PAYLOADS)
def test_names_that_could_lead_outside_are_refused(tmp_path, name):
    """S-SEC-01: an artifact's name from a URL would read any file of the machine."""
    with pytest.raises(UnsafePathError, match="is not a plain name inside"):
        resolve_inside(tmp_path, name)


def test_plain_names_resolve_and_links_may_not_leave(tmp_path):
    """S-SEC-01: a plain name that is a link would read any file all the same."""
    root = tmp_path / "run"
    (root / "checkpoints").mkdir(parents=True)
    (root / "checkpoints" / "step-1").symlink_to("/etc")
    (root / "again").symlink_to(root / "checkpoints")
    with pytest.raises(UnsafePathError, match=r"leads out of .*, to /etc/passwd"):
        resolve_inside(root, "checkpoints/step-1/passwd")
    assert resolve_inside(root, "again/step-2") == root.resolve() / "checkpoints" / "step-2"


def test_newest_is_numeric_and_passes_over_torn_ones(kit, tmp_path):
    """S-CKP-08, S-CKP-12: the resume would die on a torn folder, or go back from 1000 to 900."""
    for step in (8, 900, 1000, 1100, 1200):
        kit.write(tmp_path, step, kit.state())
    (tmp_path / "step-1100" / "manifest.json").unlink()
    os.truncate(tmp_path / "step-1200" / "optimizer.safetensors", 100)
    (tmp_path / "step-1300.tmp-7").mkdir()
    newest = newest_complete(tmp_path, None)
    assert newest.folder == tmp_path / "step-1000"
    assert [warning.split(":")[0] for warning in newest.warnings] == [
        "passed over step-1300.tmp-7",
        "passed over step-1200/optimizer.safetensors",
        "passed over step-1100/manifest.json",
    ]


def test_looks_again_when_one_is_pruned_meanwhile(kit, tmp_path):
    """S-CKP-11: step 20 came and step 10 went in between: the run would seem to have no checkpoint at all."""
    kit.write(tmp_path, 20, kit.state())
    listings = iter([["step-10"], ["step-20"], ["step-20"]])
    found = look_until_still(
        lambda: next(listings),
        read=lambda path: (tmp_path / path).read_text(),
        size=lambda path: (tmp_path / path).stat().st_size,
    )
    assert [(checkpoint.step, checkpoint.is_complete) for checkpoint in found] == [(20, True)]


def test_run_without_checkpoints_starts_from_nothing(tmp_path):
    """The first start of a run would fail for want of a folder."""
    assert newest_complete(tmp_path / "absent", None).folder is None
    assert find_checkpoints(tmp_path) == ()


def test_newer_format_is_not_passed_over(kit, tmp_path):
    """S-CKP-18: an older Trimtab would silently go back and train the newer steps again."""
    kit.write(tmp_path, 10, kit.state())
    kit.write(tmp_path, 20, kit.state(), version="4.0")
    with pytest.raises(
        UnsupportedFormatError, match=r"step-20/manifest\.json: .*4\.0; this Trimtab reads 1\.x to 3\.x"
    ):
        newest_complete(tmp_path, None)


def test_whole_checkpoint_has_no_problems(kit, tmp_path):
    """``checkpoints verify`` would cry wolf."""
    assert verify_checkpoint(kit.write(tmp_path, 20, kit.state()), None) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("position", [0.0, 0.3, 0.9, 1.0])
def test_verify_names_the_file_with_a_flipped_bit(kit, tmp_path, name, position):
    """One bit of a weight is the sign of an exponent: the run would go on with garbage."""
    folder = kit.write(tmp_path, 20, kit.state(), extra={"seed": 7})
    kit.flip_bit(folder / name, position)
    assert [problem.file for problem in verify_checkpoint(folder, None)] == [f"step-20/{name}"]


def test_verify_names_every_file_that_is_not_whole(kit, tmp_path):
    """A user would repair one file and fail again at the next."""
    folder = kit.write(tmp_path, 20, kit.state())
    kit.flip_bit(folder / "model.safetensors", 0.5)
    (folder / "optimizer.safetensors").unlink()
    assert [str(problem) for problem in verify_checkpoint(folder, None)][1] == (
        "step-20/optimizer.safetensors: No such file or directory"
    )
    assert [problem.file for problem in verify_checkpoint(folder, None)] == [
        "step-20/model.safetensors",
        "step-20/optimizer.safetensors",
    ]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "absent", "empty"])
def test_what_is_no_plain_file_is_refused_by_name(kit, tmp_path, name, kind):
    """S-SEC-01: a link reads another file of the machine, and a pipe would hold up the resume for ever."""
    folder = kit.write(tmp_path, 20, kit.state())
    kept = (folder / name).rename(tmp_path / name)
    if kind == "link":
        (folder / name).symlink_to(kept)
    elif kind == "folder":
        (folder / name).mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "empty":
        (folder / name).touch()
    assert [problem.file for problem in verify_checkpoint(folder, None)] == [f"step-20/{name}"]
    assert newest_complete(tmp_path, None).folder is None


def test_checkpoint_that_is_a_link_is_refused(kit, tmp_path):
    """S-SEC-01: as for files."""
    kit.write(tmp_path / "elsewhere", 20, kit.state())
    (tmp_path / "step-20").symlink_to(tmp_path / "elsewhere" / "step-20")
    with pytest.raises(CheckpointError, match="step-20: Not a directory"):
        OpenCheckpoint(tmp_path / "step-20", None)


def test_emptied_part_is_a_problem_of_its_file(kit, tmp_path):
    """S-CKP-16: an optimizer file without moments is a well-formed file."""
    folder = kit.write(tmp_path, 20, kit.state())
    without = kit.state(parts=("parameters", "exp_avg"))
    kit.rewrite(folder, "optimizer.safetensors", kit.contents(without)["optimizer.safetensors"])
    (problem,) = verify_checkpoint(folder, None)
    assert (
        "step-20/optimizer.safetensors: part 'exp_avg_sq' has 0 tensors of 0 bytes, expected 3 of 140"
        in str(problem)
    )


def test_part_that_was_never_saved_is_a_problem(kit, tmp_path):
    """S-CKP-16: state that nobody meant to save must not be loaded either."""
    folder = kit.write(tmp_path, 20, kit.state())
    document = json.loads((folder / "manifest.json").read_text())
    del document["parts"][2]
    (folder / "manifest.json").write_text(json.dumps(seal(document)))
    assert "part 'exp_avg_sq' is not in the manifest" in str(verify_checkpoint(folder, None)[0])


def test_export_gives_logical_names_and_replaces_in_one_act(kit, tmp_path):
    """Others could not load the weights, or would find half of them."""
    state = kit.state()
    target = tmp_path / "model.safetensors"
    target.write_text("older")
    export_model(kit.write(tmp_path, 20, state), target, None)
    exported = safetensors.torch.load_file(target)
    assert kit.same_bits({"parameters": exported}, {"parameters": state["parameters"]})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "step-20"]


def test_export_of_a_damaged_file_leaves_the_target_alone(kit, tmp_path):
    """A user's good file would be replaced by a bad one."""
    folder = kit.write(tmp_path, 20, kit.state())
    kit.flip_bit(folder / "model.safetensors", 0.9)
    target = tmp_path / "weights"
    target.write_text("older")
    with pytest.raises(CheckpointError, match=r"step-20/model\.safetensors: damaged"):
        export_model(folder, target, None)
    assert target.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-20", "weights"]


def test_checkpoint_set_aside_counts_no_more_and_stays(kit, tmp_path):
    """After a rollback to 10 the run would resume from 20 again; deleting it could not be undone."""
    for step in (10, 20):
        kit.write(tmp_path, step, kit.state())
    assert set_aside(tmp_path, 20) == tmp_path / "step-20.set-aside-1"
    kit.write(tmp_path, 20, kit.state())
    aside = set_aside(tmp_path, 20)
    assert aside == tmp_path / "step-20.set-aside-2"
    assert (aside / "manifest.json").exists()
    assert newest_complete(tmp_path, None).folder == tmp_path / "step-10"


def test_checkpoint_is_locked_while_it_is_read(kit, tmp_path):
    """S-CKP-11: pruning would take the files away from under a reader."""
    folder = kit.write(tmp_path, 20, kit.state())
    fd = os.open(folder, os.O_RDONLY)
    with OpenCheckpoint(folder, None), OpenCheckpoint(folder, None), pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(CheckpointError, match="it is being removed"):
        OpenCheckpoint(folder, None)
    os.close(fd)
