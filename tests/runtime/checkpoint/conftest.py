import hashlib
import json
import math
import os
import pickle
from dataclasses import dataclass

import pytest
import torch

from trimtab.ledger.manifests import FileEntry, Manifest, manifest_document, seal
from trimtab.runtime.checkpoint.contents import open_contents
from trimtab.runtime.checkpoint.loader import CheckpointState, shapes_of
from trimtab.runtime.checkpoint.staging import Layout

SHAPES = {"embedding.weight": (5, 4), "layers.0.mlp.up.weight": (3, 4), "layers.0.mlp.up.bias": (3,)}


@dataclass
class Loaded:
    """What a run would continue from."""

    step: int
    state: dict[str, dict[str, torch.Tensor]]
    extra: dict[str, object]


class Kit:
    """What several tests of checkpoints need."""

    def state(self, shapes=SHAPES, parts=("parameters", "exp_avg", "exp_avg_sq"), seed=0):
        generator = torch.Generator().manual_seed(seed)
        return {
            part: {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
            for part in parts
        }

    def contents(self, state):
        """The bytes of each file of a state, put together without the saver."""
        contents = {}
        for file in Layout.of(state).files:
            body = file.header
            for tensor in file.tensors:
                part, name = (
                    ("parameters", tensor.name) if "/" not in tensor.name else tensor.name.split("/", 1)
                )
                body += state[part][name].contiguous().numpy().tobytes()
            contents[file.name] = body
        return contents

    def write(self, root, step, state, extra=None, **changes):
        """A whole checkpoint, written without the saver; ``changes`` replace fields of the manifest."""
        folder = root / f"step-{step}"
        folder.mkdir(parents=True)
        contents = self.contents(state)
        for name, body in contents.items():
            (folder / name).write_bytes(body)
        manifest = Manifest(
            step=step,
            files=self.entries(contents),
            parts=Layout.of(state).parts,
            extra=extra or {},
            written_by="t",
            version=(1, 0),
        )
        (folder / "manifest.json").write_text(json.dumps(seal(manifest_document(manifest) | changes)))
        return folder

    def load(self, folder, expected=None, keys=None):
        """All of a checkpoint, as a run reads it that goes on from it."""
        with open_contents(folder, keys) as contents:
            if expected is not None:
                contents.check_shapes(shapes_of(expected))
            source = CheckpointState(contents)
            state = {
                part: {name: source.part(part).read(name) for name in tensors}
                for part, tensors in contents.shapes.items()
            }
            return Loaded(step=contents.step, state=state, extra=contents.extra)

    def entries(self, contents):
        return tuple(
            FileEntry(name=name, size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
            for name, body in contents.items()
        )

    def rewrite(self, folder, name, body):
        """Replace a file and make the manifest agree, as somebody who means harm would."""
        (folder / name).write_bytes(body)
        document = json.loads((folder / "manifest.json").read_text())
        for entry in document["files"]:
            if entry["name"] == name:
                entry["size_bytes"] = len(body)
                entry["sha256"] = hashlib.sha256(body).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(seal(document)))

    def flip_bit(self, path, position):
        """Change one bit of a file in place; ``position`` is a fraction of its length."""
        offset = min(math.floor(position * path.stat().st_size), path.stat().st_size - 1)
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x10]))

    def same_bits(self, one, other):
        """Whether two states have the same names and the same bits, so that NaN equals itself."""
        return {p: sorted(t) for p, t in one.items()} == {p: sorted(t) for p, t in other.items()} and all(
            torch.equal(tensor.view(torch.int32), other[part][name].view(torch.int32))
            for part, tensors in one.items()
            for name, tensor in tensors.items()
        )


class _Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self._mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self._mark),)


@pytest.fixture
def kit():
    return Kit()


@pytest.fixture
def payload(tmp_path):
    """A pickle that makes a folder when it is loaded, and that folder."""
    mark = tmp_path / "executed"
    return pickle.dumps(_Payload(mark)), mark
