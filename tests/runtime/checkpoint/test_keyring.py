"""Who may say what a run goes on from? Those who have its key, and nobody else."""

import hashlib
import json
import os
import secrets
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
import torch

from trimtab.ledger.manifests import CheckpointError, seal
from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint.contents import open_contents
from trimtab.runtime.checkpoint.errors import SignatureError
from trimtab.runtime.checkpoint.events import Failed, Pruned
from trimtab.runtime.checkpoint.keyring import KEY_FILE, Keyring, find_key, open_keyring, read_keyring
from trimtab.runtime.checkpoint.saver import Company, Fault, Saver
from trimtab.runtime.checkpoint.signing import Key, signed
from trimtab.runtime.checkpoint.store import newest_complete, verify_checkpoint
from trimtab.terms import InputError

DEADLINE_S = 60.0
RANKS = (0, 1)
FILES = [f"{kind}-{rank}.safetensors" for kind in ("model", "optimizer") for rank in RANKS]


def pieces(rank, value=0.0, size=40):
    return {part: {f"w{rank}": torch.full((size,), float(value))} for part in ("parameters", "exp_avg")}


def save(root, steps, keys, *, fault=None, size=40, meanwhile=lambda into: None):
    """Checkpoints that two ranks write together; what the lead was told."""
    told = []
    with ExitStack() as stack:
        savers = [
            stack.enter_context(
                closing(
                    Saver(
                        root,
                        pieces(rank, size=size),
                        Company(
                            rank=rank, is_lead=not rank, others={} if rank else {1: pieces(1, size=size)}
                        ),
                        keys=keys,
                    )
                )
            )
            for rank in RANKS
        ]
        for step in steps:
            into = savers[0].open(step)
            for rank, saver in enumerate(savers):
                saver.stage(
                    step,
                    pieces(rank, step, size),
                    {},
                    retention=Retention(newest=2),
                    into=into,
                    fault=fault if rank else None,
                )
            meanwhile(root / into)
            savers[1].drain(DEADLINE_S)
            told += savers[0].drain(DEADLINE_S)
    return told


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run with two signed checkpoints, and its keys. Not to be changed."""
    run = tmp_path_factory.mktemp("run")
    keys = open_keyring(run)
    save(run / "checkpoints", (1, 2), keys)
    return run, keys


@pytest.fixture
def run(saved, tmp_path):
    """A copy of it."""
    shutil.copytree(saved[0], tmp_path / "run")
    return tmp_path / "run"


def load(folder, keys):
    """Everything, as a run reads it that goes on from it."""
    with open_contents(folder, keys) as contents:
        contents.check()
        return contents.step


def change(folder, **changes):
    """Rewrite fields of a manifest, with everything in it that can be made right without the key."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(seal(json.loads(path.read_text()) | changes)))


def _forge(folder, name):
    """Put other bytes into a file, and write a manifest in which every digest is right."""
    path = folder / name
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    document = json.loads((folder / "manifest.json").read_text())
    entry = next(entry for entry in document["files"] if entry["name"] == name)
    head = entry["chunks"]["head_bytes"]
    entry["chunks"]["sha256"] = [hashlib.sha256(part).hexdigest() for part in (body[:head], body[head:])]
    entry["sha256"] = hashlib.sha256(b"".join(map(bytes.fromhex, entry["chunks"]["sha256"]))).hexdigest()
    change(folder, files=document["files"])


@pytest.mark.process
@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "removed", "swapped"])
def test_every_file_that_is_harmed_is_refused_by_name(kit, saved, run, name, harm):
    """A run would go on from what nobody saved."""
    folder = run / "checkpoints" / "step-2"
    path, keys = folder / name, saved[1]
    if harm == "flipped":
        kit.flip_bit(path, 0.9)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif harm == "removed":
        path.unlink()
    else:
        shutil.copy(folder.with_name("step-1") / name, path)
    assert [problem.file for problem in verify_checkpoint(folder, keys)] == [f"step-2/{name}"]
    with pytest.raises(CheckpointError, match=f"^step-2/{name}"):
        load(folder, keys)


