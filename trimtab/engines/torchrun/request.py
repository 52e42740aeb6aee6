"""The request to torchrun: one command line, and a file that tells the ranks what an agent's ticket would."""

import json
import math
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.engines.launch import Launch

RANK_MODULE = "trimtab.runtime.elastic_worker"
SETTINGS_FILE = "settings.json"
"""In the run's folder: what every rank is told. Under the local engine it arrives on standard input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchrunRequest:
    """What torchrun is asked to start.

    Args:
        folder: Of the run; the only argument of a rank.
        devices: Ranks on this machine.
        max_restarts: How often torchrun may start all ranks again.
        grace_s: From torchrun's word to its ranks that they must end until it kills them.
        attempt: Of the run, from 1.
        first_incarnation: Number of every rank's first process; torchrun's restarts count on from there.
        environment: Complete environment of torchrun, which its ranks inherit.
        settings: What every rank is told, as JSON values.
    """

    folder: Path
    devices: int
    max_restarts: int
    grace_s: float
    attempt: int
    first_incarnation: int
    environment: Mapping[str, str]
    settings: Mapping[str, object]

    num_processes = 1
    """Torchrun itself; it starts the ranks."""

    def command(self) -> tuple[str, ...]:
        """Torchrun's command line, by this interpreter's own torch; ``--standalone`` takes a free port."""
        return (
            *(sys.executable, "-m", "torch.distributed.run"),
            "--standalone",
            *("--nproc-per-node", str(self.devices)),
            *("--max-restarts", str(self.max_restarts)),
            *("--shutdown-timeout", str(max(1, math.ceil(self.grace_s)))),
            *("-m", RANK_MODULE, str(self.folder)),
        )

    def describe(self) -> str:
        """Everything that would be started, for people: the command, then the environment and the settings."""
        lines = [shlex.join(self.command()), "environment:"]
        lines += [f"  {key}={value}" for key, value in sorted(self.environment.items())]
        settings = json.dumps(dict(self.settings), indent=2)
        lines += [f"{SETTINGS_FILE}:", *(f"  {line}" for line in settings.splitlines())]
        return "\n".join(lines)

    def write_settings(self) -> None:
        """Leave the ranks their settings, and who started them: a rank must not outlive this process."""
        launcher = {
            "pid": os.getpid(),
            "attempt": self.attempt,
            "first_incarnation": self.first_incarnation,
        }
        settings = json.dumps({**self.settings, "launcher": launcher}, indent=2)
        (self.folder / SETTINGS_FILE).write_text(settings + "\n", encoding="utf-8")


def torchrun_request(launch: Launch) -> TorchrunRequest:
    """The request for the ranks that a launch describes."""
    return TorchrunRequest(
        folder=launch.folder,
        devices=launch.devices,
        max_restarts=launch.limits.budget.node_losses,
        grace_s=launch.grace_s,
        attempt=launch.attempt,
        first_incarnation=launch.first_incarnation,
        environment=launch.environment,
        settings=launch.rank_settings,
    )
