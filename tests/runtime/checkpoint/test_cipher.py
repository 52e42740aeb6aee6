"""Nobody reads a checkpoint without the project's key, and nothing in it can be moved."""

import hashlib
import json
import os
import secrets
import shutil
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from trimtab.ledger.manifests import CheckpointError
from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint.chunks import CHUNK_BYTES, digest_of
from trimtab.runtime.checkpoint.cipher import (
    TAG_BYTES,
    CipherError,
    about,
    new_secret,
    opener,
    sealer,
    unwrap,
    wrap,
)
from trimtab.runtime.checkpoint.contents import open_contents
from trimtab.runtime.checkpoint.errors import EncryptionError
from trimtab.runtime.checkpoint.events import Saved
from trimtab.runtime.checkpoint.exporting import export_model
from trimtab.runtime.checkpoint.keyring import open_keyring
from trimtab.runtime.checkpoint.rewrapping import rewrap
from trimtab.runtime.checkpoint.saver import Saver
from trimtab.runtime.checkpoint.signing import Key, signed
from trimtab.runtime.checkpoint.store import newest_complete, verify_checkpoint

ROWS = CHUNK_BYTES // 4 + 1000
"""One weight spans two chunks."""
STATE = {
    part: {"a": torch.full((3, 5), 7.25), "w": torch.arange(1.0 * ROWS)} for part in ("parameters", "exp_avg")
}
BOUND = about("run", 2, "model.safetensors")


def new_key():
    return Key(secret=secrets.token_bytes(32))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with an encrypted checkpoint, and its keys. Tests that change it put it right again."""
    run = tmp_path_factory.mktemp("run")
    keys = open_keyring(run, sealing=new_key())
    with closing(Saver(run / "checkpoints", STATE, keys=keys)) as saver:
        for step in (1, 2):
            saver.stage(step, STATE, {"step": step}, retention=Retention(newest=2))
            (event,) = saver.drain(60.0)
            assert isinstance(event, Saved)
    found = sum(path.stat().st_size for path in (run / "checkpoints" / "step-2").glob("*.safetensors"))
    assert event.size_bytes == found
    return run / "checkpoints", keys


@pytest.mark.process
def test_what_was_saved_is_what_loads(kit, run, tmp_path):
    """Encryption that loses a bit is worse than none."""
    root, keys = run
    assert kit.same_bits(kit.load(root / "step-2", expected=STATE, keys=keys).state, STATE)
    assert verify_checkpoint(root / "step-2", keys) == []
    export_model(root / "step-2", tmp_path / "weights", keys)
    assert (tmp_path / "weights").stat().st_size > 4 * ROWS


@pytest.mark.process
def test_a_part_of_a_tensor_is_read_from_its_chunks(run):
    """A rank of another layout would decrypt the whole file, and need room for it."""
    root, keys = run
    first = CHUNK_BYTES // 4 - 10
    with open_contents(root / "step-2", keys) as contents:
        found = np.empty(20, dtype=np.float32)
        contents.copy("parameters", "w", ((first, first + 20),), found)
    assert found.tolist() == list(range(first, first + 20))


@pytest.mark.process
def test_nothing_of_the_weights_stands_in_the_files(run):
    """The files would be plain under another name."""
    root, _ = run
    for path in (root / "step-2").glob("*.safetensors"):
        body = path.read_bytes()
        assert STATE["parameters"]["a"].numpy().tobytes() not in body
        assert b'"dtype"' not in body


@pytest.mark.process
def test_no_key_serves_two_files(run):
    """Equal chunks would be equal on disk, and two saves under one nonce give the difference of the weights away."""
    root, _ = run
    sealed = {}
    for step in (1, 2):
        for name in ("model.safetensors", "optimizer.safetensors"):
            sealed[step, name] = hashlib.sha256((root / f"step-{step}" / name).read_bytes()[-1000:]).digest()
    assert len(set(sealed.values())) == len(sealed)
    wrapped = [
        entry["cipher"]["wrapped"]
        for step in (1, 2)
        for entry in json.loads((root / f"step-{step}" / "manifest.json").read_text())["files"]
    ]
    assert len(set(wrapped)) == len(wrapped)


@pytest.mark.process
def test_a_wrong_key_says_so_and_a_missing_one_too(run):
    """'Damaged' would send its owner to look for a fault of the disk; passing it over would go back in the run."""
    root, keys = run
    wrong = replace(keys, sealing=new_key())
    message = f"wrong key: encrypted with key {keys.sealing.id}, the one given is {wrong.sealing.id}"
    with pytest.raises(EncryptionError, match=rf"step-2/model\.safetensors: {message}"):
        newest_complete(root, wrong)
    assert message in str(verify_checkpoint(root / "step-2", wrong)[0])
    with pytest.raises(EncryptionError, match=f"encrypted with key {keys.sealing.id}, and none is given"):
        newest_complete(root, replace(keys, sealing=None))


@pytest.mark.process
@pytest.mark.parametrize("harm", ["order", "last chunk gone", "other step", "other file"])
def test_chunks_stay_where_they_were_written(run, tmp_path, harm):
    """Even somebody who has the run's key, and signs a manifest anew, cannot put the pieces together otherwise."""
    root, keys = run
    folder = tmp_path / "step-2"
    shutil.copytree(root / "step-2", folder)
    document = json.loads((folder / "manifest.json").read_text())
    entry = document["files"][0]
    body, chunks = (folder / entry["name"]).read_bytes(), entry["chunks"]
    head = chunks["head_bytes"]
    pieces = [body[:head], body[head : head + chunks["chunk_bytes"]], body[head + chunks["chunk_bytes"] :]]
    if harm == "order":
        swapped = pieces[1][: len(pieces[2])]  # of one size, so that sizes fit
        pieces = [pieces[0], pieces[1], swapped]
    elif harm == "last chunk gone":
        pieces.pop()
    elif harm == "other step":
        pieces = _pieces((root / "step-1" / entry["name"]).read_bytes(), chunks)
    else:
        pieces = _pieces(
            (root / "step-2" / document["files"][1]["name"]).read_bytes(), document["files"][1]["chunks"]
        )
        chunks["head_bytes"] = len(pieces[0])
    (folder / entry["name"]).write_bytes(b"".join(pieces))
    chunks["sha256"] = [hashlib.sha256(piece).hexdigest() for piece in pieces]
    entry |= {"sha256": digest_of(chunks["sha256"]), "size_bytes": sum(map(len, pieces))}
    (folder / "manifest.json").write_text(json.dumps(signed(document, keys.signing)))
    with (
        pytest.raises(CheckpointError, match=r"step-2/model\.safetensors: it does not decrypt"),
        open_contents(folder, keys) as contents,
    ):
        contents.check()