@pytest.mark.process
@pytest.mark.parametrize("name", FILES)
def test_a_forged_file_is_refused_though_every_digest_is_right(saved, run, name):
    """Whoever can write to the storage would decide what the run has learnt."""
    folder = run / "checkpoints" / "step-2"
    _forge(folder, name)
    (problem,) = verify_checkpoint(folder, saved[1])
    assert str(problem) == (
        "step-2/manifest.json: forged or damaged: its signature does not fit what it says"
    )
    with pytest.raises(SignatureError, match=r"step-2/manifest\.json: forged"):
        load(folder, saved[1])
    with pytest.raises(SignatureError, match=r"step-2/manifest\.json: forged"):
        newest_complete(folder.parent, saved[1])  # passing over it would go back in the run, in silence


@pytest.mark.process
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 2, "run": "0" * 32}, "forged"),
        ({"extra": {"seed": 8}}, "forged"),
        ({"parts": []}, "forged"),
        ({"step": 1}, "it is of step 1"),
    ],
)
def test_nothing_that_a_manifest_says_can_be_changed(saved, run, changes, message):
    """Another data position, another seed, fewer parts: each is another run."""
    folder = run / "checkpoints" / "step-2"
    change(folder, **changes)
    with pytest.raises(CheckpointError, match=f"step-2/manifest.json: .*{message}"):
        load(folder, saved[1])


@pytest.mark.process
def test_a_signature_cannot_be_taken_off(saved, run):
    """The older format has none: who calls a forged checkpoint old would be believed."""
    folder = run / "checkpoints" / "step-2"
    document = json.loads((folder / "manifest.json").read_text())
    del document["signature"]
    for version in ("3.0", "2.0", "1.0"):
        entries = [entry if version == "3.0" else _old(folder, entry) for entry in document["files"]]
        (folder / "manifest.json").write_text(
            json.dumps(seal(document | {"version": version, "files": entries}))
        )
        with pytest.raises(SignatureError, match="not signed, and this run signs"):
            load(folder, saved[1])


