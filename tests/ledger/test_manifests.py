import contextlib
import json
from dataclasses import replace

import pytest

from trimtab.ledger.manifests import (
    CheckpointError,
    FileEntry,
    Manifest,
    Part,
    UnsupportedFormatError,
    is_plain_file_name,
    manifest_document,
    parse_manifest,
    seal,
)

SHA256 = "0123456789abcdef" * 4


def _manifest(step=20, **changes):
    fields = {
        "step": step,
        "files": (FileEntry(name="model.safetensors", size_bytes=104, sha256=SHA256),),
        "parts": (Part(name="parameters", file="model.safetensors", num_tensors=2, size_bytes=40),),
        "extra": {"seed": 7, "data": {"epoch": 1}},
        "written_by": "0.1.0",
        "version": (1, 0),
    }
    return Manifest(**fields | changes)


def _text(**changes):
    return json.dumps(seal(manifest_document(_manifest()) | changes))


def test_manifest_comes_back_as_it_was_written():
    """A field lost on the way would be missing at resume."""
    assert parse_manifest(_text(), "m") == _manifest()


def test_no_flipped_bit_goes_unnoticed():
    """A data position that is off by a power of two would train on other samples than it says.

    Entries of files may change here: they do not fit their files then.
    """
    text = json.dumps(manifest_document(_manifest(extra={"lr": 0.25, "data": {"position": 4096}}))).encode()
    original = parse_manifest(text.decode(), "m")
    for position in range(len(text)):
        for bit in range(8):
            flipped = text[:position] + bytes([text[position] ^ (1 << bit)]) + text[position + 1 :]
            with contextlib.suppress(CheckpointError, UnicodeDecodeError):
                assert replace(parse_manifest(flipped.decode(), "m"), files=original.files) == original


def test_fields_added_later_have_defaults():
    """S-CKP-18: an upgrade would refuse every older checkpoint."""
    document = manifest_document(_manifest())
    del document["written_by"]
    assert parse_manifest(json.dumps(seal(document)), "m").written_by == ""


def test_newer_minor_version_with_unknown_fields_is_read():
    """S-CKP-18: going back to the release before would lose the run."""
    assert parse_manifest(_text(version="1.7", colour="blue"), "m").version == (1, 7)


def test_newer_major_version_is_refused_with_both_versions():
    """S-CKP-18: fields with a changed meaning would be taken for the old ones."""
    with pytest.raises(
        UnsupportedFormatError, match=r"version 4\.0; this Trimtab reads 1\.x to 3\.x; install a newer"
    ):
        parse_manifest(_text(version="4.0"), "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "format is 'other', expected 'trimtab-checkpoint'"),
        ({"version": "one"}, "version 'one' is not of the form major.minor"),
        ({"step": "20"}, "'step' must be int, found str"),
        ({"step": True}, "'step' must be int, found bool"),
        ({"step": -1}, "'step' must not be negative"),
        ({"extra": []}, "'extra' must be dict, found list"),
        ({"files": [7]}, r"files\[0\]: expected an object, found int"),
        ({"files": [{"name": "a"}]}, "'sha256' is missing"),
        ({"files": [{"name": "a", "sha256": "zz", "size_bytes": 1}]}, "sha256 of a is not 64 hex"),
        ({"files": []}, "part 'parameters' is in 'model.safetensors', which is not among the files"),
        ({"parts": manifest_document(_manifest())["parts"] * 2}, "a part is listed twice"),
    ],
)
def test_malformed_manifest_names_the_field(changes, message):
    """A damaged manifest would end in a KeyError far from its cause."""
    with pytest.raises(CheckpointError, match=message):
        parse_manifest(_text(**changes), "step-20/manifest.json")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "NaN", '{"step": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "\x80\x04\x95"],
    ids=["empty", "cut", "list", "nan", "nan-inside", "twice", "deep", "pickle"],
)
def test_what_is_not_strict_json_is_refused_by_name(text):
    """S-SEC-03: whatever was planted as a manifest is text to a parser, never code."""
    with pytest.raises(CheckpointError, match=r"^step-20/manifest\.json: "):
        parse_manifest(text, "step-20/manifest.json")


@pytest.mark.parametrize(
    "name",
    [
        "../secret", "/etc/passwd", "a/b", "..", ".", "", ".hidden", "a\\b", "a%2fb", "%2e%2e", "a?b", "a#b",
        "file:a", "a\0b", "a b", "a\n", "a..b", "~root", "a.", "ä",
    ],
)  # fmt: skip
def test_file_names_that_could_lead_outside_are_refused(name):
    """S-SEC-01: a manifest from elsewhere would read any file of the machine."""
    assert not is_plain_file_name(name)
    entry = {"name": name, "sha256": SHA256, "size_bytes": 1}
    with pytest.raises(CheckpointError, match="could lead outside"):
        parse_manifest(_text(files=[entry]), "m")
