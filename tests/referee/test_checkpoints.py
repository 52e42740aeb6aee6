"""The referee of checkpoints holds on what is whole, and fails on every break."""

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint.keyring import KEY_FILE, open_keyring
from trimtab.runtime.checkpoint.saver import Saver

pytestmark = pytest.mark.process

REFEREE = Path(__file__).parents[2] / "referee" / "checkpoints.py"
STATE = {part: {"w": torch.arange(3_000_000.0)} for part in ("parameters", "exp_avg")}
"""More than one chunk."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with two checkpoints. Not to be changed."""
    run = tmp_path_factory.mktemp("run")
    with closing(Saver(run / "checkpoints", STATE, keys=open_keyring(run))) as saver:
        for step in (1, 2):
            saver.stage(step, STATE, {"step": step, "é": 1e-5}, retention=Retention(newest=2))
            saver.drain(60.0)
    return run


def judge(run):
    ended = subprocess.run(
        [sys.executable, str(REFEREE), str(run)], capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout.splitlines()[-1]


def test_whole_checkpoints_hold(run):
    """A referee that fails on everything shows nothing."""
    code, said = judge(run)
    assert (code, said) == (0, "HELD: a checkpoint is what its run has written, and all of it (15 checks)")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("flip", "model.safetensors: 12000128 bytes in 3 chunks have their digests"),
        ("cut", "model.safetensors: 12000127 bytes"),
        ("remove", "model.safetensors is there: No such file"),
        ("swap", "manifest.json says what was signed|step-2 is of the step"),
        ("extra", "manifest.json says what was signed"),
        ("key", "is signed with key"),
        ("unsigned", "is signed with key"),
    ],
)
def test_every_break_is_found(run, tmp_path, harm, message):
    """A referee that cannot fail shows nothing."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    folder = copy / "checkpoints" / "step-2"
    weights, manifest, key = folder / "model.safetensors", folder / "manifest.json", copy / KEY_FILE
    if harm == "flip":
        body = bytearray(weights.read_bytes())
        body[6_000_000] ^= 4
        weights.write_bytes(body)
    elif harm == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif harm == "remove":
        weights.unlink()
    elif harm == "swap":
        shutil.copy(folder.with_name("step-1") / "manifest.json", manifest)
    elif harm == "extra":
        manifest.write_text(manifest.read_text().replace("1e-05", "2e-05"))
    elif harm == "key":
        key.write_text(json.dumps(json.loads(key.read_text()) | {"key": "00" * 32}))
    else:
        document = json.loads(manifest.read_text())
        del document["signature"]
        manifest.write_text(json.dumps(document))
    code, said = judge(copy)
    assert code == 1
    assert any(part in said for part in message.split("|"))