def _old(folder, entry):
    body = (folder / entry["name"]).read_bytes()
    return {"name": entry["name"], "size_bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


@pytest.mark.process
def test_a_checkpoint_of_another_run_is_refused_even_under_the_same_key(saved, run, tmp_path):
    """A project's key signs many runs: one of them would go on with the weights of another."""
    run_id, key = saved[1].run, saved[1].signing
    other = Keyring(run="f" * 32, signing=key)
    with pytest.raises(SignatureError, match=f"of another run: {run_id}, this one is {other.run}"):
        load(run / "checkpoints" / "step-2", other)


@pytest.mark.process
def test_a_wrong_key_says_so_and_a_missing_one_too(saved, run):
    """'Damaged' would send its owner to look for a fault of the disk."""
    folder, keys = run / "checkpoints" / "step-2", saved[1]
    wrong = Keyring(run=keys.run, signing=Key(secret=secrets.token_bytes(32)))
    message = f"wrong key: signed with key {keys.signing.id}, the one given is {wrong.signing.id}"
    with pytest.raises(SignatureError, match=message):
        load(folder, wrong)
    assert message in str(verify_checkpoint(folder, wrong)[0])
    with pytest.raises(SignatureError, match=f"signed with key {keys.signing.id}, and there is no key"):
        load(folder, None)


@pytest.mark.process
def test_forged_checkpoints_neither_count_nor_go(saved, run):
    """S-CKP-11: two forged ones would push the last good one out."""
    root, keys = run / "checkpoints", saved[1]
    for step in (8, 9):
        shutil.copytree(root / "step-2", root / f"step-{step}")
        forger = Keyring(run=keys.run, signing=Key(secret=bytes(32)))
        document = json.loads((root / f"step-{step}" / "manifest.json").read_text())
        sealed = seal(document | {"step": step})
        (root / f"step-{step}" / "manifest.json").write_text(json.dumps(signed(sealed, forger.signing)))
    told = save(root, (3,), keys)
    assert [event.step for event in told if isinstance(event, Pruned)] == [1]
    assert sorted(os.listdir(root)) == ["step-2", "step-3", "step-8", "step-9"]


@pytest.mark.process
def test_nobody_speaks_for_another_rank(tmp_path):
    """The lead signs what the others say of their files: a planted receipt would put a forged file into it."""

    def plant(into):
        (into / "rank-1.json").write_text(json.dumps({"step": 1, "files": []}))

    keys = open_keyring(tmp_path)
    (event,) = save(tmp_path / "checkpoints", (1,), keys, fault=Fault.SLOW, size=6_000_000, meanwhile=plant)
    assert isinstance(event, Failed)
    assert "rank-1.json does not bear the run's mark" in event.reason


def test_the_key_is_its_owners_alone_and_all_ranks_have_the_same(tmp_path):
    """Ranks start together: with two keys, one would refuse what the other has signed."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: open_keyring(tmp_path), range(8)))
    assert len({(keys.run, keys.signing) for keys in found}) == 1
    assert read_keyring(tmp_path) == found[0]
    assert os.listdir(tmp_path) == [KEY_FILE]
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert found[0].signing.secret.hex() not in repr(found[0])


def test_what_was_there_before_the_key_is_still_read_and_nothing_else(kit, tmp_path):
    """A run of an older release goes on; a checkpoint that is written in the old way afterwards does not count."""
    root = tmp_path / "checkpoints"
    kit.write(root, 10, kit.state())
    assert read_keyring(tmp_path) is None
    keys = open_keyring(tmp_path)
    with open_contents(root / "step-10", keys) as contents:
        assert contents.warnings == (
            "step-10 is not signed: an older Trimtab wrote it. Its files fit its manifest; who wrote that, nobody "
            "can say",
        )
    kit.write(root, 20, kit.state())
    with pytest.raises(SignatureError, match=r"step-20/manifest\.json: not signed"):
        newest_complete(root, keys)
    shutil.rmtree(root / "step-10")
    kit.write(root, 10, kit.state(seed=1))
    with pytest.raises(SignatureError, match=r"step-10/manifest\.json: not signed"):
        load(root / "step-10", keys)


def test_a_key_from_elsewhere(tmp_path, monkeypatch):
    """Where the run's folder is not the place for a secret."""
    text = secrets.token_hex(32)
    (tmp_path / "project.key").write_text(f"{text}\n")
    monkeypatch.setenv("PROJECT_KEY", text)
    key = find_key("file:project.key", tmp_path)
    assert find_key("env:PROJECT_KEY", tmp_path) == key == Key(secret=bytes.fromhex(text))
    keys = open_keyring(tmp_path, key)
    assert keys.signing == key
    assert text not in (tmp_path / KEY_FILE).read_text()
    with pytest.raises(InputError, match="signs with a key from elsewhere"):
        read_keyring(tmp_path)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("env:NO_SUCH_KEY", "the environment has no NO_SUCH_KEY"),
        ("file:absent", "cannot read the key .*absent: No such file"),
        ("file:short", "short: 8 characters that are no key; a key is 64 hexadecimal digits"),
        ("env:WORD", "environment variable WORD: 7 characters that are no key"),
    ],
)
def test_a_key_that_is_none_is_named_and_never_shown(tmp_path, monkeypatch, place, message):
    """S-SEC-04: the message ends in a log."""
    (tmp_path / "short").write_text("deadbeef")
    monkeypatch.setenv("WORD", "hunter2")
    with pytest.raises(InputError, match=message) as caught:
        find_key(place, tmp_path)
    assert "deadbeef" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": "a", "key": "zz", "unsigned": {}}'])
def test_a_key_file_that_is_none_is_named(tmp_path, text):
    """A new key would be made in its place, and every checkpoint refused."""
    (tmp_path / KEY_FILE).write_text(text)
    with pytest.raises(InputError, match=KEY_FILE):
        open_keyring(tmp_path)
