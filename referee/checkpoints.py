"""Is every checkpoint of a run whole, and signed by that run?

    python referee/checkpoints.py RUN [RUN ...]

Every digest and the signature are computed here anew, from what docs/checkpoints.md says of the format. The key is read
from the run's own key file, or given by --key FILE.
"""

import argparse
import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import Any

from verdicts import RefereeError, Verdict, exit_with

GUARANTEE = "a checkpoint is what its run has written, and all of it"
KEY_FILE = "checkpoint-key.json"


def canonical(document: dict[str, Any]) -> bytes:
    """The text that digests and signatures are of."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """A document with fields left out."""
    return {name: value for name, value in document.items() if name not in names}


def judge_checkpoint(folder: Path, run: str, key: bytes, verdict: Verdict) -> None:
    """Note what holds of one checkpoint."""
    name = folder.name
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        verdict.check(False, f"{name}/manifest.json can be read: {error}")
        return
    signature = manifest.get("signature", {})
    mark = hmac.new(
        key, b"trimtab-checkpoint manifest 1\n" + canonical(without(manifest, "signature")), "sha256"
    )
    key_name = hashlib.sha256(b"trimtab-checkpoint key 1\n" + key).hexdigest()[:16]
    verdict.check(signature.get("key") == key_name, f"{name}/manifest.json is signed with key {key_name}")
    verdict.check(signature.get("value") == mark.hexdigest(), f"{name}/manifest.json says what was signed")
    digest = hashlib.sha256(canonical(without(manifest, "files", "digest", "signature"))).hexdigest()
    verdict.check(manifest.get("digest") == digest, f"{name}/manifest.json has its own digest")
    verdict.check(manifest.get("run") == run, f"{name} is of run {run}")
    verdict.check(f"step-{manifest.get('step')}" == name, f"{name} is of the step that it is called after")
    for entry in manifest["files"]:
        verdict.check(*judge_file(folder / entry["name"], entry))


def judge_file(path: Path, entry: dict[str, Any]) -> tuple[bool, str]:
    """Whether a file has the bytes that its manifest lists, chunk by chunk."""
    source = f"{path.parent.name}/{path.name}"
    try:
        contents = path.read_bytes()
    except OSError as error:
        return False, f"{source} is there: {error.strerror}"
    chunks = entry["chunks"]
    found, position, size = [], 0, chunks["head_bytes"]
    while position < len(contents) or not found:
        found.append(hashlib.sha256(contents[position : position + size]).digest())
        position, size = position + size, chunks["chunk_bytes"]
    holds = (
        len(contents) == entry["size_bytes"]
        and [digest.hex() for digest in found] == chunks["sha256"]
        and hashlib.sha256(b"".join(found)).hexdigest() == entry["sha256"]
    )
    return holds, f"{source}: {len(contents)} bytes in {len(found)} chunks have their digests"


def key_of(run: Path, given: Path | None) -> tuple[str, bytes]:
    """The run's identity, and its key.

    Raises: RefereeError if there is none.
    """
    try:
        document = json.loads((run / KEY_FILE).read_text(encoding="utf-8"))
        text = given.read_text(encoding="utf-8").strip() if given else document["key"]
        return document["run"], bytes.fromhex(text)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefereeError(f"{run.name} has no key that can be read: {error!r}") from error


def main() -> int:
    """Referee; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the key, where the run's folder has it not")
    options = parser.parse_args()
    verdict = Verdict(GUARANTEE)
    for run in options.runs:
        identity, key = key_of(run, options.key)
        steps = [path for path in (run / "checkpoints").iterdir() if re.fullmatch(r"step-[0-9]+", path.name)]
        verdict.check(bool(steps), f"{run.name} has {len(steps)} checkpoints")
        for folder in sorted(steps, key=lambda path: int(path.name.partition("-")[2])):
            judge_checkpoint(folder, identity, key, verdict)
    return verdict.conclude()


if __name__ == "__main__":
    exit_with(main)
