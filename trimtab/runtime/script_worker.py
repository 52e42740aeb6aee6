"""`python -m trimtab.runtime.script_worker`: one rank that runs a script. Its ticket arrives on standard input.

The script finds the variables that torchrun sets. If it calls ``trimtab.adopt`` it becomes a rank like any other; if
not, it is a process that starts, prints and ends, and nothing more is known of it.
"""

import atexit
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.policy.scripts import last_words_name
from trimtab.runtime.enlisting import Enlistment, enlist
from trimtab.runtime.tickets import hear_stop_notices, open_recorder, take_ticket
from trimtab.terms import Clock, ExitCode, InputError, TrimtabError

if TYPE_CHECKING:
    from trimtab.runtime.agent_link import AgentLink


def main() -> None:
    """Run the script of the ticket to its end, and exit as it does."""
    ticket = take_ticket()
    if ticket is None:
        return
    os.environ.update(rank_variables(ticket))
    recorder = open_recorder(ticket)
    started_ns = time.monotonic_ns()
    recorder.switch(Clock.UNATTRIBUTED, at_ns=started_ns)
    enlistment = Enlistment(
        ticket=ticket, connect=partial(_connect, ticket), recorder=recorder, started_ns=started_ns
    )
    atexit.register(_leave_at_once, enlistment)  # the first to be registered is the last to be called
    with enlist(enlistment):
        enlistment.exit_code = _run(ticket["settings"]["job"]["script"], enlistment)
    sys.exit(enlistment.exit_code)


def _connect(ticket: Mapping[str, Any], found: dict[str, str]) -> "AgentLink":
    """Report to the agent as fit to join; from now on SIGTERM is a wish to stop at a step border."""
    from trimtab.runtime.agent_link import AgentLink  # loads torch, which a script may never need

    link = AgentLink(
        (ticket["agent_host"], ticket["agent_port"]),
        token=ticket["token"],
        rank=ticket["rank"],
        incarnation=ticket["incarnation"],
        beat_s=ticket["settings"]["beat_s"],
        own_address=ticket["address"],
    )
    hear_stop_notices(link.ask_to_stop)
    link.start(found)
    return link


def _leave_at_once(enlistment: Enlistment) -> None:
    """End the process of a rank: an abandoned collective may block its teardown for minutes."""
    if enlistment.duty is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(enlistment.exit_code)


def rank_variables(ticket: Mapping[str, Any]) -> dict[str, str]:
    """What torchrun would set in the environment of this rank, all ranks being on one node."""
    rank, devices = str(ticket["rank"]), str(ticket["devices"])
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": devices,
        "LOCAL_WORLD_SIZE": devices,
        "MASTER_ADDR": ticket["agent_host"],
        "MASTER_PORT": str(ticket["settings"]["rendezvous_port"]),
    }


def _run(script: Mapping[str, Any], enlistment: Enlistment) -> int:
    """Be the script; returns its exit code, having told the agent why if it owed the run more."""
    path = os.path.abspath(script["file"])
    sys.argv = [path, *script.get("args", ())]
    sys.path[0] = os.path.dirname(path)
    code = 0
    failure: Exception | None = None
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ending:
        code = _exit_code(ending)
    except Exception as error:  # noqa: BLE001 - whatever it is, the agent must hear the first cause
        traceback.print_exc()
        code, failure = 1, error
    _explain(enlistment, code, failure)
    is_unfulfilled = enlistment.duty is not None and not enlistment.duty.is_fulfilled
    return 1 if is_unfulfilled and not code else code


def _explain(enlistment: Enlistment, code: int, failure: Exception | None) -> None:
    """Say why the script ended, if the run needed it: to the agent, or in a file if they never spoke."""
    duty = enlistment.duty
    if duty is not None and duty.is_fulfilled:
        return
    if failure is not None:
        text = str(failure) if isinstance(failure, TrimtabError) else f"{type(failure).__name__}: {failure}"
        is_input_error = isinstance(failure, InputError)
    else:
        text = f"the script {f'exited with code {code}' if code else 'ended'}"
        is_input_error = code == ExitCode.INPUT_WRONG  # argparse says so, too
    if duty is None:
        if code:
            ticket = enlistment.ticket
            path = Path(ticket["folder"]) / last_words_name(ticket["rank"], ticket["incarnation"])
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                json.dumps({"error": text, "is_input_error": is_input_error}) + "\n", encoding="utf-8"
            )
        return
    if failure is None:
        text += " before the run did: go through session.steps() to its end, or call session.stop()"
    duty.fail(text, is_input_error=is_input_error or failure is None)


def _exit_code(ending: SystemExit) -> int:
    if ending.code is None or isinstance(ending.code, int):
        return ending.code or 0
    sys.stderr.write(f"{ending.code}\n")
    return 1


if __name__ == "__main__":
    main()
