"""The token of a run: whoever has it may start what runs, so nobody else may read it."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.conformance import launch
from trimtab.engines.local.tokens import read_token, take_token
from trimtab.terms import InputError


def test_a_token_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    """A resumed run has the same token, so that agents that wait for it still belong to it."""
    several = replace(launch(tmp_path), hosts=2)
    token = take_token(several)
    path = tmp_path / "token"
    assert len(token) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert take_token(several) == token
    assert read_token(path) == token


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """They could join the run, and be told what to start."""
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n", encoding="ascii")
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_token(path)


@pytest.mark.parametrize("text", ["", "short\n"])
def test_a_token_that_can_be_guessed_is_refused(text: str, tmp_path: Path) -> None:
    """An empty file would let everybody in."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(text, encoding="ascii")
    with pytest.raises(InputError, match="16 or more"):
        read_token(path)


def test_a_run_on_one_host_writes_no_token(tmp_path: Path) -> None:
    """A secret that nobody needs lies nowhere."""
    assert take_token(launch(tmp_path)) != take_token(launch(tmp_path))
    assert not list(tmp_path.iterdir())
