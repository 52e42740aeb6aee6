"""What an engine is asked to start, as a value: a dry run prints exactly this."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from trimtab.policy import Limits, Seating
from trimtab.policy.codec import from_json, kinds_of, to_json
from trimtab.terms import OnLoss

_ALLOWED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "TMPDIR",
    "SHELL",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONHASHSEED",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES",
    "KUBECONFIG",
    "SSL_CERT_FILE",
)
"""What a rank inherits. Everything else of the submitting shell stays there: rank numbers and CPU bindings of an
outer job would make a launcher believe that it is somebody else."""

_ALLOWED_PREFIXES = ("LC_", "OPENBLAS_", "MKL_CBWR", "NCCL_", "GLOO_", "HF_", "AWS_", "GOOGLE_")

RUN_VARIABLE = "TRIMTAB_RUN"
"""Set in every process of a run, so that its leftovers can be found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The ranks of one attempt of a run.

    Args:
        module: Python module that is a rank.
        rank_settings: What every rank is told, as JSON values.
        environment: Complete environment of every rank.
        device_price_usd_per_hour: Of one device; None when unknown.
        seating: The layouts that the run may have, by the ranks that live.
        first_incarnation: Number of every rank's first process; above all that earlier attempts used.
        script: The user's program and its arguments, if that is what the ranks run.
        max_script_restarts: How often all ranks of a script may be started again, unless it adopts the run.
        grace_s: From the wish to stop until what still runs is killed.
        agent_address: Where an agent listens for its ranks; port 0 takes a free one.
        hosts: Among which the devices are divided, in order.
        listen: Where the coordinator listens for the agents of hosts; port 0 takes a free one.
        interface: Network interface of this host that its ranks use; None for the one that leads to the coordinator.
        token_file: Of the run's token; None for one in the run's folder.
        patience_s: How long hosts that cannot reach each other wait before they end.
        fork_server: Python module of the process that a host's ranks are forked from; None starts each of them anew.
        loaded_once: Modules that it loads beyond what every rank needs.
    """

    run: str
    folder: Path
    attempt: int
    devices: int
    module: str
    rank_settings: Mapping[str, object]
    environment: Mapping[str, str]
    limits: Limits
    num_shares: int
    on_loss: OnLoss
    is_replacing: bool
    grace_s: float
    seating: Seating = field(default_factory=Seating)
    first_incarnation: int = 0
    script: tuple[str, ...] = ()
    max_script_restarts: int = 0
    device_price_usd_per_hour: float | None = None
    agent_address: tuple[str, int] = ("127.0.0.1", 0)
    hosts: int = 1
    listen: tuple[str, int] = ("127.0.0.1", 0)
    interface: str | None = None
    token_file: Path | None = None
    patience_s: float = 60.0
    fork_server: str | None = None
    loaded_once: tuple[str, ...] = ()

    @property
    def placement(self) -> tuple[int, ...]:
        """The host of each rank, in order of rank."""
        return tuple(rank * self.hosts // self.devices for rank in range(self.devices))

    def to_json(self) -> dict[str, object]:
        """For another process; see ``launch_from_json``."""
        token_file = None if self.token_file is None else str(self.token_file)
        document: dict[str, object] = to_json(self)
        return {**document, "folder": str(self.folder), "token_file": token_file}

    @property
    def num_processes(self) -> int:
        """One for each device."""
        return self.devices

    def describe(self) -> str:
        """Everything that would be started, for people: the command, then the environment and the settings."""
        lines = [f"{self.devices} x {' '.join(self.command())}"]
        if self.fork_server is not None:
            lines.append(f"forked, where the system allows it, from {sys.executable} -m {self.fork_server}")
        lines.append("environment:")
        lines += [f"  {key}={value}" for key, value in sorted(self.environment.items())]
        if self.script:
            lines.append(f"script: {' '.join(self.script)}")
        lines += [
            "settings:",
            *(f"  {line}" for line in json.dumps(dict(self.rank_settings), indent=2).splitlines()),
        ]
        return "\n".join(lines)

    def command(self) -> tuple[str, ...]:
        """The command line of every rank. Rank number and run token arrive on its standard input."""
        return (sys.executable, "-m", self.module)


def launch_from_json(document: Mapping[str, object]) -> Launch:
    """The launch that another process wrote.

    Raises: CodecError if it is of another version.
    """
    launch: Launch = from_json(document, kinds_of(Launch))
    token_file = None if launch.token_file is None else Path(launch.token_file)
    return replace(launch, folder=Path(launch.folder), token_file=token_file)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """What one rank reads from its standard input: who it is, whom it answers to, what to do.

    ``agent_pid``: of the process that started it, and must live still when it is read.
    ``address``: at which the other ranks reach it.
    """

    run: str
    folder: str
    rank: int
    incarnation: int
    attempt: int
    devices: int
    agent_pid: int
    agent_host: str
    agent_port: int
    token: str
    address: str = "127.0.0.1"
    settings: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


def clean_environment(
    inherited: Mapping[str, str], *, run: str, threads: int, passed: Sequence[str], added: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a rank: an allow-list of the submitting shell's, what the job passes by name, what it sets.

    ``threads`` bounds the math libraries' threads: it is a constant of the run, for bits depend on it.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if name in _ALLOWED or name in passed or name.startswith(_ALLOWED_PREFIXES)
    }
    bounds = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return kept | bounds | {"PYTHONUNBUFFERED": "1", RUN_VARIABLE: run} | dict(added)


def inherited_environment() -> dict[str, str]:
    """The environment of this process."""
    return dict(os.environ)
