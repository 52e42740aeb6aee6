"""Broken job files and what their authors are told: the messages are pinned, word for word.

Run with TRIMTAB_REGENERATE=1 to write them anew, and review the difference.
"""

import os
from pathlib import Path

import pytest

from trimtab.spec import JobFileError, load_job
from trimtab.terms import ExitCode

BROKEN = Path(__file__).parents[1] / "golden" / "spec" / "broken"
JOB_FILES = sorted(BROKEN.glob("*.yaml"))


def read(path: str) -> str:
    return (BROKEN / path).read_text()


def message_for(job_file: Path) -> str:
    with pytest.raises(JobFileError) as caught:
        load_job(job_file.read_text(), source=job_file.name, environment={"HOME": "/home/ada"}, read=read)
    assert caught.value.exit_code is ExitCode.INPUT_WRONG
    return f"{caught.value}\n"


@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.stem)
def test_message(job_file: Path) -> None:
    """Otherwise a user is told something else than was reviewed (S-CFG-07)."""
    message, golden = message_for(job_file), job_file.with_suffix(".txt")
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        golden.write_text(message)
    assert message == golden.read_text()


@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.stem)
def test_message_has_place_and_no_raw_value(job_file: Path) -> None:
    """Otherwise a user must search for the line, or reads a placeholder or a traceback (S-CFG-07, S-CFG-08)."""
    message = message_for(job_file)
    first = message.splitlines()[0]
    place, _, sentence = first.partition("  ")
    source, line, column = place.rsplit(":", 2)
    assert (BROKEN / source).exists()
    assert int(line) >= 1
    assert int(column) >= 1
    assert sentence
    assert "Traceback" not in message
    assert "{message" not in message
    assert "<trimtab" not in message


def test_there_are_enough() -> None:
    """Otherwise the folder moved and nothing above was checked."""
    assert len(JOB_FILES) >= 20
