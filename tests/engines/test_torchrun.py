import json
import sys
from pathlib import Path

import pytest

from trimtab.engines.errors import LaunchError
from trimtab.engines.launch import Launch
from trimtab.engines.torchrun import TorchrunRequest, torchrun_request
from trimtab.policy import Limits
from trimtab.terms import OnLoss


def launch(folder=Path("/runs/q-1")):
    return Launch(
        run="q-1",
        folder=folder,
        attempt=1,
        devices=4,
        module="trimtab.runtime.worker",
        rank_settings={"job": {"run": "q"}, "resume": False},
        environment={"PATH": "/bin"},
        limits=Limits(max_node_losses=7),
        num_shares=4,
        on_loss=OnLoss.ROLLBACK,
        is_replacing=False,
        grace_s=30.0,
    )


def test_the_command_line_is_torchruns():
    """One rank per device, restarts as the job allows them, and the run's folder for each rank."""
    assert torchrun_request(launch()).command() == (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        "--max-restarts",
        "7",
        "-m",
        "trimtab.runtime.elastic_worker",
        "/runs/q-1",
    )


def test_a_dry_run_shows_all_that_would_be_sent():
    """Command, environment and settings: nothing that matters is left out."""
    text = torchrun_request(launch()).describe()
    assert "torch.distributed.run --standalone --nproc-per-node 4" in text
    assert "PATH=/bin" in text
    assert '"resume": false' in text


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    """The settings are written before this process is replaced, so that the error still has a reader."""
    request = torchrun_request(launch(tmp_path / "gone"))
    with pytest.raises(LaunchError, match="gone"):
        request.send()


def test_settings_are_left_for_the_ranks(tmp_path, monkeypatch):
    """Ranks under torchrun have no ticket; they read the file."""
    sent = []
    monkeypatch.setattr("os.execve", lambda *arguments: sent.append(arguments))
    request: TorchrunRequest = torchrun_request(launch(tmp_path))
    request.send()
    assert json.loads((tmp_path / "settings.json").read_text()) == {"job": {"run": "q"}, "resume": False}
    assert sent == [(sys.executable, request.command(), {"PATH": "/bin"})]
