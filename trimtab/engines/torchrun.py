"""The request to torchrun: one command line, which takes the place of the process that sends it.

torchrun starts the ranks, and starts all of them again when one is lost; they go on from the newest
checkpoint.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trimtab.engines.errors import LaunchError
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
        environment: Complete environment of torchrun, which its ranks inherit.
        settings: What every rank is told, as JSON values.
    """

    folder: Path
    devices: int
    max_restarts: int
    environment: Mapping[str, str]
    settings: Mapping[str, object]

    def command(self) -> tuple[str, ...]:
        """Torchrun's command line, by this interpreter's own torch; ``--standalone`` takes a free port."""
        return (
            *(sys.executable, "-m", "torch.distributed.run"),
            "--standalone",
            *("--nproc-per-node", str(self.devices)),
            *("--max-restarts", str(self.max_restarts)),
            *("-m", RANK_MODULE, str(self.folder)),
        )

    def describe(self) -> str:
        """Everything that would be started, for people: the command, then the environment and the settings."""
        lines = [shlex.join(self.command()), "environment:"]
        lines += [f"  {key}={value}" for key, value in sorted(self.environment.items())]
        settings = json.dumps(dict(self.settings), indent=2)
        lines += [f"{SETTINGS_FILE}:", *(f"  {line}" for line in settings.splitlines())]
        return "\n".join(lines)

    def send(self) -> NoReturn:
        """Write the settings and become torchrun; open files that are inheritable stay open.

        Raises: LaunchError naming the command and the system's reason.
        """
        try:
            settings = json.dumps(dict(self.settings), indent=2)
            (self.folder / SETTINGS_FILE).write_text(settings + "\n", encoding="utf-8")
            os.execve(sys.executable, self.command(), dict(self.environment))  # noqa: S606 - no shell is the point
        except OSError as error:
            raise LaunchError(f"could not start {shlex.join(self.command())}: {error}") from error


def torchrun_request(launch: Launch) -> TorchrunRequest:
    """The request for the ranks that a launch describes."""
    return TorchrunRequest(
        folder=launch.folder,
        devices=launch.devices,
        max_restarts=launch.limits.max_node_losses,
        environment=launch.environment,
        settings=launch.rank_settings,
    )