def _pieces(body, chunks):
    head, size = chunks["head_bytes"], chunks["chunk_bytes"]
    return [body[:head], body[head : head + size], body[head + size :]]


@pytest.mark.process
def test_a_new_project_key_opens_and_the_old_one_does_not(kit, run):
    """S-SEC-04: a key that is known too widely must be changeable without writing terabytes."""
    root, keys = run
    new = new_key()
    folder = root / "step-2"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert rewrap(folder, keys, new) == 2
    assert rewrap(folder, keys, new) == 0  # after a kill it is called again
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")} == before
    renewed = replace(keys, sealing=new)
    assert kit.same_bits(kit.load(folder, keys=renewed).state, STATE)
    with pytest.raises(
        EncryptionError, match=f"encrypted with key {new.id}, the one given is {keys.sealing.id}"
    ):
        kit.load(folder, keys=keys)
    with pytest.raises(EncryptionError, match="wrong key"):
        rewrap(root / "step-1", replace(keys, sealing=new_key()), new)
    assert rewrap(folder, renewed, keys.sealing) == 2
    assert sorted(os.listdir(folder)) == ["manifest.json", "model.safetensors", "optimizer.safetensors"]


def test_a_chunk_opens_at_its_place_alone():
    """Number, end, file, step and run are all bound."""
    secret, plain = new_secret(), memoryview(b"weights")
    sealed = memoryview(sealer(secret, BOUND)(3, False, plain))
    assert len(sealed) == len(plain) + TAG_BYTES
    assert opener(secret, BOUND)(3, False, sealed) == plain
    for number, is_last, bound in (
        (4, False, BOUND),
        (3, True, BOUND),
        (3, False, about("other", 2, "model.safetensors")),
        (3, False, about("run", 3, "model.safetensors")),
        (3, False, about("run", 2, "model-1.safetensors")),
    ):
        with pytest.raises(CipherError):
            opener(secret, bound)(number, is_last, sealed)
    with pytest.raises(CipherError):
        opener(secret, BOUND)(3, False, sealed[:-1])
    with pytest.raises(CipherError):
        opener(secret, BOUND)(3, False, sealed[:3])


def test_a_wrapped_key_opens_for_its_file_alone():
    """A file's key under another file's name would open what was put there."""
    secret, key = new_secret(), new_key()
    wrapped = wrap(secret, key, BOUND)
    assert unwrap(wrapped, key, BOUND) == secret
    for other, bound in ((new_key(), BOUND), (key, about("run", 2, "optimizer.safetensors"))):
        with pytest.raises(CipherError):
            unwrap(wrapped, other, bound)
