"""What is started, as a value that reaches other processes."""

import json
from pathlib import Path

from trimtab.engines.launch import Launch, launch_from_json
from trimtab.policy import Budget, Limits
from trimtab.terms import OnLoss, Phase


def test_a_launch_reaches_another_host_whole(tmp_path: Path) -> None:
    """A rank that is started with other settings on another host computes something else."""
    launch = Launch(
        run="q-1",
        folder=tmp_path,
        attempt=2,
        devices=6,
        module="trimtab.runtime.worker",
        rank_settings={"job": {"run": "q", "is": 3}, "resume": False},
        environment={"PATH": "/bin"},
        limits=Limits(phases_s={Phase.CHECKPOINT: 7.0}, budget=Budget(node_losses=7)),
        num_shares=4,
        on_loss=OnLoss.REDO,
        is_replacing=True,
        grace_s=30.0,
        hosts=3,
        listen=("10.0.0.1", 29400),
        token_file=tmp_path / "token",
    )
    found = launch_from_json(json.loads(json.dumps(launch.to_json())))
    assert found == launch
    assert found.limits.progress_in(Phase.CHECKPOINT) == 7.0
    assert found.placement == (0, 0, 1, 1, 2, 2)
