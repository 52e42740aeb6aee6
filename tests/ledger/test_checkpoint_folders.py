import json

from trimtab.ledger.checkpoint_folders import list_checkpoints
from trimtab.ledger.manifests import FileEntry, Manifest, Part, manifest_document

SHA256 = "0123456789abcdef" * 4


def _manifest(step):
    return Manifest(
        step=step,
        files=(FileEntry(name="model.safetensors", size_bytes=104, sha256=SHA256),),
        parts=(Part(name="parameters", file="model.safetensors", num_tensors=2, size_bytes=40),),
        version=(1, 0),
    )


def _folder(*manifests, torn=()):
    files = {f"step-{m.step}/manifest.json": json.dumps(manifest_document(m)) for m in manifests}
    sizes = {f"step-{m.step}/{f.name}": f.size_bytes - (m.step in torn) for m in manifests for f in m.files}

    def read(path):
        if path not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return files[path]

    return {"read": read, "size": lambda path: sizes[path]}


def test_listing_is_numeric():
    """S-CKP-12: by text, step 900 is newer than step 1000."""
    steps = [1000, 8, 999, 100, 9, 101, 10, 99]
    found = list_checkpoints([f"step-{s}" for s in steps], **_folder(*[_manifest(s) for s in steps]))
    assert [c.step for c in found] == sorted(steps)
    assert all(c.is_complete for c in found)


def test_listing_tells_torn_and_unfinished_ones_and_why():
    """S-CKP-08: a torn folder picked as the newest would end the resume."""
    names = ["step-10", "step-20", "step-30", "step-40.tmp-77", "notes", "step-050", "step-1.set-aside-1"]
    found = list_checkpoints(names, **_folder(_manifest(10), _manifest(20), torn={20}))
    assert {c.name: str(c.error) for c in found if not c.is_complete} == {
        "step-20": "step-20/model.safetensors: 103 bytes, expected 104",
        "step-30": "step-30/manifest.json: No such file or directory",
        "step-40.tmp-77": "step-40.tmp-77: the save did not finish",
    }
    assert [c.name for c in found if c.is_complete] == ["step-10"]


def test_folder_renamed_to_another_step_is_not_complete():
    """A copy of step 10 called step-99 would make the run skip 89 steps."""
    folder = _folder(_manifest(10))
    found = list_checkpoints(
        ["step-99"], read=lambda _: folder["read"]("step-10/manifest.json"), size=folder["size"]
    )
    assert str(found[0].error) == "step-99/manifest.json: it is of step 10"
