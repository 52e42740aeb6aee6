"""The link of a rank under an outer launcher such as torchrun: nobody watches, so nobody can survive in the step.

The launcher's environment says who is there. A broken epoch ends the process with an error; the launcher starts all
ranks again, and they go on from the newest checkpoint.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.policy import assign_shares
from trimtab.policy.wire import Accused, Committed, Finished, Form, Message, Parked, Trouble
from trimtab.runtime.agent_link import Dismissed, Progress
from trimtab.runtime.errors import CollectiveError, RankError
from trimtab.runtime.process_groups import Interrupt, Rendezvous, connect_store
from trimtab.terms import RunState


class LauncherLink:
    """Takes the place of AgentLink; see there.

    Args:
        environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun and others set them;
            TORCHELASTIC_RESTART_COUNT counts the launcher's attempts, TORCHELASTIC_USE_AGENT_STORE says that the
            launcher itself listens at the master's port.
        folder: The run's folder; the first rank writes ``report.json`` there.
        attempt: Of the run, from 1; the report names it.
    """

    def __init__(
        self, environment: Mapping[str, str], *, folder: Path, attempt: int, num_shares: int
    ) -> None:
        self.progress = Progress()
        self.interrupt = Interrupt()
        self.is_stop_wanted = False
        self.is_border_wanted = False
        self.own_address = "127.0.0.1"
        self._folder, self._attempt, self._num_shares = folder, attempt, num_shares
        self.rank = _number(environment, "RANK")
        self._world_size = _number(environment, "WORLD_SIZE")
        self._master = (environment.get("MASTER_ADDR", "127.0.0.1"), _number(environment, "MASTER_PORT"))
        self._num_restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._launcher_listens = environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
        self._committed = 0
        self._is_formed = False

    def start(self, fingerprint: dict[str, str]) -> None:
        """Nobody asks for the fingerprint."""

    def send(self, message: Message) -> None:
        """Keep what the next form needs; the first rank prints the loss and writes the report.

        Raises: CollectiveError when the epoch broke: there is no agent to form another.
        """
        match message:
            case Parked():
                self._committed = message.committed
            case Trouble():
                raise CollectiveError(f"{message.error}; the launcher must start all ranks again")
            case Accused():
                raise CollectiveError(f"{message.reason}; the launcher must start all ranks again")
            case Committed() if message.metrics:
                print(json.dumps({"step": message.step, **message.metrics}), flush=True)  # noqa: T201 - the launcher's log
            case Finished() if self.rank == 0:
                self._report(message)
            case _:
                pass

    def next_form(self) -> Form:
        """The one epoch of this process: all ranks that the launcher started."""
        if self._is_formed:
            raise RankError("the ranks of an outer launcher cannot be formed twice in one process")
        self._is_formed = True
        members = tuple(range(self._world_size))
        return Form(
            epoch=self._num_restarts,
            members=members,
            active=members,
            store_host=self._master[0],
            store_port=self._master[1],
            step=self._committed,
            source=0,
            is_healing=True,  # every rank read the newest checkpoint it saw: all take the first rank's
            owners=assign_shares(self._num_shares, members) if self._num_shares else (),
        )

    def connect(self, form: Form, rendezvous: Rendezvous) -> Any:
        """The launcher's own store, or one that the first rank opens at the master's port."""
        listens = self.rank == 0 and not self._launcher_listens
        return connect_store(form.store_host, form.store_port, listens=listens)

    def raise_if_fenced(self) -> None:
        """Nobody fences."""

    def wait_for_end(self) -> None:
        """Nothing to wait for.

        Raises: Dismissed.
        """
        raise Dismissed("the run is complete")

    def _report(self, finished: Finished) -> None:
        state = RunState.STOPPED if finished.is_stopped else RunState.DONE
        report = {
            "run": self._folder.name,
            "directory": str(self._folder),
            "attempt": self._attempt,
            "state": state.value,
            **finished.results,
        }
        unfinished = self._folder / f"report.json.tmp-{os.getpid()}"
        unfinished.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self._folder / "report.json")


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError):
        found = environment.get(name)
        raise CollectiveError(f"{name} is {found!r}; required: a number, as torchrun sets it") from None
